"""Tables of the report, printed with rich."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from coordinator_free_bootstrap.identity import restart_count
from coordinator_free_bootstrap.strict_json import printable
from peer.core.counters import COUNTERS, Totals, entries
from peer.core.metric import Metric
from peer.store.records import PHASES, STATES
from peer.view.report.matrix import matrix_text
from peer.view.state.leaks import shown as shown_leak
from peer.view.state.model_tests import TestResult, results
from peer.view.state.peer_state import ending

LINE_CHARACTERS_MAX = 1000
OWN_ROWS = {"rounds_alone", "models_sent", "models_folded", "payload_bytes_sent", "wire_bytes_sent"}  # counters
AWAITED_SHOWN = 3  # peers that a run waited for
MATRIX_PEERS_MAX = 12  # in a table of a terminal
ROWS_MAX = 40  # longer tables scroll out of a terminal; the JSON has all rows


def report_view(values: dict[str, Any]) -> RenderableType:
    """Return the report of `peer.view.report.report.build_report` as tables, after its warnings."""
    parts: list[RenderableType] = [f"[bold red]warning:[/] {_plain(warning)}" for warning in values["warnings"]]
    parts += [summary_table(values), peers_table(values["peers"], metric_of(values))]
    if values["matrix"] and (table := matrix_table(values["matrix"], metric_of(values))):
        parts.append(table)
    parts += [f"[yellow]note:[/yellow] {_plain(note)}" for note in values["notes"]]
    return Group(*parts)


def metric_of(values: dict[str, Any]) -> Metric:
    """Return the metric of a report."""
    return Metric.from_json(values["metric"])


def summary_table(values: dict[str, Any]) -> Table:
    """Return the numbers of the run, one per row."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in _summary_rows(values):
        table.add_row(_plain(name), _plain(text))
    return table


def _summary_rows(values: dict[str, Any]) -> Iterable[tuple[str, str]]:
    metric = metric_of(values)
    tenth = "p10" if metric.higher_is_better else "p90"
    words = {"mean": "mean", "std": "std", "worst": "worst", "p10": tenth}
    statistics = [f"{word} {metric.text(values[f'metric_{key}'])}" for key, word in words.items()]
    distances = zip(values["consensus_distance"], values["consensus_distance_relative"], strict=True)
    task, total = values["task"] or "an unknown task", values["rounds_total"]
    yield (
        "run",
        f"{values['algorithm'] or 'unknown algorithm'} on {task}, k = {values['clusters']}: {state_text(values)}",
    )
    yield "rounds", str(values["rounds"]) if total is None else f"{values['rounds']} of {total}"
    if values["rounds_alone"]:
        yield "rounds alone", f"{values['rounds_alone']} without any neighbor (sum over peers)"
    yield metric.label, ", ".join(statistics) + of_peers(values["metric_peers"], values)
    for found in values.get("more_metrics", {}).values():
        other = Metric.from_json(found)
        text = f"mean {other.text(found['mean'])}, worst {other.text(found['worst'])}"
        yield other.label, text + of_peers(found["peers"], values)
    placed = percent(values["cluster_accuracy"])
    used = f"{values['clusters_used']} of {values['clusters']} in use, " if values["clusters_used"] else ""
    yield "clusters", f"{used}ARI {number(values['cluster_ari'])}, {placed} of the peers in their true cluster"
    yield "models", f"{values['models_sent']} sent, {values['models_folded']} folded"
    payload, wire = megabytes(values["payload_bytes_sent"]), megabytes(values["wire_bytes_sent"])
    yield "bytes", f"{payload} payload, {wire} with framing and control messages"
    yield from _other_counts(values)
    yield "seconds", ", ".join(f"{phase} {values['seconds'][phase]:.2f}" for phase in PHASES) + " (mean over peers)"
    if values["waiting"] is not None and values["waiting"]["for"]:
        yield "waiting", waiting_text(values["waiting"])
    apart = [f"{j}: {number(a, 4)} ({number(r, 4)} relative)" for j, (a, r) in enumerate(distances)]
    yield "consensus distance", ", ".join(apart)
    yield from _final_phase_rows(values)
    yield from _mixture_rows(values)
    yield from _collaboration_rows(values["collaboration"])
    if values["matrix"] is not None:
        yield "models of the last round", matrix_text(values["matrix"], metric)
    if (leak := values["leak"]) is not None:
        worst = f"worst peer {leak['worst_peer']}: {shown_leak(leak['worst'])}"
        yield "training samples told by loss", f"AUC {leak['auc_mean']:.3f}{of_peers(leak['peers'], values)}, {worst}"
    if "reached" in values:
        found = values["reached"]
        after = "never" if found["rounds"] is None else f"after {found['rounds']} rounds, {found['seconds']:.1f} s"
        yield f"mean {metric.name} {found['target']}", after


def waiting_text(found: dict[str, Any]) -> str:
    """Return the share of time that peers waited, and for whom most."""
    most = ", ".join(f"{row['peer_id']}: {percent(row['share'])}" for row in found["for"][:AWAITED_SHOWN])
    return f"{percent(found['share'])} of the peers' time; of it for peer {most}"


def _other_counts(values: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the row of the counters that have no row of their own and are not 0, each with its name."""
    found = [
        f"{name.replace('_', ' ')} {megabytes(values[name]) if entries(Totals)[name].unit == 'bytes' else values[name]}"
        for name in COUNTERS
        if name not in OWN_ROWS and values[name]
    ]
    if found:
        yield "other counts", ", ".join(found)


def state_text(values: dict[str, Any]) -> str:
    """Return the state of a run, with the number of peers in each status if it is not complete."""
    counts = ", ".join(f"{count} {status}" for status, count in values["states"].items())
    return str(values["state"]) if values["state"] == "complete" else f"{values['state']} ({counts})"


def of_peers(known: int, values: dict[str, Any]) -> str:
    """Return over how many peers a mean is, if not over all; "" if over all, or over none."""
    return f" (over {known} of {len(values['peers'])} peers)" if 0 < known < len(values["peers"]) else ""


def _collaboration_rows(found: dict[str, Any] | None) -> Iterable[tuple[str, str]]:
    """Yield the rows of algorithms whose peers choose collaborators."""
    if found is None:
        return
    candidates = number(found["candidates_mean"], 1)
    yield "collaborators", f"{number(found['collaborators_mean'], 1)} of {candidates} candidates (mean over peers)"
    links = f"{percent(found['symmetry'])} mutual, {percent(found['links_to_other_clusters'])} to another true cluster"
    if found["links_to_renamed"] is not None:
        links += f", {percent(found['links_to_renamed'])} of the others' to peers with renamed labels"
    yield "links", links


def _final_phase_rows(values: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the row of a run with a final phase."""
    if values["metric_final_phase"] is not None:
        phase, metric = values["metric_final_phase"], metric_of(values)
        before, after = (metric.text(phase[when]) for when in ("before", "after"))
        yield "final phase", f"{metric.name} {before} before, {after} after"


def _mixture_rows(values: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the rows of algorithms with mixtures."""
    if values["collapsed"] is None:
        return
    placed, error = percent(values["sample_cluster_accuracy"]), number(values["mix_err"])
    result = "collapsed into one" if values["collapsed"] else "not collapsed"
    yield "mixtures", f"mix_err {error}, {placed} of the samples in their true cluster, {result}"
    by_class, by_truth = values["class_explains"], values["truth_explains"]
    if by_class is not None:
        truth = "" if by_truth is None else f", its true cluster {percent(by_truth)}"
        yield "labels", f"a sample's class explains {percent(by_class)} of them{truth}"
    others = values["models_others_would_send"]
    if others is not None:
        yield "for comparison", f"DFCA would send {others['dfca']} models, FedEM {others['fedem']}"


def peers_table(rows: list[dict[str, Any]], metric: Metric) -> Table:
    """Return one row per peer, at most `ROWS_MAX`."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    chosen = ("best round", "validation") if any(row["best_round"] is not None for row in rows) else ()
    spent = ("epsilon",) if any(row["epsilon"] is not None for row in rows) else ()
    for name in (
        "peer",
        "status",
        "rounds",
        metric.name,
        *chosen,
        *spent,
        "cluster",
        "true",
        "sent",
        "folded",
        "MB",
        "starts",
    ):
        table.add_column(_plain(name), justify="left" if name == "status" else "right")
    for row in rows[:ROWS_MAX]:
        table.add_row(
            str(row["peer_id"]),
            _styled(row["status"], row["exit_code"]),
            str(row["rounds_completed"]),
            metric.text(row["metric_value"]),
            *((shown(row["best_round"]), metric.text(row["metric_best"])) if chosen else ()),
            *((shown(None if row["epsilon"] is None else f"{row['epsilon']:.3g}"),) if spent else ()),
            shown(row["cluster_index"]),
            shown(row["true_cluster"]),
            str(row["models_sent"]),
            str(row["models_folded"]),
            f"{row['payload_bytes_sent'] / 1e6:.1f}",
            str(restart_count(row["incarnation"] or 0)),
        )
    if len(rows) > ROWS_MAX:
        table.caption = f"and {len(rows) - ROWS_MAX} more peers (in --json)"
    return table


def _styled(status: str, exit_code: int | None) -> str:
    text, found = _plain(ending(status, exit_code)), STATES.get(status)
    return f"[bold red]{text}[/]" if found and found.ends and found.down else text


def shown(value: Any) -> str:
    """Return the value as text, or a dash for None."""
    return "-" if value is None else str(value)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` decimals (significant digits if it is small), or a dash for None."""
    return "-" if value is None else f"{value:.{digits}g}" if 0 < abs(value) < 10**-digits else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Return a share as a percentage, or a dash for None."""
    return "-" if share is None else f"{share:.0%}"


def megabytes(size_bytes: float) -> str:
    """Return bytes as megabytes (10**6)."""
    return f"{size_bytes / 1e6:.1f} MB"


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text, LINE_CHARACTERS_MAX))


def matrix_table(values: dict[str, Any], metric: Metric) -> Table | None:
    """Return `matrix` with a row for each peer's model and a column for each tester; None if it is too large."""
    tests: dict[int, list[Any]] = {}
    for test in values["tests"]:
        tests.setdefault(test["data_of"], []).append(test)
    columns = {tester: {r.model_of: r for r in results(column)} for tester, column in sorted(tests.items())}
    rows = sorted({model_of for column in columns.values() for model_of in column})
    if max(len(rows), len(columns)) > MATRIX_PEERS_MAX:
        return None
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(printable(metric.label, 64))
    for tester in columns:
        table.add_column(f"data {tester}", justify="right")
    for model_of in rows:
        cells = [_cell(column.get(model_of), metric) for column in columns.values()]
        table.add_row(
            f"model {model_of}", *(f"[bold]{c}[/]" if t == model_of else c for t, c in zip(columns, cells, strict=True))
        )
    return table


def _cell(result: TestResult | None, metric: Metric) -> str:
    if result is None:
        return ""
    return printable(result.missing, 32) if result.missing else metric.text(result.value)

"""The table of `peer status`: one line per peer, 16 peers on a screen of 80 x 24."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coordinator_free_bootstrap.strict_json import printable
from peer.core.metric import Metric
from peer.observe.ask import Answer, Ended, Silent, files_of
from peer.observe.peer_status import PeerStatus
from peer.observe.places import listed
from peer.observe.run_files import PeerRun
from peer.observe.tables import shown
from peer.observe.waits import reasons

NOTES_MAX = 4  # with 16 peers, header and count of the others, 24 lines
WRAPPED_PEERS_MAX = 8  # with more peers, a note is cut at the width of the screen
NO_ANSWER = "no answer"


def status_table(answers: Mapping[int, Answer]) -> RenderableType:
    """Return a row per peer, and notes on peers without an answer and on waits for suspect neighbors."""
    metric = metric_of(answers)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("peer", justify="right", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    table.add_column("round", justify="right", no_wrap=True)
    table.add_column(escape(printable(metric.name, 12)), justify="right", no_wrap=True)
    table.add_column("cluster", justify="right", no_wrap=True)
    table.add_column("waits for")  # the column that becomes narrower; its cells are cut
    table.add_column("alive", justify="right", no_wrap=True)
    table.add_column("since", justify="right", no_wrap=True)
    for peer_id, answer in answers.items():
        table.add_row(str(peer_id), *(Text(cell, no_wrap=True, overflow="ellipsis") for cell in _cells(answer, metric)))
    short = len(answers) > WRAPPED_PEERS_MAX
    wrap = {"no_wrap": True, "overflow": "ellipsis"} if short else {}
    return Group(table, *[Text(note, style="yellow", **wrap) for note in notes(answers)])  # type: ignore[arg-type]


def metric_of(answers: Mapping[int, Answer]) -> Metric:
    """Return the metric of the first answer that has one."""
    for answer in answers.values():
        if isinstance(answer, PeerStatus):
            return Metric.from_json(answer.metric.model_dump())
        if answer.run is not None and (found := answer.run.last.get("metric")):
            return Metric.from_json(found)
    return Metric()


def _cells(answer: Answer, metric: Metric) -> tuple[str, ...]:
    """Return phase, round, metric, cluster, what the peer waits for, live neighbors, and the time since its last change."""
    if isinstance(answer, PeerStatus):
        alive = sum(state == "alive" for state in answer.neighbors.values())
        return (
            answer.stage.replace("_", " "),
            f"{answer.round_index}/{answer.rounds_total}",
            metric.text(answer.metric.value),
            shown(answer.cluster_index),
            _waits_for(answer),
            f"{alive}/{len(answer.neighbors)}",
            age(answer.unchanged_s),
        )
    if answer.run is None:
        return (NO_ANSWER, "-", "-", "-", answer.reason, "-", "-")
    run, reason = answer.run, "" if isinstance(answer, Ended) else answer.reason
    phase = run.status if isinstance(answer, Ended) else NO_ANSWER
    value, cluster = run.last.get("accuracy"), run.last.get("cluster_index")
    return (phase, str(run.rounds_completed), metric.text(value), shown(cluster), reason, "-", _since(run))


def _waits_for(status: PeerStatus) -> str:
    if not status.waiting_for and not status.owed_to:
        return "-"
    ids = ", ".join(map(str, sorted({*status.waiting_for, *status.owed_to})))
    return f"{age(status.waiting_s)}: {ids}"


def _since(run: PeerRun) -> str:
    """Return the time since a peer wrote its last file."""
    moment = run.summary.get("ended_at") or (run.history[-1].get("time") if run.history else None)
    if moment is None:
        return "-"
    last = datetime.fromisoformat(moment)
    return age((datetime.now(UTC) - (last if last.tzinfo else last.replace(tzinfo=UTC))).total_seconds())


def age(seconds: float) -> str:
    """Return a duration in its largest unit, at most five characters: ``4 s``, ``12 m``, ``3 h``, ``40 d``."""
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / unit_s:.0f} {unit}"
    return f"{min(seconds / 86_400, 999):.0f} d"


def notes(answers: Mapping[int, Answer]) -> list[str]:
    """Return sentences on peers without an answer, storage errors and waits for suspect neighbors; equal ones once."""
    found: dict[str, list[int]] = {}
    for peer_id, answer in answers.items():
        text = _note(answer)
        if text:
            found.setdefault(text, []).append(peer_id)
    lines = [f"peer {listed(ids)}: {text}" for text, ids in found.items()]
    more = [f"and {len(lines) - NOTES_MAX} more notes (peer status --json)"] if len(lines) > NOTES_MAX else []
    return lines[:NOTES_MAX] + more


def _note(answer: Answer) -> str:
    if isinstance(answer, Silent):
        return answer.reason + files_of(answer)
    if isinstance(answer, PeerStatus):
        if answer.storage_error:
            return printable(answer.storage_error)
        if any(answer.neighbors.get(str(n)) == "suspect" for n in answer.waiting_for):
            return f"has waited {answer.waiting_s:.1f} s for {printable('; for '.join(reasons(answer)))}"
    return ""

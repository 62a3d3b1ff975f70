"""A run with one more counter: a line in the table of counters, and the line that counts; print as JSON who shows it.

python one_more_counter.py OUT
"""

from __future__ import annotations

import importlib.util
import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LINE = '    rounds_closed: Annotated[int, counter("rounds that were closed", "rounds")] = 0\n'


def add_line() -> None:
    """Import `peer.core.counters` with `LINE` as the last of the table."""
    spec = importlib.util.find_spec("peer.core.counters")
    assert spec is not None and spec.origin is not None
    head, table = Path(spec.origin).read_text().split("class Totals:\n")
    last = table.index("\n    def ")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(compile(f"{head}class Totals:\n{table[:last]}{LINE}{table[last:]}", spec.origin, "exec"), module.__dict__)


def count_it() -> None:
    """Count in the engine, which has a line for it."""
    from peer.core.waiting import Isolation

    closes = Isolation.round_closes

    def counting(self: Any) -> None:
        self._state.totals.rounds_closed += 1
        closes(self)

    Isolation.round_closes = counting  # type: ignore[method-assign]


def ran(out: Path) -> dict[str, Any]:
    """Run two peers, and return what each reader says of the counter."""
    from prometheus_client import generate_latest

    from coordinator_free_bootstrap import make_graph, parse_manifest
    from peer.lab.simulated import simulate
    from peer.observe.metrics import PeerMetrics
    from peer.observe.metrics_feed import MetricsFeed
    from peer.view.report.report import build_report
    from peer.view.state.peer_status import read_status
    from peer.view.state.tail import RunTail
    from peer.view.state.view import View
    from peer.wire.round_ring import RoundRing

    small = {"rounds": 2, "algorithm": "dfedavg", "split_options": {"samples_per_peer": 40, "test_per_peer": 20}}
    peers = simulate(make_graph("ring", 3, seed=1, manifest=parse_manifest(small, "run")), out)
    lines = [json.loads(line) for line in (out / "peer-0" / "history.jsonl").read_text().splitlines()]
    metrics, ring = PeerMetrics(0), RoundRing()
    feed = MetricsFeed(metrics, (1, 2), lambda: 1)
    for line in lines:
        feed(line["kind"], line)
        if line["kind"] == "round":
            ring.add(line)
    report = build_report(out).values
    tail = RunTail(out)
    tail.refresh()
    shown = View(tail.log, tail.graph).everything()
    return {
        "history": [line["rounds_closed"] for line in lines if line["kind"] in ("round", "end")],
        "observers": [json.loads(text)["rounds_closed"] for text in ring.batch(0).records],
        "metrics": "peer_rounds_closed_total 2.0" in generate_latest(metrics.registry).decode(),
        "warnings": report["warnings"],
        "report": [report["rounds_closed"], *(row["rounds_closed"] for row in report["peers"])],
        "printed": "rounds closed 6" in printed(report),
        "summary": json.loads((out / "peer-0" / "summary.json").read_text())["totals"]["rounds_closed"],
        "status": read_status(json.loads(json.dumps(peers[0].host.status())))["totals"]["rounds_closed"],
        "state": [shown["header"]["totals"]["rounds_closed"], *(p["totals"]["rounds_closed"] for p in shown["peers"])],
        "checkpoint": peers[0].host.state.checkpoint()["totals"]["rounds_closed"],
        "documents": documents(),
        "a wrong count": wrong(lines[-1] | {"rounds_closed": -1}),
    }


def printed(report: dict[str, Any]) -> str:
    """Return what `peer report` prints."""
    from rich.console import Console

    from peer.view.report.tables import report_view

    text = StringIO()
    Console(file=text, width=400).print(report_view(report))
    return text.getvalue()


def documents() -> list[str]:
    """Return the rows that the generated tables have more."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    return [row for page in pages for row in generate.generated(page).splitlines() if row not in page.splitlines()]


def wrong(line: dict[str, Any]) -> str:
    """Return what readers say of a line."""
    from peer.view.state.records import problem_of_line

    return problem_of_line(line)


if __name__ == "__main__":
    add_line()
    count_it()
    print(json.dumps(ran(Path(sys.argv[1]))))

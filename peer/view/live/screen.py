"""The state of a run as tables on a terminal: the same state that the page shows."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import counted
from peer.core.metric import Metric
from peer.view.report.tables import LINE_CHARACTERS_MAX, ROWS_MAX, shown
from peer.view.state.durations import duration
from peer.view.state.peer_state import ending
from peer.view.state.rows import PeerRow
from peer.view.state.timeline import TimelineEntry
from peer.view.state.view import View

NEWS_ROWS = 6  # newest entries of the timeline


def run_screen(view: View, line: str, metric: Metric, *, news: bool = True) -> RenderableType:
    """Return a line about all peers, a table of at most `ROWS_MAX`, what could not be read, and the newest of the timeline."""
    state = view.log.state()
    rows = [view.peer(peer, state) for peer in list(state.peers.values())[:ROWS_MAX]]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    for name in (
        "peer",
        "state",
        "round",
        "cluster",
        metric.name,
        "neighbors alive",
        "MB sent",
        "s a round",
        "waits for",
    ):
        table.add_column(Text(printable(name, 64)), justify="left" if name in ("state", "waits for") else "right")
    total = view.graph.manifest.rounds if view.graph else None
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in _cells(row, metric, total, view)))
    more = len(state.peers) - len(rows)
    if more > 0:
        table.caption = f"and {counted(more, 'more peer')}"
    entries = view.timeline(state)[-NEWS_ROWS:] if news else []
    problems = [Text(printable(problem, LINE_CHARACTERS_MAX), style="yellow") for problem in view.log.problems]
    line_text = Text(line, no_wrap=True, overflow="ellipsis")
    return Group(line_text, table, *problems, *(_news(entry, view) for entry in entries))


def _cells(row: PeerRow, metric: Metric, total: int | None, view: View) -> tuple[str, ...]:
    degree = len(view.graph.neighbors(row.id)) if view.graph else len(row.neighbors)
    return (
        str(row.id),
        ending(row.status, row.exit_code),
        f"{row.round}/{'?' if total is None else total}",
        shown(row.cluster),
        metric.text(row.metric),
        f"{shown(row.alive)}/{degree}",
        f"{row.totals.payload_bytes_sent / 1e6:.1f}",
        "-" if row.seconds_per_round is None else f"{row.seconds_per_round:.1f}",
        row.silent or "; ".join(row.why) or "-",
    )


def _news(entry: TimelineEntry, view: View) -> Text:
    seconds = max(0.0, entry["at"] - view.log.began)
    about = "" if entry["peer"] is None else f"peer {entry['peer']} "
    by = (
        f" (says peer {', '.join(map(str, entry['by'][:5]))})" if entry["by"] and entry["by"] != [entry["peer"]] else ""
    )
    return Text(f"{duration(seconds):>8}  {about}{entry['text']}{by}", no_wrap=True, overflow="ellipsis", style="dim")

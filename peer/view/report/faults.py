"""The faults of a run, read from ``chaos.jsonl``, and a picture of them below the metric of the peers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import counted
from peer.store.files import storage_errors
from peer.view.report.plots import COLORS, PALE, TEXT_COLOR, make_figure
from peer.view.state.events import seconds_of
from peer.view.state.records import FaultLine
from peer.view.state.run_files import RunFiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "faults.png"


@dataclass(frozen=True)
class Span:
    """One fault from its begin to its end, in seconds since the first peer started; `peer` is None for faults of edges."""

    kind: str
    peer: int | None
    begin_s: float
    end_s: float


class TimedFault(FaultLine):
    """A fault with its time in Unix seconds."""

    at: float


def timeline_of(run: RunFiles) -> list[TimedFault]:
    """Return the faults of a run; [] for a run without."""
    return [{**event.data, "at": event.at} for _, event in run.log.news if event.data["kind"] == "fault"]


def spans(lines: list[TimedFault], began: float, end_s: float) -> list[Span]:
    """Return each fault with the event that ended it; a fault without one lasts until ``end_s``."""
    done = [line for line in lines if line["result"] == "done"]
    found = []
    for index, line in enumerate(done):
        if line["undo"] is None:
            continue
        for peer in [None] if line["undo"] == "heal" else line.get("peers") or ():
            ends = (later["at"] - began for later in done[index + 1 :] if _ends(later, line, peer))
            kind = "network" if peer is None else line["do"]
            found.append(Span(kind, peer, line["at"] - began, next(ends, end_s)))
    return found


def _ends(later: FaultLine, line: FaultLine, peer: int | None) -> bool:
    if peer is not None:  # the undo, or another fault of the process
        return "heal" not in (later["do"], later["undo"]) and peer in (later.get("peers") or ())
    if later["do"] != "heal":
        return False
    if later.get("peers"):
        return bool(later["peers"] == line.get("peers"))
    edges = {frozenset(edge) for edge in line.get("edges") or ()}
    later_edges = {frozenset(edge) for edge in later.get("edges") or ()}
    return not later_edges or bool(edges & later_edges)


def save_fault_picture(run: RunFiles, directory: Path) -> list[Path]:
    """Write ``faults.png`` if the run has a timeline; return the paths written."""
    lines = timeline_of(run)
    if not lines:
        return []
    with storage_errors("write plots to", directory):
        directory.mkdir(parents=True, exist_ok=True)
        fault_figure(run, lines).savefig(directory / PICTURE, dpi=150)
    return [directory / PICTURE]


def fault_figure(run: RunFiles, lines: list[TimedFault]) -> Figure:
    """Return each peer's metric over seconds, and below it a bar for each fault."""
    from matplotlib.patches import Patch

    stamps = [seconds_of(time) for peer in run.peers for line in peer.history if (time := line.get("time"))]
    began, end = min(stamps, default=lines[0]["at"]), max([*stamps, lines[-1]["at"]])
    bars = spans(lines, began, end - began)
    colors = {kind: COLORS[1 + i % 7] for i, kind in enumerate(sorted({bar.kind for bar in bars}))}
    figure, (above, below) = make_figure(7.4, 5.2, 2, sharex=True, height_ratios=(3, 2))
    for peer in run.peers:
        known = ((line.get("time"), line.get("metric_value")) for line in peer.round_lines)
        points = [(seconds_of(time) - began, value) for time, value in known if time and value is not None]
        x, y = np.array(points, dtype=float).reshape(-1, 2).T
        above.plot(x, y, linewidth=1, alpha=0.7, color=COLORS[0])
    above.set_ylabel(f"{printable(run.metric.label, 80)} of each peer", parse_math=False)
    above.grid(color=PALE, linewidth=0.8)
    above.set_title(
        f"{counted(len(lines), 'event')} on {counted(len(run.peers), 'peer')}",
        loc="left",
        fontsize=11,
        color=TEXT_COLOR,
    )
    for bar in bars:
        row = -1 if bar.peer is None else bar.peer
        width = max(bar.end_s - bar.begin_s, (end - began) / 400)
        below.broken_barh([(bar.begin_s, width)], (row - 0.4, 0.8), facecolor=colors[bar.kind])
        above.axvline(bar.begin_s, color=colors[bar.kind], linewidth=0.6, alpha=0.5)
    below.set_ylim(-1.7, max((peer.peer_id for peer in run.peers), default=0) + 0.7)
    below.set_ylabel("peer (-1: network)")
    below.set_xlabel("seconds")
    below.legend(
        handles=[Patch(facecolor=color, label=kind) for kind, color in colors.items()],
        ncols=4, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.18),
    )  # fmt: skip
    return figure

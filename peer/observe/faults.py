"""The faults of a run, as ``chaos.jsonl`` tells them, and a picture of them under the accuracy of the peers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peer.observe.plots import COLORS
from peer.observe.run_files import Run
from peer.store.files import storage_errors
from peer.store.history import parse_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMELINE = "chaos.jsonl"  # in the testbed's directory, one object a line: time, do, words, peers, edges, groups, result
PICTURE = "faults.png"
_ENDS = {"kill": ("restart",), "leave": ("restart",), "stop": ("continue", "restart", "kill")}
_LOOK = {"kill": COLORS[5], "stop": COLORS[1], "leave": COLORS[4], "network": COLORS[3]}
_INK, _PALE = "#333333", "#E4E4E4"


@dataclass(frozen=True)
class Span:
    """One fault from its beginning to its end, in seconds since the first peer started; on one peer, or on the network."""

    kind: str
    peer: int | None
    begin_s: float
    end_s: float
    words: str


def read_timeline(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's timeline in order; [] for a run without faults."""
    path = Path(directory) / TIMELINE
    with storage_errors("read", path):
        data = path.read_bytes() if path.exists() else b""
    return [line | {"at": _moment(line["time"])} for line in parse_lines(data)]


def spans(lines: list[dict[str, Any]], began: float, end_s: float) -> list[Span]:
    """Pair each fault with the event that ended it; what nobody ended lasts to the end of the run."""
    found = []
    for index, line in enumerate(lines):
        if line["result"] != "done" or line["do"] in ("restart", "continue", "join", "heal"):
            continue
        later = [other for other in lines[index + 1 :] if other["result"] == "done"]
        for peer in line.get("peers") or [None]:
            ends = (o["at"] - began for o in later if _ends(o, line, peer))
            kind = line["do"] if peer is not None else "network"
            found.append(Span(kind, peer, line["at"] - began, next(ends, end_s), line["words"]))
    return found


def _ends(other: dict[str, Any], line: dict[str, Any], peer: int | None) -> bool:
    if peer is not None:
        return other["do"] in _ENDS[line["do"]] and peer in other.get("peers", ())
    if other["do"] != "heal":
        return False
    edges = {frozenset(edge) for edge in line.get("edges", ())}
    return not other.get("edges") or bool(edges & {frozenset(edge) for edge in other["edges"]})


def save_fault_picture(run: Run, directory: Path) -> list[Path]:
    """Write ``faults.png`` for a run that has a timeline; return the paths written."""
    lines = read_timeline(run.directory)
    if not lines:
        return []
    with storage_errors("write plots to", directory):
        directory.mkdir(parents=True, exist_ok=True)
        fault_figure(run, lines).savefig(directory / PICTURE, dpi=150)
    return [directory / PICTURE]


def fault_figure(run: Run, lines: list[dict[str, Any]]) -> Figure:
    """Return each peer's accuracy over seconds, and below it a bar for each fault."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stamps = [_moment(line["time"]) for peer in run.peers for line in peer.history]
    began, end = min(stamps, default=lines[0]["at"]), max([*stamps, lines[-1]["at"]])
    figure = Figure(figsize=(7.4, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for peer in run.peers:
        rows = [line for line in peer.round_lines if line.get("accuracy") is not None]
        x = np.array([_moment(line["time"]) - began for line in rows])
        above.plot(x, [line["accuracy"] for line in rows], linewidth=1, alpha=0.7, color=COLORS[0])
    above.set_ylabel("accuracy of each peer")
    above.grid(color=_PALE, linewidth=0.8)
    above.set_title(f"{len(lines)} events on {len(run.peers)} peers", loc="left", fontsize=11, color=_INK)
    for span in spans(lines, began, end - began):
        row = -1 if span.peer is None else span.peer
        width = max(span.end_s - span.begin_s, (end - began) / 400)
        below.broken_barh([(span.begin_s, width)], (row - 0.4, 0.8), facecolor=_LOOK[span.kind])
        above.axvline(span.begin_s, color=_LOOK[span.kind], linewidth=0.6, alpha=0.5)
    below.set_ylim(-1.7, max(run.graph.ids) + 0.7)
    below.set_ylabel("peer (-1: network)")
    below.set_xlabel("seconds")
    from matplotlib.patches import Patch

    below.legend(
        handles=[Patch(facecolor=color, label=kind) for kind, color in _LOOK.items()],
        ncols=4, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.18),
    )  # fmt: skip
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

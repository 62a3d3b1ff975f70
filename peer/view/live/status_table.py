"""The table of `peer status`: one line per peer, 16 peers on a screen of 80 x 24; and one peer as a line for a pipe."""

from __future__ import annotations

from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coordinator_free_bootstrap.strict_json import printable
from peer.core.metric import Metric
from peer.store.records import PeerStatus
from peer.view.live.ask import ENDED, has_no_answer
from peer.view.report.tables import shown
from peer.view.state.attendance import hardly_there
from peer.view.state.events import seconds_of
from peer.view.state.graph_files import graph_files
from peer.view.state.peer_state import PeerState, ending
from peer.view.state.places import listed
from peer.view.state.reducer import RunState
from peer.view.state.view import View, alive

NOTES_MAX = 4  # with 16 peers, header and count of the others, 24 lines
MORE_METRICS_SHOWN = 2  # columns of a screen; peer status --json has all
WRAPPED_PEERS_MAX = 8  # with more peers, a note is cut at the width of the screen


def status_table(view: View) -> RenderableType:
    """Return a row per peer, and notes on peers without an answer and on waits for suspect neighbors."""
    state, metric = view.log.state(), view.metric()
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("peer", justify="right", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    table.add_column("round", justify="right", no_wrap=True)
    table.add_column(escape(printable(metric.name, 12)), justify="right", no_wrap=True)
    for more in view.more_metrics()[:MORE_METRICS_SHOWN]:
        table.add_column(escape(printable(more.name, 12)), justify="right", no_wrap=True)
    table.add_column("cluster", justify="right", no_wrap=True)
    table.add_column("waits for")  # the column that becomes narrower; its cells are cut
    table.add_column("alive", justify="right", no_wrap=True)
    table.add_column("since", justify="right", no_wrap=True)
    for peer in state.peers.values():
        cells = _cells(view, state, peer, metric)
        table.add_row(str(peer.peer_id), *(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    short = len(state.peers) > WRAPPED_PEERS_MAX
    overflow: Literal["ellipsis"] | None = "ellipsis" if short else None
    lines = [Text(note, style="yellow", no_wrap=short or None, overflow=overflow) for note in notes(view, state)]
    return Group(table, *lines)


def _cells(view: View, state: RunState, peer: PeerState, metric: Metric) -> tuple[str, ...]:
    """Return phase, round, metrics, cluster, what the peer waits for, live neighbors, and the time since its last change."""
    row, answer = view.peer(peer, state), peer.present_answer
    silent, known = has_no_answer(peer), bool(peer.lines or peer.summary or peer.answer)
    waiting = "-"
    if row.waits_for and answer is not None:  # files of a silent peer name neighbors too, without a time
        waiting = f"{age(answer['waiting_s'])}: {', '.join(map(str, row.waits_for))}"
    unchanged_s = answer["unchanged_s"] if answer is not None else state.at - _last_word_at(peer)
    return (
        row.stage or ending(row.status, row.exit_code),
        _round(view, peer) if known else "-",
        metric.text(row.metric),
        *(
            each.text(value)
            for each, value in list(zip(view.more_metrics(), row.metrics, strict=True))[:MORE_METRICS_SHOWN]
        ),
        shown(row.cluster),
        row.silent if silent else waiting,
        f"{alive(peer)}/{len(answer['neighbors'])}" if answer is not None else "-",
        age(unchanged_s) if known and peer.said_at else "-",
    )


def _last_word_at(peer: PeerState) -> float:
    ended = peer.summary.get("ended_at") if peer.status in ENDED else None
    return seconds_of(ended) if ended else peer.said_at


def _round(view: View, peer: PeerState) -> str:
    manifest = view.graph.manifest if view.graph else None
    said = peer.answer["rounds_total"] if peer.answer is not None else None
    total = said or (manifest.rounds if manifest else "?")
    return f"{peer.rounds_completed}/{total}"


def age(seconds: float) -> str:
    """Return a duration in its largest unit, at most five characters: ``4 s``, ``12 m``, ``3 h``, ``40 d``."""
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / unit_s:.0f} {unit}"
    return f"{min(seconds / 86_400, 999):.0f} d"


def notes(view: View, state: RunState) -> list[str]:
    """Return sentences on graph files, peers without an answer, storage errors and waits for suspect neighbors; equal ones once.

    Of a run that has ended also those on peers that were hardly there.
    """
    found: dict[str, list[int]] = {}
    for peer in state.peers.values():
        if text := _note(view, state, peer):
            found.setdefault(text, []).append(peer.peer_id)
    lines = ["; ".join(files)] if (files := graph_files(state.peers.values())) else []
    lines += [f"peer {listed(ids)}: {text}" for text, ids in found.items()]
    states = {peer.status for peer in state.peers.values()}
    if states & {*ENDED} and "running" not in states:
        lines += [f"warning: {line}" for line in hardly_there(view.log, view.graph)]
    more = [f"and {len(lines) - NOTES_MAX} more notes (peer status --json)"] if len(lines) > NOTES_MAX else []
    return lines[:NOTES_MAX] + more


def _note(view: View, state: RunState, peer: PeerState) -> str:
    if has_no_answer(peer):
        return printable(peer.silent) + _of_files(peer)
    if (answer := peer.present_answer) is None:
        return ""
    if answer["storage_error"]:
        return printable(answer["storage_error"])
    row = view.peer(peer, state)
    if any(peer.neighbors.get(n) == "suspect" for n in row.waits_for):
        return _waited(answer, row.why)
    return row.alone


def sentence(view: View, state: RunState, peer: PeerState) -> str:
    """Return a peer's round, stage and neighbors, what it waits for, and when that wait ends; or how it ended."""
    if has_no_answer(peer):
        return printable(peer.silent) + _of_files(peer)
    if (answer := peer.present_answer) is None:
        line = f"{ending(printable(peer.status, 32), peer.exit_code)} after {peer.rounds_completed} rounds"
        if (best := peer.last.get("best_round")) is not None:
            line += f"; best round {best}, {view.metric().text(peer.last.get('metric_best'))} on its validation samples"
        if (spent := peer.last.get("epsilon")) is not None:
            line += f"; epsilon {spent:.3g}"
        told_by = peer.summary.get("told_by")
        return f"{line}, as peer {listed(told_by)} says" if told_by else line
    row = view.peer(peer, state)
    line = f"round {_round(view, peer).replace('/', ' of ')}, {row.stage}"
    if (spent := answer.get("epsilon")) is not None:
        most = answer.get("epsilon_max")
        line += f"; epsilon {spent:.3g}" + ("" if most is None else f" of {most:g}")
    neighbors = answer["neighbors"]
    line += f"; {alive(peer)} of {len(neighbors)} neighbors alive"
    others = [f"{n} {word}" for n, word in neighbors.items() if word != "alive"]
    line += f" ({', '.join(others)})" if others else ""
    line += f"; {_waited(answer, row.why)}" if row.why else ""
    line += f"; {row.alone}" if row.alone else ""
    line += f"; {printable(answer['storage_error'])}" if answer["storage_error"] else ""
    return line


def _waited(answer: PeerStatus, why: list[str]) -> str:
    return f"has waited {answer['waiting_s']:.1f} s for {printable('; for '.join(why))}"


def _of_files(peer: PeerState) -> str:
    """Return what the files of a silent peer say, or "" if they are not on this machine."""
    if not peer.lines:
        return ""
    return (
        f" ({'its process runs' if peer.held else 'no process here'}; its history has {peer.rounds_completed} rounds)"
    )

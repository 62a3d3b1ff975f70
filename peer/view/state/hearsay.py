"""How silent peers without files here ended, as their neighbors report it."""

from __future__ import annotations

from collections.abc import Iterator

from peer.store.records import Summary
from peer.view.state.events import LoggedEvent


def with_endings(news: list[LoggedEvent]) -> list[LoggedEvent]:
    """Return the events with a ``summary`` in place of the silence of a peer that has ended, as its neighbors say.

    Args:
        news: of one round of questions: an event ``status`` or ``silent`` for each peer.
    """
    endings: dict[int, Summary] = {}
    alive: set[int] = set()
    for event in news:
        for neighbor, state, ending in _said(event):
            if state == "alive":
                alive.add(neighbor)
            elif state == "left":
                known = endings.get(neighbor, ending)
                told_by = sorted({*known["told_by"], *ending["told_by"]})
                # the round of a goodbye may be an older one
                best = ending if ending["status"] == "completed" else known
                endings[neighbor] = {**best, "told_by": told_by}
    return [
        LoggedEvent(event.at, event.peer, {"kind": "summary", "summary": endings[event.peer]})
        if event.kind == "silent" and event.peer in endings.keys() - alive
        else event
        for event in news
    ]


def _said(event: LoggedEvent) -> Iterator[tuple[int, str, Summary]]:
    """Yield what a peer says of its neighbors: id, state, and how the neighbor ended if it left."""
    if event.data["kind"] != "status":
        return
    status = event.data["status"]
    for key, state in status["neighbors"].items():
        done = max(0, status["neighbor_rounds"].get(key, 0))
        ending = "completed" if status["rounds_total"] and done >= status["rounds_total"] else "left"
        yield int(key), state, {"status": ending, "rounds_completed": done, "told_by": [status["peer_id"]]}

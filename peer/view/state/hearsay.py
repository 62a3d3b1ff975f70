"""How silent peers without files here ended: from earlier answers of these peers and of their neighbors."""

from __future__ import annotations

from collections.abc import Iterable

from peer.view.state.events import LoggedEvent, status_of
from peer.view.state.peer_status import PeerStatus
from peer.view.state.records import JsonRecord


class Hearsay:
    """All answers so far; a peer that answers again has not ended."""

    def __init__(self) -> None:
        self._endings: dict[int, JsonRecord] = {}
        self.anyone = False

    def take(self, news: list[LoggedEvent]) -> list[LoggedEvent]:
        """Return the events with a ``summary`` in place of the silence of a peer that is known to have ended.

        Args:
            news: of one round of questions: an event ``status`` or ``silent`` for each peer.
        """
        statuses = [event for event in news if event.kind == "status"]
        self.anyone |= bool(statuses)
        for event in statuses:
            self._hear_neighbors(status_of(event))
        for event in statuses:  # what a peer says itself counts more
            self._hear_itself(event)
        return [self._ended(event) if event.kind == "silent" else event for event in news]

    def _hear_neighbors(self, status: PeerStatus) -> None:
        total = status.rounds_total
        for key, state in status.neighbors.items():
            neighbor, done = int(key), max(0, status.neighbor_rounds.get(key, 0))
            if state == "left":
                self._note(neighbor, "completed" if total and done >= total else "left", done, [status.peer_id])
            elif state == "alive":
                self._endings.pop(neighbor, None)

    def _hear_itself(self, event: LoggedEvent) -> None:
        if event.peer is None:
            return
        status = status_of(event)
        done = status.round_index
        self._endings.pop(event.peer, None)
        if status.outcome:
            self._note(event.peer, status.outcome, done, [])
        elif status.phase == "finished":  # all rounds are done; it answers until its neighbors have finished too
            self._note(event.peer, "completed", done, [])

    def _note(self, peer_id: int, status: str, rounds: int, told_by: Iterable[int]) -> None:
        before = self._endings.get(peer_id, {})
        if before.get("status") == "completed" and status == "left":  # the round of a goodbye may be an older one
            return
        told = sorted({*before.get("told_by", ()), *told_by})
        self._endings[peer_id] = {"status": status, "rounds_completed": rounds, "told_by": told}

    def _ended(self, event: LoggedEvent) -> LoggedEvent:
        ending = self._endings.get(event.peer) if event.peer is not None else None
        return event if ending is None else LoggedEvent(event.at, event.peer, "summary", dict(ending))

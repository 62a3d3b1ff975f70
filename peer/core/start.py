"""The start of an incarnation: how long a peer waits for its neighbors, and when it gives up. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from peer.core.company import Company
from peer.core.state import State


class Start:
    """The part of the engine that decides when the first round of an incarnation may begin."""

    def __init__(self, state: State, company: Company) -> None:
        self._state = state
        self._company = company
        self._began_at: float | None = None
        self._log_after_s = state.manifest.timeouts.suspicion_s  # how long the wait must last to be logged (again)

    def begin(self, now: float) -> None:
        """Note the first event."""
        if self._began_at is None:
            self._began_at = now
            wait_s = self.deadline - now
            self._state.log("info", f"waiting up to {wait_s:g} s for neighbors {list(self._state.neighbors)}")

    @property
    def deadline(self) -> float:
        """When the wait for neighbors is over: after a restart soon, and sooner once one is met or the run is over.

        A peer that goes on alone is ahead of all others before long, and they would skip rounds to catch up with it.
        """
        state = self._state
        wait_s = state.manifest.start.deadline_s
        if state.resumed:
            met = bool(state.live()) or state.round.index >= state.manifest.rounds
            wait_s = state.manifest.timeouts.suspicion_s if met else min(wait_s, self._company.absence_s)
        return (self._began_at or 0.0) + wait_s

    def is_refused(self) -> bool:
        """Return whether every neighbor has refused this peer, and run.start.wait_for does not let it train alone; log it."""
        state = self._state
        if state.manifest.start.wait_for == "deadline" or not state.refused_by_all():
            return False
        reasons = "; ".join(f"peer {n}: {neighbor.refusal}" for n, neighbor in state.neighbors.items())
        state.log("error", f'refused by all neighbors; run.start.wait_for = "deadline" would train alone: {reasons}')
        return True

    def may_begin(self, now: float) -> bool:
        """Return whether enough neighbors are met, or the wait is over; log who is absent then."""
        state, absent = self._state, self._company.absent_at_start(now)
        count = len(state.neighbors)
        enough = count - len(absent) >= state.manifest.start.share * count
        if not enough and (now < self.deadline or self._company.is_awaited()):
            return False
        if absent:
            waited_s = now - (self._began_at or 0.0)
            state.log("warning", f"starting without {absent}, not met in {waited_s:.0f} s; run.start sets this wait")
        return True

    def log_wait(self, now: float) -> None:
        """Log what a long start waits for, ever more rarely."""
        state, waited_s = self._state, now - (self._began_at or 0.0)
        if now >= (self._began_at or 0.0) + self._log_after_s:  # the sum that the timer was set to
            left_s = max(0.0, self.deadline - now)
            absent = self._company.absent_at_start(now)
            state.log("info", f"waiting for neighbors {absent}: {waited_s:.0f} s so far, {left_s:.0f} s at most to go")
            self._log_after_s = max(2 * waited_s, state.manifest.timeouts.suspicion_s)

    def next_time(self, now: float) -> Iterator[float]:
        """Yield the times at which something is due here by itself."""
        yield self.deadline
        yield (self._began_at or 0.0) + self._log_after_s
        yield from (at for at in map(self._company.may_return_until, self._state.neighbors.values()) if at > now)

"""Failure detection: the state of each neighbor as this peer alone sees it. Pure; the caller passes monotonic seconds.

    unknown --answers--> alive       alive --silent for half the suspicion time, or a call fails--> suspect
    suspect --silent for the suspicion time--> dead        alive, suspect, dead, unknown --says goodbye--> left
    suspect --heard--> alive         dead --answers--> alive        left --heard in a new incarnation--> unknown
    alive, suspect --calls fail, and only fail, for twice the suspicion time--> dead

A neighbor that is heard but does not answer is not alive. Otherwise a link that is cut in one direction, or a neighbor
behind a closed port, would become alive with every message, and rounds would wait for a neighbor that cannot be reached.

If this peer was paused itself, its neighbors' silence is its own. A check that comes more than a heartbeat after the time that
`next_check` named therefore restarts every silence, once for each neighbor until that neighbor is heard again: a peer that
is always late still detects a death. Suspects stay suspect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from coordinator_free_bootstrap.manifest import Timeouts


class NeighborState(StrEnum):
    """The state of a neighbor."""

    UNKNOWN = "unknown"  # not met yet
    ALIVE = "alive"
    SUSPECT = "suspect"  # silent; counts as live until the suspicion time is over
    DEAD = "dead"  # not waited for; alive again as soon as it answers
    LEFT = "left"  # said goodbye; returns only in a new incarnation


LIVE = (NeighborState.ALIVE, NeighborState.SUSPECT)


@dataclass(frozen=True, slots=True)
class Change:
    """A neighbor's transition and its reason, in words; a restart may leave the state as it was."""

    before: NeighborState
    after: NeighborState
    reason: str


@dataclass(slots=True)
class Liveness:
    """The state of one neighbor; mutated by its own methods only."""

    timeouts: Timeouts
    state: NeighborState = NeighborState.UNKNOWN
    heard_at: float = 0.0
    excused: bool = False  # this silence was restarted once
    failing_since: float | None = None  # the first failed call since the neighbor last answered in this incarnation
    failed_at: float = 0.0  # the last failed call

    @property
    def is_live(self) -> bool:
        """Whether the neighbor is alive or suspect: a round waits for it."""
        return self.state in LIVE

    @property
    def must_answer(self) -> bool:
        """Whether the neighbor, though heard, is not alive before a call to it is answered."""
        return self.state in (NeighborState.UNKNOWN, NeighborState.DEAD)

    def silence_s(self, now: float) -> float:
        """Return the seconds since the neighbor was last heard."""
        return now - self.heard_at

    def heard(self, now: float, restarted_as: int | None = None) -> Change | None:
        """Note a verified message that the neighbor sent on its own; ``restarted_as`` names a new incarnation."""
        if self.state is NeighborState.LEFT and restarted_as is None:
            return None
        after = {NeighborState.SUSPECT: NeighborState.ALIVE, NeighborState.LEFT: NeighborState.UNKNOWN}
        return self._lives(after.get(self.state, self.state), "heard", restarted_as, now)

    def answered(self, now: float, restarted_as: int | None = None) -> Change | None:
        """Note that the neighbor answered a call: messages pass in both directions."""
        if self.state is NeighborState.LEFT and restarted_as is None:
            return None
        self.failing_since = None
        return self._lives(NeighborState.ALIVE, "answered", restarted_as, now)

    def call_failed(self, now: float) -> Change | None:
        """Note that a call to the neighbor failed: an alive neighbor is suspect at once.

        It dies by silence; or, while it is heard, when calls have failed for twice the suspicion time. Two failures that
        are further apart than that do not add up: this peer was paused between them.
        """
        if not self.is_live:
            return None
        patience_s = 2 * self.timeouts.suspicion_s
        if self.failing_since is None or now - self.failed_at >= patience_s:
            self.failing_since = now
        self.failed_at = now
        failing_s = now - self.failing_since
        if failing_s >= patience_s:
            return self._move(NeighborState.DEAD, f"heard, but answers no call for {failing_s:.1f} s")
        if self.state is NeighborState.SUSPECT:
            return None
        return self._move(NeighborState.SUSPECT, f"a call failed {self.silence_s(now):.1f} s after it was heard")

    def left(self, now: float) -> Change | None:
        """Note a goodbye of the present incarnation."""
        self.heard_at, self.excused, self.failing_since = now, False, None
        return self._move(NeighborState.LEFT, "said goodbye")

    def check(self, now: float) -> Change | None:
        """Judge the silence."""
        reason = f"silent for {self.silence_s(now):.1f} s"
        if self.is_live and now >= self.heard_at + self.timeouts.suspicion_s:
            return self._move(NeighborState.DEAD, reason)
        if self.state is NeighborState.ALIVE and now >= self.heard_at + self.timeouts.suspicion_s / 2:
            return self._move(NeighborState.SUSPECT, reason)
        return None

    def check_at(self) -> float | None:
        """Return when `check` can next change something; None if the neighbor is not live."""
        if self.state not in LIVE:
            return None
        share = 0.5 if self.state is NeighborState.ALIVE else 1.0
        return self.heard_at + share * self.timeouts.suspicion_s

    def _lives(self, after: NeighborState, how: str, restarted_as: int | None, now: float) -> Change | None:
        self.heard_at, self.excused = now, False
        if restarted_as is None:
            return self._move(after, how)
        self.failing_since = None
        before, self.state = self.state, after
        return Change(before, after, f"restarted as incarnation {restarted_as}")

    def _move(self, after: NeighborState, reason: str) -> Change | None:
        before, self.state = self.state, after
        return None if before is after else Change(before, after, reason)


def next_check(neighbors: Iterable[Liveness]) -> float | None:
    """Return when `check_all` can next change something; None while no neighbor is live."""
    first: float | None = None
    for neighbor in neighbors:
        at = neighbor.check_at()
        if at is not None and (first is None or at < first):
            first = at
    return first


def check_all(neighbors: Mapping[int, Liveness], now: float, heartbeat_s: float) -> dict[int, Change]:
    """Judge all silences and return the changes by neighbor; call it no later than `next_check` says."""
    due = next_check(neighbors.values())
    if due is None or now < due:
        return {}
    if now > due + heartbeat_s:  # this peer was paused
        for neighbor in neighbors.values():
            if neighbor.is_live and not neighbor.excused:
                neighbor.heard_at, neighbor.excused = now, True
    changes = {n: neighbor.check(now) for n, neighbor in neighbors.items()}
    return {n: change for n, change in changes.items() if change is not None}

"""Who is there: each neighbor's state as this peer alone sees it. Pure; the caller passes monotonic seconds.

    unknown --it answers--> alive --half the suspicion time of silence, or a failed contact--> suspect
    suspect --suspicion time of silence--> dead                alive, suspect, dead, unknown --it says so--> left
    suspect --heard--> alive          dead --it answers--> alive          left --heard in a new life--> unknown

    alive, suspect --calls fail, and only fail, for twice the suspicion time--> dead

Who is heard but does not answer is not alive: a link that is cut one way, or a neighbor behind a closed port, would come
alive with every word, and each time rounds would wait for one that cannot be reached.

Incarnations only grow. What comes from an older life of a neighbor, or from one that has left, is ignored and counted.

If this peer was itself paused, its neighbors' silence is its own: a tick that comes more than a heartbeat after the
time `next_deadline` named measures every silence anew from that tick. It does so once for each neighbor until that
neighbor is heard again, so that a peer which is always late still notices a death. Suspects stay suspect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from coordinator_free_bootstrap.errors import LocalProtocolError
from coordinator_free_bootstrap.manifest import Timeouts


class NeighborState(StrEnum):
    """What this peer holds a neighbor to be."""

    UNKNOWN = "unknown"  # not seen yet: it may still come
    ALIVE = "alive"
    SUSPECT = "suspect"  # silent; counts as alive until the suspicion time is over
    DEAD = "dead"  # nobody waits for it; it is alive again as soon as it answers
    LEFT = "left"  # it said goodbye: no suspicion, and no return in this incarnation


_LIVE = (NeighborState.ALIVE, NeighborState.SUSPECT)
_ONCE_HEARD = {
    NeighborState.SUSPECT: NeighborState.ALIVE,
    NeighborState.LEFT: NeighborState.UNKNOWN,
}  # left: a new life


@dataclass(frozen=True, slots=True)
class Change:
    """A neighbor's transition, with its incarnation before and after, and why, in words."""

    neighbor: int
    before: NeighborState
    after: NeighborState
    old_incarnation: int
    incarnation: int
    reason: str

    @property
    def restarted(self) -> bool:
        """Whether a known neighbor came back in a new life: whatever it had been told is forgotten there."""
        return 0 < self.old_incarnation < self.incarnation


@dataclass(slots=True)
class _Record:
    state: NeighborState = NeighborState.UNKNOWN
    incarnation: int = 0  # 0: never seen
    heard_at: float = 0.0
    excused: bool = False  # this silence has been measured anew once
    failing_since: float | None = None  # the first of the failed calls since it last answered in this life
    failed_at: float = 0.0  # the last of them


class Membership:
    """The states of one peer's neighbors; mutated by its own methods only.

    Args:
        neighbors: their ids, all unknown at first.
        timeouts: heartbeat and suspicion time.
    """

    def __init__(self, neighbors: Iterable[int], timeouts: Timeouts) -> None:
        self._records = {neighbor: _Record() for neighbor in sorted(neighbors)}
        self._timeouts = timeouts
        self.ignored_count = 0  # signs of life from an older life, or after a goodbye
        self.pause_count = 0  # times this peer noticed that it had been paused itself

    @property
    def states(self) -> dict[int, NeighborState]:
        """Each neighbor's state, by ascending id."""
        return {neighbor: record.state for neighbor, record in self._records.items()}

    def state(self, neighbor: int) -> NeighborState:
        """Return one neighbor's state."""
        return self._record(neighbor).state

    @property
    def live(self) -> tuple[int, ...]:
        """Neighbors that are alive or suspect, ascending: those a round waits for."""
        return tuple(neighbor for neighbor, record in self._records.items() if record.state in _LIVE)

    def is_live(self, neighbor: int) -> bool:
        """Return whether one neighbor is alive or suspect."""
        return self._record(neighbor).state in _LIVE

    def must_answer(self, neighbor: int) -> bool:
        """Return whether a neighbor, though heard, is not alive before a call to it is answered."""
        return self._record(neighbor).state in (NeighborState.UNKNOWN, NeighborState.DEAD)

    def incarnation(self, neighbor: int) -> int:
        """Return the highest incarnation seen of a neighbor; 0 if none."""
        return self._record(neighbor).incarnation

    def heard(self, neighbor: int, incarnation: int, now: float) -> list[Change]:
        """Note a sign of life: a verified message that this neighbor sent by itself in this incarnation."""
        record = self._record(neighbor)
        if not self._listens(record, incarnation):
            return []
        return self._lives(neighbor, _ONCE_HEARD.get(record.state, record.state), "heard", incarnation, now)

    def answered(self, neighbor: int, incarnation: int, now: float) -> list[Change]:
        """Note that a call to this neighbor was answered by this incarnation: words pass in both directions."""
        if not self._listens(self._record(neighbor), incarnation):
            return []
        self._record(neighbor).failing_since = None
        return self._lives(neighbor, NeighborState.ALIVE, "answered", incarnation, now)

    def contact_failed(self, neighbor: int, now: float) -> list[Change]:
        """Note that a call to a neighbor failed: an alive one is suspect at once.

        Its death waits for the silence; or, as long as it is heard, until calls have failed for twice the suspicion time,
        one soon after another: between two failures that are further apart this peer was paused itself.
        """
        record = self._record(neighbor)
        if record.state not in _LIVE:
            return []
        patience_s = 2 * self._timeouts.suspicion_s
        if record.failing_since is None or now - record.failed_at >= patience_s:
            record.failing_since = now
        record.failed_at = now
        failing_s = now - record.failing_since
        if failing_s >= patience_s:
            return self._move(neighbor, NeighborState.DEAD, f"heard, but answers no call for {failing_s:.1f} s")
        if record.state is NeighborState.SUSPECT:
            return []
        return self._move(
            neighbor, NeighborState.SUSPECT, f"contact failed {now - record.heard_at:.1f} s after it was heard"
        )

    def left(self, neighbor: int, incarnation: int, now: float) -> list[Change]:
        """Note a goodbye; it holds for this incarnation and all older ones."""
        record = self._record(neighbor)
        if incarnation < record.incarnation:
            self.ignored_count += 1
            return []
        record.heard_at, record.excused, record.failing_since = now, False, None
        return self._move(neighbor, NeighborState.LEFT, "said goodbye", incarnation)

    def tick(self, now: float) -> list[Change]:
        """Judge all silences; call it no later than `next_deadline` says, and as often as you like."""
        due = self._due()
        if due is None or now < due:
            return []
        if now > due + self._timeouts.heartbeat_s:
            self._excuse(now)
        changes = []
        for neighbor, record in self._records.items():
            silence = f"silent for {now - record.heard_at:.1f} s"
            if record.state in _LIVE and now >= self._death(record):
                changes += self._move(neighbor, NeighborState.DEAD, silence)
            elif record.state is NeighborState.ALIVE and now >= self._suspicion(record):
                changes += self._move(neighbor, NeighborState.SUSPECT, silence)
        return changes

    def next_deadline(self, now: float) -> float | None:
        """Return when `tick` can next change something, never before ``now``; None while nobody is live."""
        due = self._due()
        return None if due is None else max(now, due)

    def as_dict(self, now: float) -> dict[str, Any]:
        """Return the state as JSON values, with silences in seconds instead of times of this process's clock."""
        return {
            "neighbors": {
                str(neighbor): {
                    "state": record.state.value,
                    "incarnation": record.incarnation,
                    "silence_s": now - record.heard_at if record.incarnation else None,
                    "excused": record.excused,
                    "failing_s": None if record.failing_since is None else now - record.failing_since,
                    "failed_s": None if record.failing_since is None else now - record.failed_at,
                }
                for neighbor, record in self._records.items()
            },
            "ignored_count": self.ignored_count,
            "pause_count": self.pause_count,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], timeouts: Timeouts, now: float) -> Self:
        """Return the membership that `as_dict` described, its silences continued from ``now``."""
        self = cls((int(neighbor) for neighbor in data["neighbors"]), timeouts)
        for neighbor, row in data["neighbors"].items():
            record = self._records[int(neighbor)]
            record.state, record.incarnation = NeighborState(row["state"]), row["incarnation"]
            record.heard_at, record.excused = now - (row["silence_s"] or 0.0), row["excused"]
            if row["failing_s"] is not None:
                record.failing_since, record.failed_at = now - row["failing_s"], now - row["failed_s"]
        self.ignored_count, self.pause_count = data["ignored_count"], data["pause_count"]
        return self

    def _record(self, neighbor: int) -> _Record:
        try:
            return self._records[neighbor]
        except KeyError:
            raise LocalProtocolError(f"membership of peer {neighbor}: it is not a neighbor; screen it first") from None

    def _listens(self, record: _Record, incarnation: int) -> bool:
        """Return whether a life of a neighbor is still heard; count what is ignored."""
        gone = record.state is NeighborState.LEFT and incarnation == record.incarnation
        ignored = incarnation < record.incarnation or gone
        self.ignored_count += ignored
        return not ignored

    def _lives(self, neighbor: int, after: NeighborState, how: str, incarnation: int, now: float) -> list[Change]:
        record = self._records[neighbor]
        record.heard_at, record.excused = now, False
        if incarnation > record.incarnation:
            record.failing_since = None
        reason = f"restarted as incarnation {incarnation}" if incarnation > record.incarnation > 0 else how
        return self._move(neighbor, after, reason, incarnation)

    def _move(self, neighbor: int, after: NeighborState, reason: str, incarnation: int | None = None) -> list[Change]:
        record = self._records[neighbor]
        before, old = record.state, record.incarnation
        record.state, record.incarnation = after, old if incarnation is None else incarnation
        if (before, old) == (record.state, record.incarnation):
            return []
        return [Change(neighbor, before, after, old, record.incarnation, reason)]

    def _suspicion(self, record: _Record) -> float:
        return record.heard_at + self._timeouts.suspicion_s / 2

    def _death(self, record: _Record) -> float:
        return record.heard_at + self._timeouts.suspicion_s

    def _due(self) -> float | None:
        times = (
            self._suspicion(record) if record.state is NeighborState.ALIVE else self._death(record)
            for record in self._records.values()
            if record.state in _LIVE
        )
        return min(times, default=None)

    def _excuse(self, now: float) -> None:
        silent = [record for record in self._records.values() if record.state in _LIVE and not record.excused]
        for record in silent:
            record.heard_at, record.excused = now, True
        self.pause_count += bool(silent)

"""Bookkeeping of arrivals: offered, reading, complete, folding; models folded before; receive buffers. Pure.

Exactly once: (neighbor, slot) -> (round, step) of the last folded model only grows, and survives restarts of both ends in
their checkpoints. A neighbor that restarts and sends the same round again gets the answer `duplicate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.manifest import Timeouts
from peer.core.averaging import Vector
from peer.core.messages import ModelHeader, PushReply
from peer.core.neighbor import RoundStep

EMPTY = np.empty(0, np.uint8)

SLOW = 4.0  # a transfer is slow if it takes this many times the median of the other neighbors' last transfers
REMEMBERED = 0.8  # of how long a neighbor's transfers took, at each quicker one
FAILED = 4.0  # a transfer that brought no model counts this many times
GIVEN_UP = 8.0  # a transfer that was given up counts as this many times what is slow
PAUSE = (
    19.0  # with a single buffer, a slow neighbor first leaves it to the others this many times as long as it gets it
)


@dataclass(eq=False)
class Arrival:
    """One model of a neighbor, from its offer to its fold: the world makes it, the wire fills it, the host folds it.

    The engine moves it from table to table and looks at its header only.

    Attributes:
        header: what was offered.
        buffer: uint8 [size_bytes], contiguous: the encoded model, reserved when it may be read.
        model: float32 [d], if it is decoded; for encoding float32 a view of ``buffer``. A read-only one is shared with other
            receivers, and copied before it is changed or kept.
        stream: its number at this peer; the order of offers.
        norm_squared: sum of squares of a complete model; None for encodings whose values are checked when they are decoded.
        read_at: when its first payload byte was asked for, in seconds of the world's clock.
        verdict: the reply to the sender, set if the model was given up before it was complete.
        release: set by the wire while it reads; makes it forget the buffer.
    """

    header: ModelHeader
    buffer: NDArray[np.uint8] = field(default_factory=lambda: EMPTY, repr=False)
    model: Vector | None = field(default=None, repr=False)
    stream: int = 0
    norm_squared: float | None = None
    read_at: float = 0.0
    verdict: PushReply | None = None
    release: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def sender(self) -> int:
        """The neighbor."""
        return self.header.sender

    def give_up(self, verdict: PushReply) -> None:
        """Answer before the model is complete: its memory is free from now on, and the remaining frames are discarded."""
        self.verdict = verdict
        if self.release is not None:
            self.release()
        self.drop()

    def drop(self) -> None:
        """Forget the bytes."""
        self.buffer, self.model = EMPTY, None


@dataclass
class Arrivals:
    """The arrivals of one peer, by stream number."""

    offered: dict[int, Arrival] = field(default_factory=dict)  # unread; the sender is held by flow control
    reading: dict[int, Arrival] = field(default_factory=dict)
    complete: dict[int, Arrival] = field(default_factory=dict)  # in their buffers, waiting for their turn
    folding: dict[int, Arrival] = field(default_factory=dict)
    folded: dict[tuple[int, int], RoundStep] = field(default_factory=dict)  # (neighbor, slot) -> last (round, step)
    folded_in_round: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # (neighbor, slot, step)

    def buffers(self) -> int:
        """Return how many model buffers are in use."""
        return len(self.reading) + len(self.complete) + len(self.folding)

    def unanswered(self) -> list[Arrival]:
        """Return every arrival that is not yet answered."""
        return [*self.offered.values(), *self.reading.values(), *self.complete.values()]

    def unread_of(self, neighbor: int) -> list[Arrival]:
        """Return the arrivals of a neighbor that are unread or being read."""
        unread = [*self.offered.values(), *self.reading.values()]
        return [arrival for arrival in unread if arrival.sender == neighbor]

    def is_reading_from(self, neighbor: int) -> bool:
        """Return whether a model of a neighbor is being read."""
        return any(arrival.sender == neighbor for arrival in self.reading.values())

    def is_complete_from(self, neighbor: int, round_step: RoundStep) -> bool:
        """Return whether a model of a neighbor's step waits for its turn in a buffer."""
        headers = [arrival.header for arrival in self.complete.values()]
        return any(h.sender == neighbor and (h.round_index, h.step) == round_step for h in headers)

    def senders_at(self, round_step: RoundStep) -> set[int]:
        """Return the neighbors of whom a model of a step is offered or complete."""
        headers = [arrival.header for table in (self.offered, self.complete) for arrival in table.values()]
        return {header.sender for header in headers if (header.round_index, header.step) == round_step}

    def unread_copy(self, header: ModelHeader) -> Arrival | None:
        """Return an unread arrival of the same model, left over from a broken connection."""
        unread = [*self.offered.values(), *self.reading.values()]
        return next((other for other in unread if other.header.key == header.key), None)

    def forget(self, arrival: Arrival) -> bool:
        """Drop an arrival; return whether it was known."""
        tables = (self.offered, self.reading, self.complete, self.folding)
        return any([table.pop(arrival.stream, None) is not None for table in tables])

    def is_duplicate(self, header: ModelHeader) -> bool:
        """Return whether this model, or a later one of the same slot, was folded before."""
        last = self.folded.get((header.sender, header.slot))
        return last is not None and last >= (header.round_index, header.step)

    def has_complete(self, header: ModelHeader) -> bool:
        """Return whether the same model is complete and waits for its turn."""
        return any(other.header.key == header.key for other in self.complete.values())

    def mark_folded(self, header: ModelHeader) -> None:
        """Remember, for good, that a model is folded (or kept until the round closes)."""
        self.folded[header.sender, header.slot] = (header.round_index, header.step)
        self.folded_in_round[header.sender, header.slot, header.step] += 1

    def count_in_round(self, header: ModelHeader) -> int:
        """Return how many models of this sender and slot were folded in the present round."""
        return self.folded_in_round[header.sender, header.slot, header.step]

    def as_rows(self) -> list[list[int]]:
        """Return ``folded`` for a checkpoint: [neighbor, slot, round, step] a row."""
        return [[sender, slot, *round_step] for (sender, slot), round_step in sorted(self.folded.items())]

    def restore(self, rows: Sequence[Sequence[int]]) -> None:
        """Take the rows of a checkpoint."""
        self.folded = {(int(r[0]), int(r[1])): (int(r[2]), int(r[3])) for r in rows}


class Buffers:
    """Which neighbor gets a receive buffer, so that no neighbor takes all of them.

    All neighbors share the buffers, and a model keeps its buffer from its first byte to its fold. So

    - a neighbor has one model read at a time, however many it offers;
    - where models are folded as they come, the neighbor that was read longest ago comes first;
    - neighbors whose transfers take far longer than those of the others have all buffers but one at most;
    - if such transfers hold all buffers nevertheless and another neighbor waits, the longest is given up. Its sender repeats it.

    With a single buffer a slow neighbor has it for a twentieth of the time at most, and each time twice as long as before, so
    that an honest one succeeds in the end. A transfer is slow in comparison with those of the other neighbors.

    Args:
        arrivals: what is offered, read and complete.
        most: how many there are (`Constants.concurrent_receives`).
        timeouts: of the manifest.
        refuse: gives an arrival up.
    """

    def __init__(
        self, arrivals: Arrivals, most: int, timeouts: Timeouts, refuse: Callable[[Arrival, Refusal], None]
    ) -> None:
        self._arrivals = arrivals
        self._most = most
        self._timeouts = timeouts
        self._refuse = refuse
        self._began: dict[int, tuple[Arrival, float]] = {}  # by stream: what is being read, since when
        self._took_s: dict[int, float] = {}  # by neighbor
        self._read_at: dict[int, float] = {}  # by neighbor: when its last transfer ended
        self._granted_s: dict[int, float] = {}  # with a single buffer: how long a slow neighbor may have it next time
        self._pause_until: dict[int, float] = {}

    def note(self, now: float) -> None:
        """Note the transfers that ended since the last call."""
        if not self._began:
            return
        for stream in self._began.keys() - self._arrivals.reading.keys():
            arrival, began_at = self._began.pop(stream)
            sender, took_s = arrival.sender, now - began_at
            counted_s = took_s if stream in self._arrivals.complete else FAILED * took_s
            self._took_s[sender] = max(counted_s, REMEMBERED * self._took_s.get(sender, 0.0))
            self._read_at[sender] = now
            if self._most == 1 and self._is_slow(sender, now):
                self._granted_s[sender] = 2 * took_s
                self._pause_until[sender] = now + PAUSE * self._granted_s[sender]

    def in_order(self, *, by_round: bool) -> list[Arrival]:
        """Return the offered models as they are to be read: by round and neighbor, or neighbors in rotation."""
        offered = self._arrivals.offered.values()
        if by_round:
            return sorted(offered, key=fold_order)
        return sorted(offered, key=lambda each: (self._read_at.get(each.sender, 0.0), fold_order(each)))

    def has_room(self, sender: int, turn: int | None, now: float, *, in_turn: bool) -> bool:
        """Return whether a model may be read now; where one neighbor has the turn, a buffer stays free for it."""
        arrivals, free = self._arrivals, self._most - self._arrivals.buffers()
        if free < 1 or arrivals.is_reading_from(sender):
            return False
        if turn is None and self._is_slow(sender, now):
            if self._most == 1:
                return now >= self._pause_until.get(sender, 0.0) and not self._prompt_waits(now)
            return sum(self._is_slow(other.sender, now) for other, _ in self._began.values()) < self._most - 1
        return free > 1 or in_turn or any(each.sender == turn for each in arrivals.reading.values())

    def begin(self, arrival: Arrival, now: float) -> None:
        """Note that a model is read from now on."""
        self._began[arrival.stream] = arrival, now

    def give_up_slow(self, now: float) -> None:
        """If slow transfers hold all buffers and another neighbor waits, give up the longest one."""
        if not self._prompt_waits(now) or len(self._began) < self._most:
            return
        if any(now < self._may_last_until(stream) for stream in self._began):
            return
        arrival, _ = min(self._began.values(), key=lambda began: began[1])
        sender = arrival.sender
        reason = "the transfer is slow, and other neighbors wait for its buffer; send again later"
        self._refuse(arrival, Refusal(RefusalCode.TOO_SLOW, reason))
        self._took_s[sender] = max(self._took_s.get(sender, 0.0), GIVEN_UP * self._slow_s(sender))
        self.note(now)

    def next_time(self, now: float) -> Iterator[float]:
        """Yield when a transfer may have to be given up, and when a pause ends, if anything waits for that."""
        if not self._arrivals.offered:
            return
        times = [*self._pause_until.values()]
        if len(self._began) == self._most:
            times.append(max(self._may_last_until(stream) for stream in self._began))
        yield from (at for at in times if at > now)

    def _may_last_until(self, stream: int) -> float:
        """Return when a transfer has lasted long enough: with a single buffer, twice as long as the neighbor's last one."""
        arrival, began_at = self._began[stream]
        return began_at + max(self._slow_s(arrival.sender), self._granted_s.get(arrival.sender, 0.0))

    def _prompt_waits(self, now: float) -> bool:
        """Return whether a neighbor that is not slow, and of which nothing is read, offers a model."""
        arrivals = self._arrivals
        waiting = {arrival.sender for arrival in arrivals.offered.values()}
        return any(not self._is_slow(n, now) and not arrivals.is_reading_from(n) for n in waiting)

    def _is_slow(self, neighbor: int, now: float) -> bool:
        """Return whether the last transfers of a neighbor were slow, or the present one is."""
        lasts_s = [now - at for arrival, at in self._began.values() if arrival.sender == neighbor]
        return max([*lasts_s, self._took_s.get(neighbor, 0.0)]) > self._slow_s(neighbor)

    def _slow_s(self, neighbor: int) -> float:
        """Return how long a transfer may take and not be slow: never less than a heartbeat interval."""
        others = sorted(took_s for n, took_s in self._took_s.items() if n != neighbor)
        usual_s = others[(len(others) - 1) // 2] if others else self._timeouts.suspicion_s / SLOW
        return max(self._timeouts.heartbeat_s, SLOW * usual_s)


def fold_order(arrival: Arrival) -> tuple[int, ...]:
    """Return the key by which arrivals are folded: round, step, neighbor, index."""
    header = arrival.header
    return (header.round_index, header.step, header.sender, header.index, arrival.stream)

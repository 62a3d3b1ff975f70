"""Bookkeeping of arrivals: offered, reading, complete, folding; and which models were folded before. Pure.

Exactly once: (neighbor, slot) -> (round, step) of the last folded model only grows, and survives restarts of both ends in
their checkpoints. A neighbor that restarts and sends the same round again gets the answer `duplicate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from peer.core.averaging import Vector
from peer.core.messages import ModelHeader, PushReply
from peer.core.outbox import RoundStep

EMPTY = np.empty(0, np.uint8)


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
        on_frame: called with every frame: on a slow link heartbeats wait behind the model, so a frame stands for one.
        release: set by the wire while it reads; makes it forget the buffer.
    """

    header: ModelHeader
    buffer: NDArray[np.uint8] = field(default_factory=lambda: EMPTY, repr=False)
    model: Vector | None = field(default=None, repr=False)
    stream: int = 0
    norm_squared: float | None = None
    read_at: float = 0.0
    verdict: PushReply | None = None
    on_frame: Callable[[], None] = field(default=lambda: None, repr=False)
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

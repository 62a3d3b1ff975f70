"""Bookkeeping of arrivals: offered, reading, complete, folding; and which models were folded before. Pure.

Exactly once: (neighbor, slot) -> (round, step) of the last folded model only grows, and survives restarts of both ends in
their checkpoints. A neighbor that restarts and sends the same round again gets the answer `duplicate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from peer.core.messages import ModelHeader
from peer.core.outbox import RoundStep


@dataclass
class Arrivals:
    """The arrivals of one peer, by stream number."""

    offered: dict[int, ModelHeader] = field(default_factory=dict)  # unread; the sender is held by flow control
    reading: dict[int, ModelHeader] = field(default_factory=dict)
    complete: dict[int, ModelHeader] = field(default_factory=dict)  # in their buffers, waiting for their turn
    folding: dict[int, ModelHeader] = field(default_factory=dict)
    folded: dict[tuple[int, int], RoundStep] = field(default_factory=dict)  # (neighbor, slot) -> last (round, step)
    folded_in_round: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # (neighbor, slot, step)

    def buffers(self) -> int:
        """Return how many model buffers are in use."""
        return len(self.reading) + len(self.complete) + len(self.folding)

    def open_streams(self) -> list[int]:
        """Return every stream that is not yet answered."""
        return [*self.offered, *self.reading, *self.complete]

    def unread_of(self, neighbor: int) -> list[int]:
        """Return the streams of a neighbor that are unread or being read."""
        return [s for table in (self.offered, self.reading) for s, header in table.items() if header.sender == neighbor]

    def is_reading_from(self, neighbor: int) -> bool:
        """Return whether a model of a neighbor is being read."""
        return any(header.sender == neighbor for header in self.reading.values())

    def is_complete_from(self, neighbor: int, round_step: RoundStep) -> bool:
        """Return whether a model of a neighbor's step waits for its turn in a buffer."""
        headers = self.complete.values()
        return any(h.sender == neighbor and (h.round_index, h.step) == round_step for h in headers)

    def senders_at(self, round_step: RoundStep) -> set[int]:
        """Return the neighbors of whom a model of a step is offered or complete."""
        headers = [*self.offered.values(), *self.complete.values()]
        return {header.sender for header in headers if (header.round_index, header.step) == round_step}

    def unread_copy(self, header: ModelHeader) -> int | None:
        """Return an unread stream that carries the same model, left over from a broken connection."""
        for table in (self.offered, self.reading):
            for stream, other in table.items():
                if other.key == header.key:
                    return stream
        return None

    def forget(self, stream: int) -> ModelHeader | None:
        """Drop a stream and return its header."""
        for table in (self.offered, self.reading, self.complete, self.folding):
            if stream in table:
                return table.pop(stream)
        return None

    def is_duplicate(self, header: ModelHeader) -> bool:
        """Return whether this model, or a later one of the same slot, was folded before."""
        last = self.folded.get((header.sender, header.slot))
        return last is not None and last >= (header.round_index, header.step)

    def has_complete(self, header: ModelHeader) -> bool:
        """Return whether the same model is complete and waits for its turn."""
        return any(other.key == header.key for other in self.complete.values())

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

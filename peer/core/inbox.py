"""Streams that neighbors have opened: which are unread, being read, or complete and waiting for their turn; and what was folded.

Exactly once: (neighbor, slot) -> (round, step) grows only, and survives restarts of both ends in their checkpoints. A
neighbor's new life that sends the same round again is answered `duplicate`. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from peer.core.messages import ModelHeader
from peer.core.neighbors import Place


@dataclass
class Inbox:
    """Bookkeeping of arrivals at one peer."""

    held: dict[int, ModelHeader] = field(default_factory=dict)  # unread, behind flow control
    reading: dict[int, ModelHeader] = field(default_factory=dict)  # admitted: bytes are coming in
    waiting: dict[int, ModelHeader] = field(default_factory=dict)  # complete in their buffers, not their turn yet
    folding: dict[int, ModelHeader] = field(default_factory=dict)
    marks: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    taken: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # this round: of (neighbor, slot, step)

    def buffers(self) -> int:
        """Return how many model buffers are in use."""
        return len(self.reading) + len(self.waiting) + len(self.folding)

    def streams_of(self, neighbor: int) -> list[int]:
        """Return the unread and half-read streams of a neighbor."""
        return [stream for table in (self.held, self.reading) for stream, h in table.items() if h.sender == neighbor]

    def is_read_from(self, neighbor: int) -> bool:
        """Return whether a neighbor's bytes are coming in."""
        return any(header.sender == neighbor for header in self.reading.values())

    def offered_by(self, place: Place) -> set[int]:
        """Return the neighbors whose models of a (round, step) are here, unread or complete."""
        headers = [*self.held.values(), *self.waiting.values()]
        return {header.sender for header in headers if (header.round_index, header.step) == place}

    def same(self, header: ModelHeader) -> int | None:
        """Return an unread or half-read stream that carries the same model, left over from a broken connection."""
        for table in (self.held, self.reading):
            for stream, other in table.items():
                if other.key == header.key:
                    return stream
        return None

    def forget(self, stream: int) -> ModelHeader | None:
        """Drop a stream wherever it is."""
        for table in (self.held, self.reading, self.waiting, self.folding):
            if stream in table:
                return table.pop(stream)
        return None

    def is_duplicate(self, header: ModelHeader) -> bool:
        """Return whether this model, or a later one of the same slot, was folded already."""
        mark = self.marks.get((header.sender, header.slot))
        return mark is not None and mark >= (header.round_index, header.step)

    def is_here(self, header: ModelHeader) -> bool:
        """Return whether this very model is complete already and waits for its turn."""
        return any(other.key == header.key for other in self.waiting.values())

    def mark(self, header: ModelHeader) -> None:
        """Remember that a model is folded (or kept for the close), for good."""
        self.marks[header.sender, header.slot] = (header.round_index, header.step)
        self.taken[header.sender, header.slot, header.step] += 1

    def is_outvoting(self, header: ModelHeader, models_per_round: int) -> bool:
        """Return whether its sender, faster than this peer, has had its say about a slot in this round."""
        return self.taken[header.sender, header.slot, header.step] >= models_per_round

    def as_rows(self) -> list[list[int]]:
        """Return the marks for a checkpoint."""
        return [[sender, slot, *mark] for (sender, slot), mark in sorted(self.marks.items())]

    def restore(self, rows: list[Any]) -> None:
        """Take the marks of a checkpoint."""
        self.marks = {(int(r[0]), int(r[1])): (int(r[2]), int(r[3])) for r in rows}

"""The tensors of one peer: k slots, the running averages of the round, snapshots for the neighbors, spare buffers.

Slots are replaced, not mutated, by training; only a fold into a slot that is not being trained happens in place, and it
copies first where a snapshot or a checkpoint still shares the array. Memory: k models, one second average for each
slot in training, the snapshots of the last two rounds (shared with the slots where unchanged), and the arrivals in flight.
Only with a trim (screening.trimmed_mean) are arrivals kept, each by itself, until the merge: up to k for each neighbor.

Knows no thread: the shell runs folds one after another and never a `merge` beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core.averaging import Vector, accumulate, fold
from peer.core.screening import trimmed_mean

SPARE_BUFFERS_MAX = 4


class SnapshotKey(NamedTuple):
    """Which state of a slot: as it was offered in an exchange step of a round."""

    round_index: int
    step: int
    slot: int


@dataclass
class Aside:
    """The second running average of a slot that is trained in this round (or of every slot in batch mode)."""

    value: Vector
    weight: float


@dataclass
class Kept:
    """The arrivals of a slot, each by itself, where a trimmed mean decides at the merge."""

    models: list[Vector]
    weights: list[float]


class ModelStore:
    """k float32 vectors of length d and what the current round has folded.

    Args:
        models: the slots' first values; owned by the store from now on, unless `share` is called for them.
        batch: DFCA Eq. 7 instead of Eq. 8.
        spare_max: buffers kept for reuse; many stores in one process can do without.
        trim: keep a round's arrivals and merge them by a trimmed mean with this share.
    """

    def __init__(
        self,
        models: list[Vector],
        *,
        batch: bool = False,
        spare_max: int = SPARE_BUFFERS_MAX,
        trim: float | None = None,
    ) -> None:
        self._slots = models
        self._batch = batch
        self._trim = trim
        self._kept: dict[int, Kept] = {}
        self._spare_max = spare_max
        self._aside_slots: frozenset[int] = frozenset()
        self._asides: dict[int, Aside] = {}
        self._weights = [1.0] * len(models)
        self._snapshots: dict[SnapshotKey, Vector] = {}
        self._shared: set[int] = set()
        self._spare: list[Vector] = []

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def size(self) -> int:
        """d: elements of one model."""
        return self._slots[0].size

    def model(self, slot: int) -> Vector:
        """Return a slot's current model; read only."""
        return self._slots[slot]

    def share(self, slot: int) -> Vector:
        """Return a slot's current model, which from now on is never mutated."""
        self._shared.add(slot)
        return self._slots[slot]

    def replace(self, slot: int, model: Vector) -> None:
        """Put a new model into a slot and take ownership of the array."""
        if model.shape != self._slots[slot].shape or model.dtype != np.float32:
            raise LocalProtocolError(
                f"slot {slot} holds float32{self._slots[slot].shape}, got {model.dtype}{model.shape}"
            )
        self._slots[slot] = model
        self._shared.discard(slot)

    def begin_round(self, trained: frozenset[int]) -> None:
        """Forget the last round's weights; arrivals for ``trained`` slots will collect aside, others fold in place."""
        held = sorted({*self._asides, *self._kept})
        if held:
            raise LocalProtocolError(f"a round begins while slots {held} still hold unmerged arrivals")
        self._aside_slots = frozenset(range(len(self))) if self._batch else trained
        self._weights = [1.0] * len(self)

    def fold(self, slot: int, arrival: Vector, weight: float = 1.0) -> None:
        """Fold an arrival of a slot; the array is not kept."""
        if self._trim is not None:
            copy = self.reserve()
            np.copyto(copy, arrival)
            kept = self._kept.setdefault(slot, Kept([], []))
            kept.models.append(copy)
            kept.weights.append(weight)
            return
        if slot not in self._aside_slots:
            self._weights[slot] = fold(self._writable(slot), self._weights[slot], arrival, weight)
            return
        aside = self._asides.get(slot)
        if aside is None:
            value = self.reserve()
            np.multiply(arrival, np.float32(weight), out=value) if self._batch else np.copyto(value, arrival)
            self._asides[slot] = Aside(value, weight)
        elif self._batch:
            accumulate(aside.value, arrival, weight)
            aside.weight += weight
        else:
            aside.weight = fold(aside.value, aside.weight, arrival, weight)

    def folded_weight(self, slot: int) -> float:
        """Return the summed weight of the arrivals that collected aside for a slot."""
        if slot in self._kept:
            return sum(self._kept[slot].weights)
        aside = self._asides.get(slot)
        return aside.weight if aside else 0.0

    def merge(self, slot: int, self_weight: float = 1.0) -> None:
        """Merge what collected aside with the slot's own model of weight ``self_weight`` >= 0.

        Sequential: (w theta + W A) / (w + W). Batch: (w theta + S) / (w + W), S the weighted sum (DFCA Eq. 7). With a trim:
        the weighted trimmed mean of the own model and all arrivals.
        """
        if slot in self._kept:
            self._merge_kept(slot, self_weight)
        aside = self._asides.pop(slot, None)
        if aside is None:
            return
        total = self_weight + aside.weight
        if self._batch:
            if self_weight > 0:
                accumulate(aside.value, self._slots[slot], self_weight)
            np.divide(aside.value, np.float32(total), out=aside.value)
            self._retire(slot, aside.value)
        elif self_weight > 0:
            fold(self._writable(slot), self_weight, aside.value, aside.weight)
            self.give_back(aside.value)
        else:
            self._retire(slot, aside.value)

    def _merge_kept(self, slot: int, self_weight: float) -> None:
        kept, mean = self._kept.pop(slot), self.reserve()
        models, weights = list(kept.models), list(kept.weights)
        if self_weight > 0:
            models.append(self._slots[slot])
            weights.append(self_weight)
        trimmed_mean(models, weights, self._trim or 0.0, mean)
        self._retire(slot, mean)
        for model in kept.models:
            self.give_back(model)

    def drop_asides(self) -> None:
        """Forget what collected aside without merging it."""
        for slot in list(self._kept):
            for model in self._kept.pop(slot).models:
                self.give_back(model)
        for slot in list(self._asides):
            self.give_back(self._asides.pop(slot).value)

    def snapshot(self, key: SnapshotKey, model: Vector | None = None) -> None:
        """Keep what is offered in a step: the slot's current model, or one made from it (noise)."""
        self._snapshots[key] = self.share(key.slot) if model is None else model

    def offered(self, key: SnapshotKey) -> Vector:
        """Return a snapshot.

        Raises:
            LocalProtocolError: it was never made or is forgotten already.
        """
        try:
            return self._snapshots[key]
        except KeyError:
            raise LocalProtocolError(f"no snapshot of {key}") from None

    def forget_snapshots(self, before_round: int) -> None:
        """Let go of the snapshots of rounds before ``before_round``."""
        for key in [key for key in self._snapshots if key.round_index < before_round]:
            del self._snapshots[key]

    def reserve(self) -> Vector:
        """Return an uninitialized buffer of one model, reusing a spare one."""
        return self._spare.pop() if self._spare else np.empty(self.size, np.float32)

    def give_back(self, buffer: Vector) -> None:
        """Return a buffer that nobody reads any more."""
        if len(self._spare) < self._spare_max:
            self._spare.append(buffer)

    def _retire(self, slot: int, model: Vector) -> None:
        old, shared = self._slots[slot], slot in self._shared
        self.replace(slot, model)
        if not shared:
            self.give_back(old)

    def _writable(self, slot: int) -> Vector:
        if slot in self._shared:
            copy = self.reserve()
            np.copyto(copy, self._slots[slot])
            self.replace(slot, copy)
        return self._slots[slot]

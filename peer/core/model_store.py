"""The tensors of one peer: k slots, the running averages of the round, snapshots for the neighbors, spare buffers.

An arrival is folded into its slot at once, or, if the slot is *deferred* in this round, into a second average that `merge`
adds to the slot at the close. A slot in training is always deferred, so the result does not depend on when a model arrives.

Training replaces a slot's array and does not mutate it. Only a fold into a slot that is not deferred is done in place; it
copies the array first if a snapshot or a checkpoint shares it. Memory: k models, one average for each deferred slot with
arrivals, the snapshots of the last two rounds (shared with the slots where unchanged), and the arrivals in flight. Only with a
trim (screening.trimmed_mean) is each arrival stored until the merge: up to k for each neighbor.

Slots hold whole models. Arrivals, averages, snapshots and buffers are of the part that travels (`peer.core.part`).

Not thread-safe: its owner calls one method at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core.averaging import Vector, accumulate, fold, trimmed_mean
from peer.core.part import TravellingPart

SPARE_BUFFERS_MAX = 4


class SnapshotKey(NamedTuple):
    """The identity of a snapshot: a slot as it is offered in one exchange step of a round."""

    round_index: int
    step: int
    slot: int


@dataclass
class DeferredAverage:
    """The average of the arrivals of a deferred slot (in batch mode: their weighted sum)."""

    value: Vector
    weight: float


@dataclass
class StoredArrivals:
    """The arrivals of a slot, one by one, for the trimmed mean at the merge."""

    models: list[Vector]
    weights: list[float]


class ModelStore:
    """k float32 vectors of length d, and what the current round has folded.

    Args:
        models: the slots' first values; the store owns them from now on, unless `share` is called for them.
        batch: average by DFCA Eq. 7 (batch) instead of Eq. 8 (sequential).
        spare_max: number of buffers kept for reuse; 0 suits many stores in one process.
        trim: store a round's arrivals and merge them by a trimmed mean with this share.
        part: of the models that travels; None: all of it.
    """

    def __init__(
        self,
        models: list[Vector],
        *,
        batch: bool = False,
        spare_max: int = SPARE_BUFFERS_MAX,
        trim: float | None = None,
        part: TravellingPart | None = None,
    ) -> None:
        self._slots = models
        self.part = part or TravellingPart.all_of(models[0].size)
        self._batch = batch
        self._trim = trim
        self._stored: dict[int, StoredArrivals] = {}
        self._spare_max = spare_max
        self._deferred_slots: frozenset[int] = frozenset()
        self._deferred: dict[int, DeferredAverage] = {}
        self._weights = [1.0] * len(models)
        self._snapshots: dict[SnapshotKey, Vector] = {}
        self._shared: set[int] = set()
        self._spare: list[Vector] = []

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def size(self) -> int:
        """d: the number of elements of one whole model."""
        return self._slots[0].size

    def model(self, slot: int) -> Vector:
        """Return a slot's current model; read only."""
        return self._slots[slot]

    def share(self, slot: int) -> Vector:
        """Return a slot's current model; this array is never mutated again."""
        self._shared.add(slot)
        return self._slots[slot]

    def share_part(self, slot: int) -> Vector:
        """Return what travels of a slot's current model; this array is never mutated again."""
        return self.share(slot) if self.part.is_whole else self.part.of(self._slots[slot])

    def replace(self, slot: int, model: Vector) -> None:
        """Put a new model into a slot; the store owns the array from now on.

        Raises:
            LocalProtocolError: the model has another shape or dtype than the slot.
        """
        if model.shape != self._slots[slot].shape or model.dtype != np.float32:
            raise LocalProtocolError(
                f"slot {slot} holds float32{self._slots[slot].shape}, got {model.dtype}{model.shape}"
            )
        self._slots[slot] = model
        self._shared.discard(slot)

    def replace_part(self, slot: int, part: Vector) -> None:
        """Put a new travelling part into a slot, as `replace` does; its private tensors stay."""
        self.replace(slot, self.part.joined(self._slots[slot], part))

    def copy_private(self, source: int, target: int) -> None:
        """Give a slot the private tensors of another one; its travelling part stays."""
        if not self.part.is_whole:
            self.replace(target, self.part.joined(self._slots[source], self.part.of(self._slots[target])))

    def begin_round(self, deferred: frozenset[int]) -> None:
        """Start a round: reset the weights; arrivals of the ``deferred`` slots wait for `merge` (batch mode: of all slots).

        Raises:
            LocalProtocolError: arrivals of the last round are not merged.
        """
        unmerged = sorted({*self._deferred, *self._stored})
        if unmerged:
            raise LocalProtocolError(f"a round begins while slots {unmerged} still hold unmerged arrivals")
        self._deferred_slots = frozenset(range(len(self))) if self._batch else deferred
        self._weights = [1.0] * len(self)

    def fold(self, slot: int, arrival: Vector, weight: float = 1.0) -> None:
        """Fold an arrival of a slot; the caller may reuse the array afterwards."""
        if self._trim is not None:
            copy = self.acquire_buffer()
            np.copyto(copy, arrival)
            stored = self._stored.setdefault(slot, StoredArrivals([], []))
            stored.models.append(copy)
            stored.weights.append(weight)
            return
        if slot not in self._deferred_slots:
            self._weights[slot] = self._fold_into(slot, self._weights[slot], arrival, weight)
            return
        average = self._deferred.get(slot)
        if average is None:
            value = self.acquire_buffer()
            np.multiply(arrival, np.float32(weight), out=value) if self._batch else np.copyto(value, arrival)
            self._deferred[slot] = DeferredAverage(value, weight)
        elif self._batch:
            accumulate(average.value, arrival, weight)
            average.weight += weight
        else:
            average.weight = fold(average.value, average.weight, arrival, weight)

    def deferred_weight(self, slot: int) -> float:
        """Return the summed weight of a slot's arrivals that wait for `merge`."""
        if slot in self._stored:
            return sum(self._stored[slot].weights)
        average = self._deferred.get(slot)
        return average.weight if average else 0.0

    def merge(self, slot: int, self_weight: float = 1.0) -> None:
        """Merge a slot's deferred arrivals with its own model theta of weight w = ``self_weight`` >= 0.

        W is the weight of the arrivals, A their average, S their weighted sum. Sequential: (w theta + W A) / (w + W).
        Batch: (w theta + S) / (w + W). With a trim: the weighted trimmed mean of the own model and all arrivals.
        Source: DFCA Eq. 7 and 8 (arXiv 2510.15300).
        """
        if slot in self._stored:
            self._merge_stored(slot, self_weight)
        average = self._deferred.pop(slot, None)
        if average is None:
            return
        total = self_weight + average.weight
        if self._batch:
            if self_weight > 0:
                accumulate(average.value, self.part.of(self._slots[slot]), self_weight)
            np.divide(average.value, np.float32(total), out=average.value)
            self._replace_and_release(slot, average.value)
        elif self_weight > 0:
            self._fold_into(slot, self_weight, average.value, average.weight)
            self.release_buffer(average.value)
        else:
            self._replace_and_release(slot, average.value)

    def _merge_stored(self, slot: int, self_weight: float) -> None:
        stored, mean = self._stored.pop(slot), self.acquire_buffer()
        models, weights = list(stored.models), list(stored.weights)
        if self_weight > 0:
            models.append(self.part.of(self._slots[slot]))
            weights.append(self_weight)
        trimmed_mean(models, weights, self._trim or 0.0, mean)
        self._replace_and_release(slot, mean)
        for model in stored.models:
            self.release_buffer(model)

    def discard_deferred(self) -> None:
        """Drop the arrivals that wait for `merge`."""
        for slot in list(self._stored):
            for model in self._stored.pop(slot).models:
                self.release_buffer(model)
        for slot in list(self._deferred):
            self.release_buffer(self._deferred.pop(slot).value)

    def take_snapshot(self, key: SnapshotKey, model: Vector | None = None) -> None:
        """Keep what is offered in a step: the part of the slot's current model, or of ``model`` in its place (with noise)."""
        self._snapshots[key] = self.share_part(key.slot) if model is None else self.part.of(model)

    def get_snapshot(self, key: SnapshotKey) -> Vector:
        """Return a snapshot; read only.

        Raises:
            LocalProtocolError: it was never taken or is dropped already.
        """
        try:
            return self._snapshots[key]
        except KeyError:
            raise LocalProtocolError(f"no snapshot of {key}") from None

    def snapshots(self, round_index: int, step: int) -> dict[int, Vector]:
        """Return what is offered in a step, by slot, ascending; read only."""
        keys = sorted(key for key in self._snapshots if (key.round_index, key.step) == (round_index, step))
        return {key.slot: self._snapshots[key] for key in keys}

    def drop_snapshots(self, before_round: int) -> None:
        """Drop the snapshots of rounds before ``before_round``."""
        for key in [key for key in self._snapshots if key.round_index < before_round]:
            del self._snapshots[key]

    def acquire_buffer(self) -> Vector:
        """Return an uninitialized buffer of what travels of one model, float32; a spare one if there is one."""
        return self._spare.pop() if self._spare else np.empty(self.part.size, np.float32)

    def release_buffer(self, buffer: Vector) -> None:
        """Take back a buffer that is not read any more."""
        if len(self._spare) < self._spare_max:
            self._spare.append(buffer)

    def _fold_into(self, slot: int, weight_sum: float, arrival: Vector, weight: float) -> float:
        """Fold into a slot and return the new sum of weights; private tensors stay."""
        total = weight_sum
        for own, other in self.part.pairs(self._writable(slot), arrival):
            total = fold(own, weight_sum, other, weight)
        return total

    def _replace_and_release(self, slot: int, model: Vector) -> None:
        if not self.part.is_whole:
            self.replace_part(slot, model)
            self.release_buffer(model)
            return
        old, shared = self._slots[slot], slot in self._shared
        self.replace(slot, model)
        if not shared:
            self.release_buffer(old)

    def _writable(self, slot: int) -> Vector:
        if slot in self._shared:
            copy = self.acquire_buffer() if self.part.is_whole else np.empty(self.size, np.float32)
            np.copyto(copy, self._slots[slot])
            self.replace(slot, copy)
        return self._slots[slot]

"""The models that neighbors delivered in the last round, kept until they are tested: one per neighbor and slot."""

from __future__ import annotations

from collections.abc import Iterator

from peer.core.averaging import Vector

DeliveredPlace = tuple[int, int]  # neighbor, slot


class DeliveredModels:
    """In memory, by reference where a model is never changed again, as in simulated runs; processes keep them on disk.

    Attributes:
        lost: neighbors with a model that could not be kept.
    """

    def __init__(self) -> None:
        self._rounds: dict[DeliveredPlace, int] = {}
        self._models: dict[DeliveredPlace, Vector] = {}
        self.lost: set[int] = set()

    def keep(self, neighbor: int, slot: int, round_index: int, model: Vector) -> None:
        """Keep a delivered model, float32 [d], in place of an earlier one of the same neighbor and slot."""
        try:
            self._put((neighbor, slot), model)
        except OSError as error:
            self._rounds.pop((neighbor, slot), None)
            self.lost.add(neighbor)
            self._failed(neighbor, error)
        else:
            self._rounds[neighbor, slot] = round_index

    def take(self) -> Iterator[tuple[int, int, int, Vector]]:
        """Yield (neighbor, slot, round, model), ascending, one model at a time, and keep none."""
        for place, round_index in sorted(self._rounds.items()):
            try:
                model = self._get(place)
            except OSError as error:
                self.lost.add(place[0])
                self._failed(place[0], error)
            else:
                yield *place, round_index, model
        self.drop()

    def drop(self) -> None:
        """Keep no model any more."""
        self._rounds.clear()
        self._models.clear()

    def _put(self, place: DeliveredPlace, model: Vector) -> None:
        self._models[place] = model.copy() if model.flags.writeable else model

    def _get(self, place: DeliveredPlace) -> Vector:
        return self._models.pop(place)

    def _failed(self, neighbor: int, error: OSError) -> None:
        raise error

"""The part of a model that travels, and the private tensors that stay with their peer (`run.private_parameters`). Pure.

A peer trains, evaluates and saves whole models. What is sent, received, averaged, screened and written for others is the part.
Each slot has a private part of its own. It changes when this peer trains the slot, and never by a neighbor's model.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from peer.core.averaging import Vector
from peer.core.schema import Schema

KEY = "run.private_parameters"


def travelling(whole: Schema, patterns: Sequence[str]) -> Schema:
    """Return the tensors of a model whose names match no pattern: those that travel.

    Args:
        whole: of a whole model.
        patterns: shell patterns as in `fnmatch`, with regard to case.

    Raises:
        ConfigError: a pattern matches no tensor, or together they leave no parameter to travel.
    """
    names = [spec.name for spec in whole.tensors]
    matched = {each: {name for name in names if fnmatch.fnmatchcase(name, each)} for each in patterns}
    private: set[str] = set().union(*matched.values())
    left = Schema(tuple(spec for spec in whole.tensors if spec.name not in private))
    tensors = f"The model's tensors are: {', '.join(names)}."
    if nothing := [pattern for pattern, found in matched.items() if not found]:
        raise ConfigError(ConfigProblem(KEY, "patterns that each match a tensor", f"{nothing[0]!r}", tensors))
    if private and not any(spec.role == "parameter" for spec in left.tensors):
        got = f"{list(patterns)}, which leaves none"
        raise ConfigError(ConfigProblem(KEY, "patterns that leave a parameter to travel", got, tensors))
    return left


@dataclass(frozen=True)
class TravellingPart:
    """Where the travelling part is in a whole model vector.

    Attributes:
        places: slices of the whole vector, in order and apart; the part is their concatenation.
        size: the number of elements of the part.
        whole_size: d, that of a whole model.
    """

    places: tuple[slice, ...]
    size: int
    whole_size: int

    @classmethod
    def between(cls, whole: Schema, part: Schema) -> TravellingPart:
        """Return where the tensors of ``part`` are in a vector of ``whole``."""
        names, places = {spec.name for spec in part.tensors}, list[slice]()
        for place in (place for spec, place in whole.slices() if spec.name in names):
            joins = places and places[-1].stop == place.start
            places.append(slice(places.pop().start if joins else place.start, place.stop))
        return cls(tuple(places), part.size, whole.size)

    @classmethod
    def all_of(cls, size: int) -> TravellingPart:
        """Return the whole of a vector, of which every element travels."""
        return cls((slice(0, size),), size, size)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is private."""
        return self.size == self.whole_size

    def of(self, whole: Vector) -> Vector:
        """Return the part of a whole model: the array itself where nothing is private, else a new float32 [size]."""
        return whole if self.is_whole else np.concatenate([whole[place] for place in self.places])

    def joined(self, whole: Vector, part: Vector) -> Vector:
        """Return a model with the given part and the private tensors of ``whole``: ``part`` itself where nothing is private."""
        if self.is_whole:
            return part
        result = whole.copy()
        for own, new in self.pairs(result, part):
            np.copyto(own, new)
        return result

    def pairs(self, whole: Vector, part: Vector) -> Iterator[tuple[Vector, Vector]]:
        """Yield views of the same elements in a whole vector and in a vector of the part."""
        start = 0
        for place in self.places:
            stop = start + place.stop - place.start
            yield whole[place], part[start:stop]
            start = stop

"""The schema of a model vector: names, shapes and roles of its tensors; peers compare its digest in the handshake.

A push carries no names and no shapes. Both ends have the same schema, so the size of a model is known before its first byte.
Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["parameter", "buffer"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the flat vector; a ``parameter`` is trained, a ``buffer`` (BatchNorm statistics) is averaged only."""

    name: str
    shape: tuple[int, ...]
    role: Role = "parameter"

    @property
    def size(self) -> int:
        """The number of elements; 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Schema:
    """The ordered tensors of a flat float32 model vector."""

    tensors: tuple[TensorSpec, ...]

    @cached_property
    def size(self) -> int:
        """d: the number of float32 elements of a model."""
        return sum(t.size for t in self.tensors)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON of names, shapes and roles."""
        rows = [[t.name, list(t.shape), t.role] for t in self.tensors]
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()

    def slices(self) -> list[tuple[TensorSpec, slice]]:
        """Return each tensor with its slice of the flat vector."""
        places, start = [], 0
        for tensor in self.tensors:
            places.append((tensor, slice(start, start + tensor.size)))
            start += tensor.size
        return places

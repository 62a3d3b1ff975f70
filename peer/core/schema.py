"""What one model vector contains: names, shapes and roles, agreed in the handshake by digest.

A push carries no names and no shapes: both ends have compared this digest, so the size of every model is known before
its first byte. Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor inside the flat vector; ``parameter`` is trained, ``buffer`` (BatchNorm statistics) only averaged."""

    name: str
    shape: tuple[int, ...]
    role: Literal["parameter", "buffer"] = "parameter"

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Schema:
    """The ordered tensors of a flat float32 model vector."""

    tensors: tuple[TensorSpec, ...]

    @cached_property
    def size(self) -> int:
        """d: number of float32 elements of a model."""
        return sum(t.size for t in self.tensors)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON of names, shapes and roles."""
        rows = [[t.name, list(t.shape), t.role] for t in self.tensors]
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()

    def slices(self) -> list[tuple[TensorSpec, slice]]:
        """Return each tensor with its place in the flat vector."""
        places, start = [], 0
        for tensor in self.tensors:
            places.append((tensor, slice(start, start + tensor.size)))
            start += tensor.size
        return places

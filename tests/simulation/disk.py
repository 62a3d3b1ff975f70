"""One machine's disk: checkpoints and the incarnation, with what a crash, a full disk and rot do to them.

A checkpoint is one byte string with its digest; what `Persisted` was answered for survives a crash, a write under way is kept,
dropped or torn. The two newest are kept, and what cannot be read or is another peer's is refused, as by `peer.store`.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.identity import next_incarnation

KEPT = 2


@dataclass
class Checkpoint:
    """What is read back: the engine's state, all arrays, and the simulator's own record of what the models contain."""

    round_index: int
    state: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    lineage: frozenset[Any]


@dataclass
class _File:
    owner: int
    round_index: int
    data: bytes
    digest: bytes
    lineage: frozenset[Any]


class Disk:
    """The files of one peer."""

    def __init__(self, owner: int, rng: Random) -> None:
        self._owner, self._rng = owner, rng
        self._files: list[_File] = []
        self._writing: _File | None = None
        self._incarnation: int | None = None
        self.failing = ""  # the error of every write, while not empty
        self.unreadable = 0  # so many of the next reads fail
        self.rejected = 0

    @property
    def durable_round(self) -> int:
        """The newest round that a crash cannot take away; 0 if none."""
        return self._files[-1].round_index if self._files else 0

    @property
    def incarnation(self) -> int | None:
        """The last claimed incarnation."""
        return self._incarnation

    def claim(self, seen: int = 0) -> int:
        """Persist and return a new incarnation."""
        self._incarnation = next_incarnation(self._incarnation, seen, self._rng.getrandbits(32))
        return self._incarnation

    def begin(
        self, round_index: int, state: dict[str, Any], arrays: dict[str, NDArray[Any]], lineage: frozenset[Any]
    ) -> None:
        """Start to write a checkpoint; the arrays are read now, as the disk thread does later."""
        shapes = {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
        head = {"state": state, "arrays": shapes}
        data = json.dumps(head).encode() + b"\n" + b"".join(array.tobytes() for array in arrays.values())
        self._writing = _File(self._owner, round_index, data, hashlib.sha256(data).digest(), lineage)

    def end(self) -> str:
        """Finish the write: rename, and return an error in words or nothing."""
        written, self._writing = self._writing, None
        if self.failing or written is None:
            return self.failing
        self._files = [*self._files, written][-KEPT:]
        return ""

    def crash(self) -> str:
        """Lose power: say what became of the write under way (kept, dropped or torn); nothing if there was none."""
        written, self._writing = self._writing, None
        if written is None:
            return ""
        fate = self._rng.choice(("kept", "dropped", "torn"))
        if fate == "torn":
            written.data = written.data[: self._rng.randrange(len(written.data))]
        if fate != "dropped":
            self._files = [*self._files, written][-KEPT - 1 :]
        return fate

    def rot(self) -> bool:
        """Flip one bit of the newest checkpoint; return whether there was one."""
        if not self._files:
            return False
        data = bytearray(self._files[-1].data)
        data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        self._files[-1].data = bytes(data)
        return True

    def misdirect(self, other: Disk) -> None:
        """Find another peer's newest checkpoint in the place of the own; if it has none, one that another run left there."""
        self._files[-1] = replace(other._files[-1]) if other._files else replace(self._files[-1], owner=-1)

    def wipe(self) -> None:
        """Lose everything."""
        self._files, self._writing, self._incarnation = [], None, None

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be read, is this peer's and is whole; drop those that are not."""
        while self._files:
            file, readable = self._files[-1], not self.unreadable
            self.unreadable = max(0, self.unreadable - 1)
            if readable and file.owner == self._owner and hashlib.sha256(file.data).digest() == file.digest:
                head, _, body = file.data.partition(b"\n")
                parsed, arrays = json.loads(head), {}
                for name, (kind, shape) in parsed["arrays"].items():
                    size = np.dtype(kind).itemsize * math.prod(shape)
                    arrays[name], body = np.frombuffer(body[:size], kind).reshape(shape).copy(), body[size:]
                return Checkpoint(file.round_index, parsed["state"], arrays, file.lineage)
            self.rejected += 1
            self._files.pop()
        return None

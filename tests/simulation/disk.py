"""One machine's disk: checkpoints and the incarnation, with what a crash, a full disk and rot do to them.

A checkpoint is one byte string with its digest; what `Persisted` was answered for survives a crash, a write under way is kept,
dropped or torn. The two newest are kept, as by `peer.store`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from coordinator_free_bootstrap.identity import next_incarnation
from peer.core.averaging import Vector

KEPT = 2


@dataclass
class Checkpoint:
    """What is read back: the engine's state, the models, and the simulator's own record of what they contain."""

    round_index: int
    state: dict[str, Any]
    models: list[Vector]
    lineage: frozenset[Any]


@dataclass
class _File:
    round_index: int
    data: bytes
    digest: bytes
    lineage: frozenset[Any]


class Disk:
    """The files of one peer."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._files: list[_File] = []
        self._writing: _File | None = None
        self._incarnation: int | None = None
        self.failing = ""  # the error of every write, while not empty
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

    def begin(self, round_index: int, state: dict[str, Any], models: list[Vector], lineage: frozenset[Any]) -> None:
        """Start to write a checkpoint; the models are read now, as the disk thread does later."""
        head = json.dumps({"state": state, "slots": len(models)}).encode()
        data = head + b"\n" + b"".join(model.tobytes() for model in models)
        self._writing = _File(round_index, data, hashlib.sha256(data).digest(), lineage)

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

    def wipe(self) -> None:
        """Lose everything."""
        self._files, self._writing, self._incarnation = [], None, None

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; drop those that are not."""
        while self._files:
            file = self._files[-1]
            if hashlib.sha256(file.data).digest() == file.digest:
                head, _, body = file.data.partition(b"\n")
                parsed = json.loads(head)
                models = np.frombuffer(body, np.float32).reshape(parsed["slots"], -1)
                return Checkpoint(file.round_index, parsed["state"], [m.copy() for m in models], file.lineage)
            self.rejected += 1
            self._files.pop()
        return None

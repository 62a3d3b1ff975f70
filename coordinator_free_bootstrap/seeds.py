"""Random numbers as functions of (seed, purpose, indices), so that every peer derives the same ones.

The core keeps no random state. A restarted peer, its neighbors and the single-process reference draw equal numbers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def derive_seed(seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for one purpose, e.g. ``derive_seed(7, "shuffle", peer_id, round_index)``."""
    text = "\x1f".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *path: str | int) -> np.random.Generator:
    """Return a fresh NumPy generator (Philox, counter based) for one purpose."""
    import numpy as np  # imported here: `peer --help` imports this module and needs no NumPy

    return np.random.Generator(np.random.Philox(key=derive_seed(seed, *path)))


def uniform(seed: int, *path: str | int) -> float:
    """Return one float64 in [0, 1) for one purpose, without a generator."""
    return (derive_seed(seed, *path) >> 10) / float(1 << 53)  # 53 bits: the precision of a float64 in [0, 1)

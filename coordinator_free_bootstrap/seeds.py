"""Random numbers that every peer can derive again: a generator per purpose, from the shared seed and a path.

Nothing in the pure core keeps random state. A restarted peer, a neighbor at the other end of an edge and the
single-process reference all draw the same numbers, because each draw is a function of (seed, purpose, indices).
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
    import numpy as np  # here, because `peer --help` imports this module and needs no arrays

    return np.random.Generator(np.random.Philox(key=derive_seed(seed, *path)))


def uniform(seed: int, *path: str | int) -> float:
    """Return one number in [0, 1) for one purpose, without building a generator: the H(seed, ...) of the specs."""
    return (derive_seed(seed, *path) >> 10) / float(1 << 53)  # 53 bits: all that a float64 below 1 can hold exactly

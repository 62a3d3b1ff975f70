"""A division of all peers by their data that every peer computes alike, without a coordinator. An addition of this project.

In the first round all peers train the same first model, so their updates differ as their data differ. Each peer makes a sketch of
its update. Selections of the next rounds relay all known sketches. After as many rounds as the graph's diameter, all peers of a
connected part know the same sketches, and k-means with the same seed gives the same division. A lost sketch is one point less.
The cost is N q float32 values on each edge in each of these rounds, and no model.

A Byzantine neighbor can relay a false sketch of another peer, as the first sketch of a peer is kept. This puts peers into a wrong
part, and does nothing else.
"""

from __future__ import annotations

import numpy as np

from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.clustering import k_means
from peer.algorithms.sketches import Ids, Sketches


def divide(ids: Ids, sketches: Sketches, parts: int, seed: int) -> dict[int, int]:
    """Return the part of each peer, 0 to parts - 1: k-means on the sketches, parts numbered by their smallest peer id.

    Args:
        ids: peer ids, ascending, int64 [n].
        sketches: one for each id, float32 [n, q].
        parts: number of parts; with fewer sketches the result is {}.
        seed: of the run; equal on all peers.
    """
    if len(ids) < parts:
        return {}
    found = k_means(sketches.astype(np.float64), parts, generator(seed, "divide"))
    names: dict[int, int] = {}
    return {int(i): names.setdefault(int(part), len(names)) for i, part in zip(ids, found, strict=True)}

"""How fast averaging over a graph spreads what one peer learned: the spectral gap of its Metropolis weights. Pure.

Each round multiplies the peers' models by W, w_ij = 1 / (1 + max(deg i, deg j)) for neighbors, w_ii = 1 - sum_j w_ij. Differences
between the peers shrink by at least the factor lambda, the second largest absolute value of an eigenvalue of W; the gap is
1 - lambda. Source: Lin Xiao and Stephen Boyd, "Fast linear iterations for distributed averaging", 2004.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DENSE_PEERS_MAX = 300  # above, Lanczos iterations cost less than all eigenvalues, and need scipy
LEFT = 0.01  # of a difference: when peers count as agreed


def spectral_gap(graph: Graph) -> float:
    """Return 1 - lambda, in [0, 1]: 0 for a graph of several parts, 1 where one round makes all models equal."""
    if len(graph.components) > 1:
        return 0.0
    import numpy as np

    rows, columns, weights = _metropolis(graph)
    size = len(graph.nodes)
    if size <= DENSE_PEERS_MAX:
        dense = np.zeros((size, size))
        dense[rows, columns] = weights
        values = np.abs(np.linalg.eigvalsh(dense))
    else:
        from scipy.sparse import csr_array
        from scipy.sparse.linalg import eigsh

        sparse = csr_array((weights, (rows, columns)), shape=(size, size))
        start = generator(0, "lanczos").normal(size=size)  # a fixed one, for equal answers
        values = np.abs(eigsh(sparse, k=2, which="LM", v0=start, tol=1e-6, return_eigenvectors=False))
    second = float(np.sort(values)[-2])
    return 0.0 if second > 1 else 1.0 - second


def rounds_to_agree(gap: float) -> int | None:
    """Return the rounds of averaging until a hundredth of any difference between peers is left; None if that never happens."""
    if gap <= 0:
        return None
    return 1 if gap >= 1 else max(1, math.ceil(math.log(LEFT) / math.log1p(-gap)))


def _metropolis(graph: Graph) -> tuple[list[int], list[int], NDArray[np.float64]]:
    """Return row, column and value of each nonzero element of W."""
    import numpy as np

    row_of = {peer: row for row, peer in enumerate(graph.ids)}
    rows = [row_of[i] for edge in graph.edges for i in edge]
    columns = [row_of[i] for edge in graph.edges for i in reversed(edge)]
    weight = [graph.metropolis(i, j) for i, j in graph.edges for _ in range(2)]
    own = np.ones(len(row_of))
    np.subtract.at(own, rows, weight)
    rows, columns = [*rows, *range(len(row_of))], [*columns, *range(len(row_of))]
    return rows, columns, np.concatenate([weight, own])

"""How fast averaging over a graph spreads what one peer learned, on all its edges and on one edge a round. Pure.

On all edges each round multiplies the peers' models by W, w_ij = 1 / (1 + max(deg i, deg j)) for neighbors, w_ii = 1 - sum_j
w_ij. Differences between the peers shrink by at least the factor lambda, the second largest absolute value of an eigenvalue of W;
the gap is 1 - lambda. Source: Lin Xiao and Stephen Boyd, "Fast linear iterations for distributed averaging", 2004.

On one edge (``run.edges`` "one") a round multiplies them by the W of its class of edges, with w_ij = w_ii = 1/2 for its pairs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DENSE_PEERS_MAX = 300  # above, Lanczos iterations cost less than all eigenvalues, and need scipy
PRODUCT_PEERS_MAX = 2_000  # above, the product of a cycle's rounds takes too long
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


def agreement_on_one_edge(graph: Graph) -> tuple[int, float] | None:
    """Return the rounds on one edge until a hundredth of any difference between peers is left, and the models that a peer sends.

    The models are a mean over the peers. None: that never happens, or there are more than `PRODUCT_PEERS_MAX` peers.
    """
    if len(graph.components) > 1 or len(graph.nodes) > PRODUCT_PEERS_MAX:
        return None
    import numpy as np

    size, classes = len(graph.nodes), _partner_rows(graph)
    apart = np.eye(size) - 1 / size  # of the models of all peers: what no round has averaged yet
    powers = [_averaged(apart, classes)]  # of a cycle
    while _largest_share(powers[-1]) > LEFT:
        powers.append(powers[-1] @ powers[-1])
    cycles = 0
    for exponent in reversed(range(len(powers) - 1)):
        more = apart @ powers[exponent]
        if _largest_share(more) > LEFT:
            apart, cycles = more, cycles + 2**exponent
    counts = range(1, len(classes) + 1)
    more_rounds = counts[bisect_left(counts, True, key=lambda t: _largest_share(_averaged(apart, classes[:t])) <= LEFT)]
    models = [len(each) / size for each in graph.matchings]
    return cycles * len(classes) + more_rounds, cycles * sum(models) + sum(models[:more_rounds])


def _partner_rows(graph: Graph) -> list[NDArray[np.intp]]:
    """Return for each class of edges the row of each peer's partner, or its own row."""
    import numpy as np

    row_of: Mapping[int, int] = {peer: row for row, peer in enumerate(graph.ids)}
    return [np.array([row_of[each.get(peer, peer)] for peer in graph.ids]) for each in graph.matchings]


def _averaged(models: NDArray[np.float64], classes: list[NDArray[np.intp]]) -> NDArray[np.float64]:
    """Return the models, one in a row, after a round on each of the classes."""
    for partners in classes:
        models = (models + models[partners]) / 2
    return models


def _largest_share(matrix: NDArray[np.float64]) -> float:
    """Return the spectral norm: the largest share of a difference that is left."""
    import numpy as np

    if len(matrix) <= DENSE_PEERS_MAX:
        return float(np.linalg.norm(matrix, 2))
    if not matrix.any():  # a hypercube's cycle leaves nothing
        return 0.0
    from scipy.sparse.linalg import svds

    start = generator(0, "lanczos").normal(size=len(matrix))
    return float(svds(matrix, k=1, v0=start, tol=1e-6, return_singular_vectors=False)[0])


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

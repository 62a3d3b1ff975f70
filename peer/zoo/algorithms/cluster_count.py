"""CGPFL-Heur: the number of clusters K that balances how well K centers fit the models against how few models share a center.

Source: CGPFL (arXiv 2106.13044), Eq. 12: e(K) = sqrt(d_h K / m log(e m / d_h)) + mu cost(K), with a capacity d_h of the
models, m samples in all, and the cost of k-means. Neither d_h nor mu has a published value. Choices of this project: both terms
lie in [0, 1], the first divided by its value at the largest K, the second by cost(1); d_h and m cancel. So
e(K) = sqrt(K / K_max) + mu_scale cost(K) / cost(1).

Without a server, each peer has cost(K) / cost(1) on the models of its closed neighborhood, for K up to half of their number.
Peers average these curves by gossip (`mixed`), each K over the peers that have it. A choice of this project: a curve counts the
same whatever the number of samples behind it, and its numbers lie in [0, 1] (`wrong_curve`). If peers gossiped costs weighted by
samples, a neighbor could outweigh the others by claiming many. Samples weigh only within the own curve, as in Eq. 12.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from peer.algorithms.clustering import Points, cost, k_means

CostCurve = list[float]  # the sums of cost(K) / cost(1) for K = 1 .. n, then the shares of the peers that have each K


def relative_costs(
    points: Points, most: int, draw: np.random.Generator, weights: npt.NDArray[np.float64]
) -> list[float]:
    """Return cost(K) / cost(1) for K = 1 .. most, each in [0, 1]; all 0 where the models are equal."""
    whole = cost(points, np.zeros(len(points), np.int64), weights)
    if whole <= 0:
        return [0.0] * most
    found = [cost(points, k_means(points, clusters, draw), weights) / whole for clusters in range(1, most + 1)]
    return [min(1.0, ratio) for ratio in found]


def curve_of(ratios: list[float], length: int) -> CostCurve:
    """Return the curve of one peer, 2 ``length`` numbers in [0, 1]: those K that it does not have have share 0."""
    missing = [0.0] * (length - len(ratios))
    return [*ratios, *missing, *([1.0] * len(ratios)), *missing]


def mixed(own: Sequence[float], reported: Sequence[tuple[Sequence[float], float]]) -> CostCurve:
    """Return the own curve after a gossip step, given those of neighbors and their weights."""
    return [value + sum(weight * (other[at] - value) for other, weight in reported) for at, value in enumerate(own)]


def wrong_curve(curve: tuple[float, ...], length: int) -> str:
    """Return what is wrong with a neighbor's curve, as a sentence; "": nothing."""
    if len(curve) != 2 * length:
        return f"cost curve: expected {2 * length} numbers, got {len(curve)}"
    fits = all(
        0 <= ratio <= share + 1e-9 and share <= 1 + 1e-9 for ratio, share in zip(curve, curve[length:], strict=False)
    )
    return "" if fits else "cost curve: expected numbers from 0 to 1, at most their share, got others"


def best_count(curve: Sequence[float], most: int, mu_scale: float) -> int:
    """Return the K of the lowest e(K), 1 to ``most``; ties go to the smallest, and 1 where no cost is known."""
    length = len(curve) // 2
    errors = {
        clusters: float(np.sqrt(clusters / most)) + mu_scale * curve[clusters - 1] / curve[length + clusters - 1]
        for clusters in range(1, min(most, length) + 1)
        if curve[length + clusters - 1] > 0
    }
    return min(errors, key=lambda clusters: errors[clusters], default=1)

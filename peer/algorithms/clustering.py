"""k-means on models: k-means++ on a first call, Lloyd's steps from known centers later, so that labels persist. Pure.

All works on coordinates: n models of d elements as points of n dimensions with the same distances, so that restarts and several
numbers of clusters cost no pass over the models.

Source: David Arthur and Sergei Vassilvitskii, "k-means++: The Advantages of Careful Seeding", 2007. The best of several starts
counts, and an emptied cluster gets the point that is farthest from its center: choices of this project.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from peer.core.averaging import Vector

Points = npt.NDArray[np.float64]  # [n, n]
Labels = npt.NDArray[np.int64]
STARTS = 10
STEPS_MAX = 100
BLOCK_ELEMENTS = 1 << 14


def coordinates(models: Sequence[Vector], reference: Vector) -> Points:
    """Return points with the distances of the models, float64 [n, n].

    Args:
        models: n vectors float32 [d].
        reference: float32 [d], near the models: only differences from it are multiplied, so that little is lost.
    """
    products = np.zeros((len(models), len(models)))
    for start in range(0, reference.size, BLOCK_ELEMENTS):
        place = slice(start, start + BLOCK_ELEMENTS)
        rows = np.stack([model[place] for model in models]).astype(np.float64) - reference[place]
        products += rows @ rows.T
    values, vectors = np.linalg.eigh(products)
    points: Points = vectors * np.sqrt(np.maximum(values, 0.0))
    return points


def squared_distances(points: Points, centers: Points) -> npt.NDArray[np.float64]:
    """Return the squared distance of each point from each center, [n, K]."""
    found: npt.NDArray[np.float64] = ((points[:, None] - centers[None]) ** 2).sum(axis=2)
    return found


def k_means(points: Points, clusters: int, draw: np.random.Generator) -> Labels:
    """Return the label of each point, int64 [n]: the best of several starts of k-means++; with K >= n each point has its own."""
    if clusters >= len(points):
        return np.arange(len(points))
    found = [lloyd(points, _seeded(points, clusters, draw)) for _ in range(STARTS)]
    return min(found, key=lambda labels: cost(points, labels))


def lloyd(points: Points, centers: Points) -> Labels:
    """Return the label of each point, int64 [n], after Lloyd's steps from K centers [K, n]; cluster k descends from center k.

    Ties go to the lowest index. An emptied cluster gets the farthest point of a cluster with several, as long as there is one.
    """
    centers, labels = centers.copy(), np.full(len(points), -1)
    for _ in range(STEPS_MAX):
        distances = squared_distances(points, centers)
        found = np.argmin(distances, axis=1)
        for empty in sorted(set(range(len(centers))) - set(found.tolist())):
            sizes = np.bincount(found, minlength=len(centers))
            own = np.where(sizes[found] > 1, distances[np.arange(len(points)), found], -1.0)
            if own.max() > 0:
                found[int(np.argmax(own))] = empty
        if np.array_equal(found, labels):
            break
        labels = found
        for cluster in set(labels.tolist()):
            centers[cluster] = points[labels == cluster].mean(axis=0)
    return labels


def cost(points: Points, labels: Labels, weights: npt.NDArray[np.float64] | None = None) -> float:
    """Return the mean squared distance of the points from the means of their clusters, weighted by ``weights`` [n]."""
    shares = np.ones(len(points)) if weights is None else weights
    total = 0.0
    for cluster in set(labels.tolist()):
        inside = labels == cluster
        center = points[inside].mean(axis=0)
        total += float((shares[inside] * ((points[inside] - center) ** 2).sum(axis=1)).sum())
    return total / float(shares.sum())


def nearest(model: Vector, centers: Sequence[Vector]) -> int:
    """Return the center of the smallest distance from a model; ties go to the lowest index."""
    squared = np.zeros(len(centers))
    for start in range(0, model.size, BLOCK_ELEMENTS):
        place = slice(start, start + BLOCK_ELEMENTS)
        own = model[place].astype(np.float64)
        squared += [float(((own - center[place]) ** 2).sum()) for center in centers]
    return int(np.argmin(squared))


def _seeded(points: Points, clusters: int, draw: np.random.Generator) -> Points:
    """Return K points, each drawn with a probability proportional to its squared distance from those before."""
    chosen = [int(draw.integers(len(points)))]
    while len(chosen) < clusters:
        distances = squared_distances(points, points[chosen]).min(axis=1)
        total = distances.sum()
        chances = distances / total if total > 0 else None
        chosen.append(int(draw.choice(len(points), p=chances)))
    return points[chosen]

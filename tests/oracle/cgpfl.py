"""CGPFL between neighbors in float64 NumPy: an independent oracle that shares no code with the project.

k-means is the best of all partitions of a neighborhood's models, so it needs no seeds; labels go from peer 0 along a tree of
shortest paths, by the best of all permutations. Every batch is the whole training set, as in `tests.oracle.personal`.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from tests.oracle.fedspd import Data
from tests.oracle.personal import Peer, pfedme


def best_partition(models: list[np.ndarray], clusters: int) -> list[int]:
    """Return the labels of the partition into ``clusters`` non-empty parts with the smallest sum of squared distances."""

    def cost(labels: tuple[int, ...]) -> float:
        total = 0.0
        for part in range(clusters):
            members = [model for model, label in zip(models, labels, strict=True) if label == part]
            center = np.mean(members, axis=0)
            total += sum(float(((member - center) ** 2).sum()) for member in members)
        return total

    every = (labels for labels in product(range(clusters), repeat=len(models)) if len(set(labels)) == clusters)
    return list(min(every, key=cost))


def paths(neighbors: dict[int, list[int]]) -> list[tuple[int, int]]:
    """Return (peer, its parent on a shortest path to peer 0), nearer peers first."""
    seen, found = [0], []
    for parent in seen:
        for peer in neighbors[parent]:
            if peer not in seen:
                seen.append(peer)
                nearest = min(n for n in neighbors[peer] if n in seen[: seen.index(parent) + 1])
                found.append((peer, nearest))
    return found


def run(
    neighbors: dict[int, list[int]],
    data: dict[int, Data],
    start: np.ndarray,
    rounds: int,
    tau: int,
    rate: float,
    *,
    clusters: int,
    alpha: float = 1.0,
    strength: float,
    steps: int,
) -> list[dict[int, tuple[np.ndarray, list[np.ndarray], int]]]:
    """Return theta, the centers and the label of each peer after each round."""
    peers = {i: Peer(np.array(start, dtype=np.float64), own) for i, own in data.items()}
    centers = {i: [np.array(start, dtype=np.float64)] * clusters for i in peers}
    labels: dict[int, int] = {}
    found = []
    for t in range(rounds):
        for i, peer in peers.items():
            if t:
                peer.w = centers[i][labels[i]]
            pfedme(peer, tau, rate, strength=strength, steps=steps)
            if t:
                labels[i] = int(np.argmin([((peer.w - center) ** 2).sum() for center in centers[i]]))
        sent = {i: peer.w for i, peer in peers.items()}
        named = dict(labels)
        for i, others in neighbors.items():
            group = sorted([i, *others])
            parts = [named[j] for j in group] if t else best_partition([sent[j] for j in group], clusters)
            if not t:
                labels[i] = parts[group.index(i)]
            moved = list(centers[i])
            for part in set(parts):
                mean = np.mean([sent[j] for j, label in zip(group, parts, strict=True) if label == part], axis=0)
                moved[part] = (1 - alpha) * centers[i][part] + alpha * mean
            centers[i] = moved
        for i, parent in paths(neighbors) if t == 0 else ():
            theirs, mine = centers[parent], centers[i]
            order = min(
                permutations(range(clusters)),
                key=lambda p, a=theirs, b=mine: sum(((x - b[k]) ** 2).sum() for x, k in zip(a, p, strict=True)),
            )
            centers[i] = [mine[k] for k in order]
            labels[i] = order.index(labels[i])
        found.append({i: (peer.v.copy(), list(centers[i]), labels[i]) for i, peer in peers.items()})
    return found

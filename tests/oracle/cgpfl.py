"""CGPFL between neighbors in float64 NumPy: an independent oracle that shares no code with the project.

k-means is the best of all partitions of a neighborhood's models, so it needs no seeds; labels go from peer 0 along a tree of
shortest paths, by the best of all permutations. With one cluster it is pFedMe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product

import numpy as np

from tests.oracle.fedspd import Data
from tests.oracle.personal import Peer, pfedme

Batches = Callable[[int, int], Sequence[np.ndarray]]  # of a peer in a round: the samples of each mini-batch


def cost(models: list[np.ndarray], labels: Sequence[int], samples: Sequence[int] | None = None) -> float:
    """Return the sum of squared distances from the means of the parts, weighted by ``samples``."""
    total, weights = 0.0, samples or [1] * len(models)
    for part in set(labels):
        places = [place for place, label in enumerate(labels) if label == part]
        center = np.mean([models[place] for place in places], axis=0)
        total += sum(weights[place] * float(((models[place] - center) ** 2).sum()) for place in places)
    return total


def best_partition(models: list[np.ndarray], clusters: int) -> list[int]:
    """Return the labels of the partition into ``clusters`` non-empty parts with the smallest sum of squared distances."""
    every = (labels for labels in product(range(clusters), repeat=len(models)) if len(set(labels)) == clusters)
    return list(min(every, key=lambda labels: cost(models, labels)))


def curve(models: list[np.ndarray], samples: list[int], length: int) -> list[float]:
    """Return cost(K) / cost(1) for K = 1 .. ``length``, 0 beyond half of the models, then 1 for each K that there is."""
    known = range(1, len(models) // 2 + 1)
    costs = [cost(models, best_partition(models, clusters), samples) for clusters in known]
    missing = [0.0] * (length - len(costs))
    return [*(found / costs[0] for found in costs), *missing, *([1.0] * len(costs)), *missing]


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


def mixing(mix: str, neighbors: dict[int, list[int]], i: int, j: int) -> float:
    """Return the weight of the model of j at peer i, apart from that of the own model with Metropolis weights."""
    return 1.0 if mix == "uniform" else 1 / (1 + max(len(neighbors[i]), len(neighbors[j])))


def run(
    neighbors: dict[int, list[int]],
    data: dict[int, Data],
    start: np.ndarray,
    rounds: int,
    rate: float,
    batches: Batches,
    *,
    clusters: int,
    alpha: float,
    mix: str,
    resting: Sequence[set[int]],
    strength: float,
    steps: int,
) -> list[dict[int, tuple[np.ndarray, list[np.ndarray], int]]]:
    """Return theta, the centers and the label of each peer after each round; those of ``resting`` sit out, in round 0 none."""
    peers = {i: Peer(np.array(start, dtype=np.float64), own) for i, own in data.items()}
    centers = {i: [np.array(start, dtype=np.float64)] * clusters for i in peers}
    labels: dict[int, int] = {}
    found = []
    for t in range(rounds):
        active = [i for i in peers if i not in resting[t]]
        for i in active:
            peer = peers[i]
            if t:
                peer.w = centers[i][labels[i]]
            for batch in batches(i, t):
                peer.data = Data(data[i].x[batch], data[i].y[batch])
                pfedme(peer, 1, rate, strength=strength, steps=steps)
            if t:
                labels[i] = int(np.argmin([((peer.w - center) ** 2).sum() for center in centers[i]]))
        sent = {i: peers[i].w for i in active}
        named = dict(labels)
        for i, others in neighbors.items():
            group = sorted([i, *(j for j in others if j in active)])
            models = {j: sent[j] if j in active else centers[i][labels[i]] for j in group}
            parts = [named[j] for j in group] if t else best_partition([sent[j] for j in group], clusters)
            if not t:
                labels[i] = parts[group.index(i)]
            moved = list(centers[i])
            for part in set(parts):
                members = [j for j, label in zip(group, parts, strict=True) if label == part]
                weights = {j: mixing(mix, neighbors, i, j) for j in members}
                if mix == "metropolis" and i in weights:
                    weights[i] = 1 - sum(weight for j, weight in weights.items() if j != i)
                mean = sum(weight * models[j] for j, weight in weights.items()) / sum(weights.values())
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

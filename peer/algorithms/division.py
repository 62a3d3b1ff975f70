"""A division of all peers by their data that every peer computes alike, without a coordinator. An addition of this project.

In the first round all peers train the same first model, so their updates differ as their data differ. Each peer makes a sketch of
its update. Selections of the next rounds relay all known sketches. After as many rounds as the graph's diameter, all peers of a
connected part know the same sketches, and k-means with the same seed gives the same division. A lost sketch is one point less.
The cost is N q float32 values on each edge in each of these rounds, and no model.

A Byzantine neighbor can relay a false sketch of another peer, as the first sketch of a peer is kept. This puts peers into a wrong
part, and does nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.clustering import Labels, Points, cost, k_means
from peer.algorithms.sketches import Ids, Sketches

NEAR = 0.9
ROTATIONS = 39  # where there are no groups, two runs of 40 find some


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
    labels = k_means(sketches.astype(np.float64), parts, generator(seed, "divide"))
    names: dict[int, int] = {}
    return {int(i): names.setdefault(int(part), len(names)) for i, part in zip(ids, labels, strict=True)}


@functools.lru_cache(maxsize=1)  # a simulation of all peers asks once for each
def _grouped(ids: bytes, sketches: bytes, most: int, seed: int) -> tuple[dict[int, int], tuple[int, ...]]:
    peers = np.frombuffer(ids, np.int64)
    rows = np.frombuffer(sketches, np.float32).reshape(len(peers), -1)
    labels = groups(rows, most, generator(seed, "groups"))
    middles = medoids(directions(rows), labels)
    order = {int(labels[index]): number for number, index in enumerate(middles)}
    return {int(i): order[int(label)] for i, label in zip(peers, labels, strict=True)}, tuple(
        int(peers[index]) for index in middles
    )


def grouped(ids: Ids, sketches: Sketches, most: int, seed: int) -> tuple[Mapping[int, int], tuple[int, ...]]:
    """Return the group of each peer, and the peer in the middle of each group, the largest group first.

    Args:
        ids: peer ids, ascending, int64 [n], of one peer or more.
        sketches: one for each id, float32 [n, q].
        most: the largest number of groups.
        seed: of the run; equal on all peers.
    """
    return _grouped(ids.tobytes(), np.ascontiguousarray(sketches, np.float32).tobytes(), most, seed)


def directions(sketches: Sketches | Points) -> Points:
    """Return what sketches say of the peers' data: centered, each of length 1, float64 [n, q]; an equal one stays 0."""
    centered = sketches.astype(np.float64) - sketches.mean(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(centered, axis=1, keepdims=True)
    points: Points = np.divide(centered, lengths, out=np.zeros_like(centered), where=lengths > 0)
    return points


def groups(sketches: Sketches | Points, most: int, draw: np.random.Generator) -> Labels:
    """Return the group of each sketch, int64 [n]: as many groups of directions, up to ``most``, as a rotation test finds.

    The sketches are compared with `ROTATIONS` other sets, mixed by random orthogonal matrices. These keep mean and covariance,
    but no groups; directions come after the mixing. What k-means with each number of centers saves is measured in standard
    deviations of what it saves in these sets. There are groups if the largest of these numbers is larger than in all other sets
    but one; the smallest number of groups counts that comes near it. No fixed share would do: what one more center saves by
    chance depends on the sketches.

    Source: Oyvind Langsrud, "Rotation tests", 2005; the largest of several statistics, as Peter H. Westfall and S. Stanley Young,
    "Resampling-Based Multiple Testing", 1993.
    """
    points = directions(sketches)
    none = np.zeros(len(points), np.int64)
    counts = range(2, min(most, len(points) - 1) + 1)
    if not counts or cost(points, none) == 0:
        return none
    found = [k_means(points, count, draw) for count in counts]
    others = [directions(_mixed(sketches.astype(np.float64), draw)) for _ in range(ROTATIONS)]
    by_chance = np.array([_saved(each, [k_means(each, count, draw) for count in counts]) for each in others])
    mean, spread = by_chance.mean(axis=0), by_chance.std(axis=0) + np.finfo(float).eps
    own = (_saved(points, found) - mean) / spread
    if own.max() <= np.sort(((by_chance - mean) / spread).max(axis=1))[-2]:
        return none
    return np.unique(found[int(np.argmax(own >= NEAR * own.max()))], return_inverse=True)[1]


def medoids(points: Points, labels: Labels) -> list[int]:
    """Return the index of the point nearest to the center of each group; larger groups first, then the smaller index."""
    found = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        distances = ((points[members] - points[members].mean(axis=0)) ** 2).sum(axis=1)
        found.append((-len(members), int(members[int(np.argmin(distances))])))
    return [index for _, index in sorted(found)]


def _mixed(points: Points, draw: np.random.Generator) -> Points:
    """Return the points, mixed by a random orthogonal matrix that keeps their mean and covariance."""
    size = len(points)
    basis = np.linalg.qr(np.column_stack([np.ones(size), draw.standard_normal((size, size - 1))]))[0][:, 1:]
    rotation = np.linalg.qr(draw.standard_normal((size - 1, size - 1)))[0]
    mixed: Points = points.mean(axis=0) + basis @ rotation @ (basis.T @ points)
    return mixed


def _saved(points: Points, labels: Sequence[Labels]) -> npt.NDArray[np.float64]:
    """Return the logarithm of how many times less each division costs than one group, float64 [divisions]."""
    whole = cost(points, np.zeros(len(points), np.int64))
    return np.log(whole / np.maximum([cost(points, each) for each in labels], 1e-12 * whole))

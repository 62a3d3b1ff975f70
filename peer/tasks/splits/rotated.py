"""Splits in which distributions differ by rotation (DFCA, IFCA; FedSPD)."""

from __future__ import annotations

import numpy as np

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks.splits.plan import (
    Index,
    Options,
    PeerSplit,
    Samples,
    SplitInput,
    deal,
    deal_counts,
    solvable_counts,
)

FRACTIONS = (0.1, 0.9)  # f_i ~ U(0.1, 0.9), FedSPD


def rotated_hard(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Copy all images once per rotation and deal each copy to the peers of its cluster.

    Peer i belongs to cluster i mod k (OURS: balanced for any N). The same image may exist in each rotation.
    Source: DFCA App. A.1, IFCA Section 6; their code does the same to the test set.
    """
    turns = options.turns(2)
    k = len(turns)
    if data.peers < k:
        raise TaskError(f"split: rotated_hard with {k} clusters needs {k} or more peers, there are {data.peers}")
    splits: list[PeerSplit | None] = [None] * data.peers
    for cluster, turn in enumerate(turns):
        members = range(cluster, data.peers, k)
        train, test = (deal(Samples.of(half, turn, cluster), len(members), draw) for half in data.halves)
        for place, peer_id in enumerate(members):
            splits[peer_id] = PeerSplit(train[place], test[place])
    return [s for s in splits if s is not None]


def rotated_soft(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Half of the images are rotated once; peer i draws a fraction f_i from the upright half (FedSPD)."""
    pools = [_rotated_halves(half, options, draw) for half in data.halves]
    return _mixed(data, pools, np.ones(data.peers), options, draw)


def oddeven_rotated(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Peer i draws a fraction f_i from odd labels; independently, half of all images are rotated (FedSPD, CIFAR).

    True cluster = 2 * rotated + odd: four latent distributions, while S = 2 is the paper's default.
    """
    pools = [_odd_even(data, half, options, draw) for half in data.halves]
    return _mixed(data, pools, np.ones(data.peers), options, draw)


def imbalance(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Three equal groups of peers hold 1 : (1 + r) / 2 : r of the data (FedSPD Fig. 9; the middle value is OURS)."""
    ratio = options.number("r", 5.0, 1.0)
    base = options.text("base", "rotated_soft")
    if base not in {"rotated_soft", "oddeven_rotated"}:
        raise TaskError(f"split_options.base is {base!r}; rotated_soft or oddeven_rotated are allowed with imbalance")
    groups = np.arange(data.peers) * 3 // data.peers
    weights = np.array([1.0, (1.0 + ratio) / 2.0, ratio])[groups]
    if base == "rotated_soft":
        pools = [_rotated_halves(half, options, draw) for half in data.halves]
    else:
        pools = [_odd_even(data, half, options, draw) for half in data.halves]
    return _mixed(data, pools, weights, options, draw)


def _rotated_halves(half: Index, options: Options, draw: np.random.Generator) -> list[Samples]:
    """Split randomly into an upright half (cluster 0) and a rotated one (cluster 1)."""
    turn = _rotation(options)
    order = draw.permutation(half)
    middle = len(order) // 2
    return [Samples.of(order[:middle], 0, 0), Samples.of(order[middle:], turn, 1)]


def _odd_even(data: SplitInput, half: Index, options: Options, draw: np.random.Generator) -> list[Samples]:
    turn = _rotation(options)
    is_rotated = draw.permutation(len(half)) < len(half) // 2
    odd = data.labels[half] % 2
    everything = Samples.of(half, is_rotated * turn, 2 * is_rotated + odd)
    return [everything[np.flatnonzero(odd == 1)], everything[np.flatnonzero(odd == 0)]]


def _rotation(options: Options) -> int:
    degrees = options.integer("rotation", 90, 90, 270)
    if degrees % 90:
        raise TaskError(f"split_options.rotation is {degrees}; 90, 180 or 270 degrees are allowed")
    return degrees // 90


def _mixed(
    data: SplitInput,
    pools: list[list[Samples]],
    weights: np.ndarray[tuple[int], np.dtype[np.float64]],
    options: Options,
    draw: np.random.Generator,
) -> list[PeerSplit]:
    """Deal two pools by fractions f_i and sizes in proportion to ``weights``, training and test alike."""
    least = options.number("fraction_min", FRACTIONS[0], 0.0, 1.0)
    most = options.number("fraction_max", FRACTIONS[1], least, 1.0)
    fraction = draw.uniform(least, most, data.peers)
    shares = np.stack([fraction, 1.0 - fraction], axis=1)
    caps = [options.integer("samples_per_peer", 0, 0), options.integer("test_per_peer", 0, 0)]
    hands = []
    for (first, second), cap in zip(pools, caps, strict=True):
        mean_size = (len(first) + len(second)) / data.peers
        sizes = weights / weights.mean() * (min(mean_size, cap) if cap else mean_size)
        counts = solvable_counts(sizes, shares, [len(first), len(second)])
        hands.append(deal_counts([first, second], counts, draw))
    return [PeerSplit(train, test) for train, test in zip(*hands, strict=True)]

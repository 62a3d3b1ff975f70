"""Splits in which distributions differ by rotation.

Sources: DFCA (Kirch et al. 2025, arXiv:2510.15300), IFCA (Ghosh et al. 2020, arXiv:2006.04088), FedSPD (Lin, Yağın and
Joe-Wong 2025, arXiv:2410.18862). OURS marks what a paper leaves open.
"""

from __future__ import annotations

import numpy as np

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.validation import counted
from peer.zoo.tasks.splits.options import Imbalance, Rotated, Rotations, Steps
from peer.zoo.tasks.splits.plan import (
    Index,
    PeerSplit,
    PoolSamples,
    SplitInput,
    divide,
    divide_by_fractions,
    divide_by_shares,
    rotated_halves,
)


def rotated_hard(data: SplitInput, options: Rotations, draw: np.random.Generator) -> list[PeerSplit]:
    """Copy all images once per rotation and divide each copy between the peers of its cluster.

    Peer i is in cluster i mod k (OURS: balanced for any N). The same image may exist in each rotation.
    Source: DFCA App. A.1, IFCA Section 6; their code divides the test set in the same way.
    """
    turns = options.turns
    k = len(turns)
    if data.peers < k:
        raise TaskError(
            f"split: rotated_hard: expected {k} or more peers, got {counted(data.peers, 'peer')} for {k} clusters"
        )
    splits: list[PeerSplit | None] = [None] * data.peers
    for cluster, turn in enumerate(turns):
        members = range(cluster, data.peers, k)
        train, test = (divide(PoolSamples.of(half, turn, cluster), len(members), draw) for half in data.halves)
        for place, peer_id in enumerate(members):
            splits[peer_id] = PeerSplit(train[place], test[place])
    return [s for s in splits if s is not None]


def rotated_soft(data: SplitInput, options: Rotated, draw: np.random.Generator) -> list[PeerSplit]:
    """Rotate half of the images; peer i has a fraction f_i from the upright half (FedSPD, MNIST and EMNIST)."""
    pools = [rotated_halves(half, options.rotation // 90, draw) for half in data.halves]
    return divide_by_fractions(pools, np.ones(data.peers), options, draw)


def oddeven_rotated(data: SplitInput, options: Rotated, draw: np.random.Generator) -> list[PeerSplit]:
    """Give peer i a fraction f_i of odd labels; independently, half of all images are rotated (FedSPD, CIFAR).

    True cluster = 2 * rotated + odd: four latent distributions; the default of the paper is S = 2.
    """
    pools = [_odd_even(data, half, options.rotation // 90, draw) for half in data.halves]
    return divide_by_fractions(pools, np.ones(data.peers), options, draw)


def oddeven_steps(data: SplitInput, options: Steps, draw: np.random.Generator) -> list[PeerSplit]:
    """Give peers 30, 40, 50, 60 and 70 % even labels in turn, in test data 10 to 90 %; half of all images are rotated.

    Peer i has a share 0.5 + (i mod 5 - 2) * step of even labels, with ``test_step`` in its test data. True cluster =
    2 * rotated + odd. Source: the authors' code of FedSPD, for MNIST and EMNIST letters too, where the paper's text has
    rotation alone; without rotation for CIFAR-100. OURS: the rotated half is drawn by chance, no two peers share test
    samples, and all peers have equally many training samples; in the code the last peer gets what is left.
    """
    steps = options.step, options.test_step
    fifth = (np.arange(data.peers) % 5 - 2).astype(np.float64)
    pools = [_odd_even(data, half, options.rotation // 90, draw) for half in data.halves]
    odd = 0.5 - fifth * steps[0], 0.5 - fifth * steps[1]
    return divide_by_shares(pools, np.ones(data.peers), odd, options, draw)


def imbalance(data: SplitInput, options: Imbalance, draw: np.random.Generator) -> list[PeerSplit]:
    """Give three equal groups of peers 1 : (1 + r) / 2 : r of the data (FedSPD Fig. 9; the middle value is OURS)."""
    groups = np.arange(data.peers) * 3 // data.peers
    weights = np.array([1.0, (1.0 + options.r) / 2.0, options.r])[groups]
    if options.base == "rotated_soft":
        pools = [rotated_halves(half, options.rotation // 90, draw) for half in data.halves]
    else:
        pools = [_odd_even(data, half, options.rotation // 90, draw) for half in data.halves]
    return divide_by_fractions(pools, weights, options, draw)


def _odd_even(data: SplitInput, half: Index, turn: int, draw: np.random.Generator) -> list[PoolSamples]:
    """Return the samples of odd and of even labels; half of all have ``turn`` quarter turns, none with 0."""
    is_rotated = (draw.permutation(len(half)) < len(half) // 2) & (turn > 0)
    odd = data.labels[half] % 2
    everything = PoolSamples.of(half, is_rotated * turn, 2 * is_rotated + odd)
    return [everything[np.flatnonzero(odd == 1)], everything[np.flatnonzero(odd == 0)]]

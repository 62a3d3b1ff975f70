"""Splits in which every peer has a mixture of given distributions A, B, ...

Sources: FedSoft (Ruan and Joe-Wong 2022, arXiv:2112.06053), Section 5; for pair_mixture FedSPD (Lin, Yağın and Joe-Wong
2025, arXiv:2410.18862), Table 9.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ConfigProblem, TaskError
from peer.zoo.tasks.splits.options import Cases, Pair, Pattern
from peer.zoo.tasks.splits.plan import (
    Index,
    PeerSplit,
    PoolSamples,
    SplitInput,
    divide_by_counts,
    divide_by_fractions,
    paired,
    rotated_halves,
    solvable_counts,
)

LOWER_FIRST, UPPER_FIRST, LETTERS = 36, 10, 26  # EMNIST by-class: digits, capitals, small letters


def mixture(data: SplitInput, options: Pattern, draw: np.random.Generator) -> list[PeerSplit]:
    """Mix distributions by ``pattern``: "10:90", "30:70" (any a:b), "linear" or "random".

    a:b: half of the peers have a % of A, the others b %. linear: peer i has a share (i + 0.5) / N of A. random: shares are
    the differences of sorted uniform numbers. Sizes are uniform in ``samples_min``..``samples_max`` (100..200).
    The distributions are those of the data set (``linear``), else upright images and images rotated by 90 degrees.
    """
    if data.source is None:
        return _mix(data, [rotated_halves(half, 1, draw) for half in data.halves], options, draw)
    sources = range(int(data.source.max()) + 1)
    pools = [[_of_source(data.source, half, s) for s in sources] for half in data.halves]
    return _mix(data, pools, options, draw)


def letters_case(data: SplitInput, options: Cases, draw: np.random.Generator) -> list[PeerSplit]:
    """Mix EMNIST by-class: small letters are A, capitals are B, both with the 26 labels of the alphabet (FedSoft).

    ``clusters`` = 4: half of each is rotated by 90 degrees; true cluster = 2 * rotated + capital.
    """
    if int(data.labels.max()) != LOWER_FIRST + LETTERS - 1:
        raise TaskError(
            "split: letters_case: expected task emnist with task_options.split = 'byclass', got other labels"
        )
    pools = []
    for half in data.halves:
        of_case = []
        for case, first in enumerate((LOWER_FIRST, UPPER_FIRST)):
            index = half[(data.labels[half] >= first) & (data.labels[half] < first + LETTERS)]
            order, middle = draw.permutation(index), len(index) // 2 if options.clusters == 4 else len(index)
            of_case.append(PoolSamples.of(order[:middle], 0, case))
            if options.clusters == 4:
                of_case.append(PoolSamples.of(order[middle:], 1, 2 + case))
        pools.append(of_case)
    label_map = np.full(LOWER_FIRST + LETTERS, -1, dtype=np.int64)
    for first in (LOWER_FIRST, UPPER_FIRST):
        label_map[first : first + LETTERS] = np.arange(LETTERS)
    return [PeerSplit(s.train, s.test, label_map=label_map) for s in _mix(data, pools, options, draw)]


def pair_mixture(data: SplitInput, options: Pair, draw: np.random.Generator) -> list[PeerSplit]:
    """Mix two data sets of ``per_source`` images each; peer i has a fraction f_i from the first (FedSPD Table 9)."""
    if data.source is None:
        raise TaskError(
            "split: pair_mixture: expected two data sets, got one. Set task_options.second, such as 'mnist'"
        )
    limit = options.per_source
    pools = []
    for half in data.halves:
        part = limit if half[0] == 0 else max(1, limit * len(half) // data.train_count)
        chosen = [draw.permutation(half[data.source[half] == s])[:part] for s in (0, 1)]
        pools.append([PoolSamples.of(index, 0, s) for s, index in enumerate(chosen)])
    return divide_by_fractions(pools, np.ones(data.peers), options, draw)


def _of_source(source: Index, half: Index, s: int) -> PoolSamples:
    return PoolSamples.of(half[source[half] == s], 0, s)


def _mix(
    data: SplitInput, pools: list[list[PoolSamples]], options: Pattern, draw: np.random.Generator
) -> list[PeerSplit]:
    shares = _shares(options.pattern, data.peers, len(pools[0]), draw)
    cap, test_cap = options.samples_per_peer, options.test_per_peer
    sizes = draw.integers(options.samples_min, options.samples_max, data.peers, endpoint=True).astype(np.float64)
    if cap:
        sizes = np.minimum(sizes, cap)
    test_sizes = np.full(data.peers, float(test_cap)) if test_cap else sizes
    portions = []
    for parts, wanted in zip(pools, (sizes, test_sizes), strict=True):
        counts = solvable_counts(wanted, shares, [len(p) for p in parts])
        portions.append(divide_by_counts(parts, counts, draw))
    return paired(*portions)


def _shares(pattern: str, peers: int, pools: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """Return the share of each distribution at each peer, float64 [peers, pools]; rows sum to 1."""
    if pattern == "random":
        breaks = np.sort(draw.uniform(size=(peers, pools - 1)), axis=1)
        return np.diff(breaks, axis=1, prepend=0.0, append=1.0)
    if pools != 2:
        raise TaskError(f"split_options.pattern: expected 'random' with {pools} distributions, got {pattern!r}")
    first = (np.arange(peers) + 0.5) / peers if pattern == "linear" else np.resize(_percent(pattern), peers)
    return np.stack([first, 1.0 - first], axis=1)


def _percent(pattern: str) -> tuple[float, float]:
    parts = pattern.split(":")
    if len(parts) == 2 and all(p.strip().isdigit() and int(p) <= 100 for p in parts):
        return int(parts[0]) / 100, int(parts[1]) / 100
    allowed = "'a:b' in percent, 'linear' or 'random'"
    raise TaskError(ConfigProblem("run.split_options.pattern", allowed, repr(pattern)))

"""Splits in which every peer is a mixture of given distributions A, B, ... (FedSoft; FedSPD Table 9)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks.splits.plan import Index, Options, PeerSplit, Samples, SplitInput, deal_counts, solvable_counts

LOWER_FIRST, UPPER_FIRST, LETTERS = 36, 10, 26  # EMNIST by-class: digits, then capitals, then small letters


def mixture(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Deal distributions by ``pattern``: "10:90", "30:70" (any a:b), "linear" or "random" (FedSoft Section 5).

    a:b gives half of the peers a % of A, the others b %; linear gives peer i a share (i + 0.5) / N of A; random takes
    the gaps between sorted uniform breaks. Sizes are uniform in ``samples_min``..``samples_max``, 100..200.
    The distributions are the data set's own (``linear``), else upright images and images rotated by 90 degrees.
    """
    if data.source is None:
        return _mix(data, [_rotation_pools(half, draw) for half in data.halves], options, draw)
    sources = range(int(data.source.max()) + 1)
    pools = [[_of_source(data.source, half, s) for s in sources] for half in data.halves]
    return _mix(data, pools, options, draw)


def letters_case(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """EMNIST by-class: small letters are A, capitals B, both with the 26 labels of the alphabet (FedSoft).

    ``clusters`` = 4 rotates half of each by 90 degrees: true cluster = 2 * rotated + capital.
    """
    if int(data.labels.max()) != LOWER_FIRST + LETTERS - 1:
        raise TaskError("split: letters_case needs EMNIST with task_options.split = 'byclass' (62 classes)")
    clusters = options.integer("clusters", 2, 2, 4)
    pools = []
    for half in data.halves:
        of_case = []
        for case, first in enumerate((LOWER_FIRST, UPPER_FIRST)):
            index = half[(data.labels[half] >= first) & (data.labels[half] < first + LETTERS)]
            order, middle = draw.permutation(index), len(index) // 2 if clusters == 4 else len(index)
            of_case.append(Samples.of(order[:middle], 0, case))
            if clusters == 4:
                of_case.append(Samples.of(order[middle:], 1, 2 + case))
        pools.append(of_case)
    label_map = np.full(LOWER_FIRST + LETTERS, -1, dtype=np.int64)
    for first in (LOWER_FIRST, UPPER_FIRST):
        label_map[first : first + LETTERS] = np.arange(LETTERS)
    return [PeerSplit(s.train, s.test, label_map=label_map) for s in _mix(data, pools, options, draw)]


def pair_mixture(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """``per_source`` images of each of two data sets; peer i draws a fraction f_i from the first (FedSPD Table 9)."""
    if data.source is None:
        raise TaskError("split: pair_mixture needs two data sets; set task_options.second, such as 'mnist'")
    limit = options.integer("per_source", 25_000, 1)
    pools = []
    for half in data.halves:
        part = limit if half[0] == 0 else max(1, limit * len(half) // data.train_count)
        chosen = [draw.permutation(half[data.source[half] == s])[:part] for s in (0, 1)]
        pools.append([Samples.of(index, 0, s) for s, index in enumerate(chosen)])
    fraction = draw.uniform(0.1, 0.9, data.peers)
    shares = np.stack([fraction, 1 - fraction], axis=1)
    caps = (options.integer("samples_per_peer", 0, 0), options.integer("test_per_peer", 0, 0))
    hands = []
    for two, cap in zip(pools, caps, strict=True):
        mean_size = (len(two[0]) + len(two[1])) / data.peers
        sizes = np.full(data.peers, min(mean_size, cap) if cap else mean_size)
        hands.append(deal_counts(two, solvable_counts(sizes, shares, [len(p) for p in two]), draw))
    return [PeerSplit(train, test) for train, test in zip(*hands, strict=True)]


def _of_source(source: Index, half: Index, s: int) -> Samples:
    return Samples.of(half[source[half] == s], 0, s)


def _rotation_pools(half: Index, draw: np.random.Generator) -> list[Samples]:
    order, middle = draw.permutation(half), len(half) // 2
    return [Samples.of(order[:middle], 0, 0), Samples.of(order[middle:], 1, 1)]


def _mix(data: SplitInput, pools: list[list[Samples]], options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    shares = _shares(options.text("pattern", "10:90"), data.peers, len(pools[0]), draw)
    least = options.integer("samples_min", 100, 1)
    most = options.integer("samples_max", max(200, least), least)
    cap = options.integer("samples_per_peer", 0, 0)
    test_cap = options.integer("test_per_peer", 0, 0)
    sizes = draw.integers(least, most, data.peers, endpoint=True).astype(np.float64)
    if cap:
        sizes = np.minimum(sizes, cap)
    test_sizes = np.full(data.peers, float(test_cap)) if test_cap else sizes
    hands = []
    for parts, wanted in zip(pools, (sizes, test_sizes), strict=True):
        counts = solvable_counts(wanted, shares, [len(p) for p in parts])
        hands.append(deal_counts(parts, counts, draw))
    return [PeerSplit(train, test) for train, test in zip(*hands, strict=True)]


def _shares(pattern: str, peers: int, pools: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """Return each peer's share of each distribution, float64 [peers, pools], rows sum to 1."""
    if pattern == "random":
        breaks = np.sort(draw.uniform(size=(peers, pools - 1)), axis=1)
        return np.diff(breaks, axis=1, prepend=0.0, append=1.0)
    if pools != 2:
        raise TaskError(f"split_options.pattern is {pattern!r}; with {pools} distributions only 'random' is allowed")
    first = (np.arange(peers) + 0.5) / peers if pattern == "linear" else np.resize(_percent(pattern), peers)
    return np.stack([first, 1.0 - first], axis=1)


def _percent(pattern: str) -> tuple[float, float]:
    parts = pattern.split(":")
    if len(parts) == 2 and all(p.strip().isdigit() and int(p) <= 100 for p in parts):
        return int(parts[0]) / 100, int(parts[1]) / 100
    raise TaskError(f"split_options.pattern is {pattern!r}; 'a:b' in percent, 'linear' or 'random' are allowed")

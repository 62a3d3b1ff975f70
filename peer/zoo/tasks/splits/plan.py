"""Result and input of a split, and functions that several splits use. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from peer.zoo.tasks.splits.options import Fractions, SplitOptions

Index = NDArray[np.int64]
UNKNOWN = -1  # true cluster of a sample in a split without ground truth


@dataclass(frozen=True, eq=False)
class PoolSamples:
    """Samples of a pool, each with its quarter turns and true cluster; all int64 [m]."""

    index: Index
    turns: Index
    cluster: Index

    @classmethod
    def of(cls, index: Index, turns: int | Index = 0, cluster: int | Index = UNKNOWN) -> PoolSamples:
        """Build from indices, with turns and cluster as one value or one per sample."""
        index = np.asarray(index, dtype=np.int64)
        fill = np.zeros(len(index), dtype=np.int64)
        return cls(index, fill + turns, fill + cluster)

    @classmethod
    def joined(cls, parts: Sequence[PoolSamples]) -> PoolSamples:
        """Concatenate."""
        if not parts:
            return cls.of(np.empty(0, np.int64))
        columns = zip(*((p.index, p.turns, p.cluster) for p in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: Index | slice) -> PoolSamples:
        return PoolSamples(self.index[chosen], self.turns[chosen], self.cluster[chosen])


@dataclass(frozen=True, eq=False)
class PeerSplit:
    """The samples of one peer; ``label_map`` int64 [classes] renames its labels (flipped labels, merged cases)."""

    train: PoolSamples
    test: PoolSamples
    validation: PoolSamples = field(default_factory=lambda: PoolSamples.of(np.empty(0, np.int64)))
    label_map: Index | None = None


@dataclass(frozen=True, eq=False)
class SplitInput:
    """Input of a split, besides its options and the data seed.

    Attributes:
        labels: int64 [n] of all samples; zeros in regression.
        train_count: number of training samples, which come first; the others are for testing.
        peers: N.
        source: int64 [n], the distribution of each sample, or None.
        group: int64 [n], the writer of each sample or its value in a column, or None.
    """

    labels: Index
    train_count: int
    peers: int
    source: Index | None = None
    group: Index | None = None

    @property
    def halves(self) -> tuple[Index, Index]:
        """Indices of the training set and of the test set."""
        return np.arange(self.train_count), np.arange(self.train_count, len(self.labels))


SplitFunction = Callable[[SplitInput, Any, np.random.Generator], list[PeerSplit]]  # its options are of its own class


def paired(train: Sequence[PoolSamples], test: Sequence[PoolSamples]) -> list[PeerSplit]:
    """Return one `PeerSplit` per peer from its training and test samples."""
    return [PeerSplit(a, b) for a, b in zip(train, test, strict=True)]


def divide(samples: PoolSamples, parts: int, draw: np.random.Generator) -> list[PoolSamples]:
    """Permute the samples and divide them into ``parts`` parts whose sizes differ by at most one."""
    return [samples[portion] for portion in np.array_split(draw.permutation(len(samples)), parts)]


def divide_by_counts(pools: Sequence[PoolSamples], counts: Index, draw: np.random.Generator) -> list[PoolSamples]:
    """Permute each pool and give peer i its next ``counts[i, p]`` samples; counts int64 [peers, pools]."""
    portions: list[list[PoolSamples]] = [[] for _ in counts]
    for p, pool in enumerate(pools):
        order = draw.permutation(len(pool))
        ends = np.cumsum(counts[:, p])
        for i, end in enumerate(ends):
            portions[i].append(pool[order[end - counts[i, p] : end]])
    return [PoolSamples.joined(portion) for portion in portions]


def solvable_counts(sizes: NDArray[np.float64], shares: NDArray[np.float64], pools: Sequence[int]) -> Index:
    """Return the number of samples of each peer from each pool, int64 [peers, pools].

    OURS: if a pool is too small, all sizes shrink by one factor, which keeps the shares and the ratio of the sizes.

    Args:
        sizes: wanted samples of each peer, [peers].
        shares: share of each pool, [peers, pools]; rows sum to 1.
        pools: number of samples in each pool.
    """
    wanted = (sizes[:, None] * shares).sum(0)
    scale = min(1.0, *(have / want for have, want in zip(pools, wanted, strict=True) if want > 0))
    while scale > 0:
        totals: Index = np.floor(sizes * scale + 1e-9).astype(np.int64)
        counts: Index = np.rint(totals[:, None] * shares).astype(np.int64)
        counts[:, -1] = totals - counts[:, :-1].sum(1)
        if (counts >= 0).all() and (counts.sum(0) <= np.asarray(pools)).all():
            return counts
        scale -= 1.0 / max(1.0, float(sizes.max()))  # rounding exceeded a pool: one sample less per peer
    raise TaskError(
        f"split: expected enough samples for {len(sizes)} peers, got pools of {list(pools)}. Use fewer peers."
    )


def rotated_halves(half: Index, turn: int, draw: np.random.Generator) -> list[PoolSamples]:
    """Split samples randomly into an upright half (cluster 0) and a half with ``turn`` quarter turns (cluster 1)."""
    order = draw.permutation(half)
    middle = len(order) // 2
    return [PoolSamples.of(order[:middle], 0, 0), PoolSamples.of(order[middle:], turn, 1)]


def divide_by_fractions(
    pools: list[list[PoolSamples]], weights: NDArray[np.float64], options: Fractions, draw: np.random.Generator
) -> list[PeerSplit]:
    """Divide two pools: peer i has a fraction f_i of the first one, and a size in proportion to its weight.

    Args:
        pools: two pools of training samples, two of test samples.
        weights: of the peers, [peers].
        options: fraction_min, fraction_max, samples_per_peer and test_per_peer are read.
        draw: source of randomness.
    """
    fractions = draw.uniform(options.fraction_min, options.fraction_max, len(weights))
    return divide_by_shares(pools, weights, (fractions, fractions), options, draw)


def divide_by_shares(
    pools: list[list[PoolSamples]],
    weights: NDArray[np.float64],
    fractions: tuple[NDArray[np.float64], NDArray[np.float64]],
    options: SplitOptions,
    draw: np.random.Generator,
) -> list[PeerSplit]:
    """Divide two pools by given fractions of the first one, each float64 [peers], for training and for test samples.

    Args:
        pools: two pools of training samples, two of test samples.
        weights: of the peers, [peers]; sizes are in proportion.
        fractions: of the first pool, in training and in test samples.
        options: samples_per_peer and test_per_peer are read.
        draw: source of randomness.
    """
    caps = [options.samples_per_peer, options.test_per_peer]
    portions = []
    for (first, second), fraction, cap in zip(pools, fractions, caps, strict=True):
        mean_size = (len(first) + len(second)) / len(weights)
        sizes = weights / weights.mean() * (min(mean_size, cap) if cap else mean_size)
        counts = solvable_counts(sizes, np.stack([fraction, 1.0 - fraction], axis=1), [len(first), len(second)])
        portions.append(divide_by_counts([first, second], counts, draw))
    return paired(*portions)


def finished(splits: list[PeerSplit], options: SplitOptions, cap: bool, draw: np.random.Generator) -> list[PeerSplit]:
    """Shuffle, cut to ``samples_per_peer`` and ``test_per_peer`` if ``cap``, and hold out the share ``validation``."""
    train_cap, test_cap, share = options.samples_per_peer, options.test_per_peer, options.validation
    done = []
    for split in splits:
        train = split.train[draw.permutation(len(split.train))[: train_cap if cap and train_cap else None]]
        test = split.test[draw.permutation(len(split.test))[: test_cap if cap and test_cap else None]]
        held = round(share * len(train))
        validation = train[:held] if held else split.validation
        done.append(replace(split, train=train[held:], validation=validation, test=test))
    return done

"""What a split returns, and the pieces that several splits share. Pure: functions of counts, labels and a generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError

Index = NDArray[np.int64]
UNKNOWN = -1  # true cluster of a sample where the split has no ground truth


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of a pool, each with its rotation and its true cluster; all int64 [m]."""

    index: Index
    turns: Index
    cluster: Index

    @classmethod
    def of(cls, index: Index, turns: int | Index = 0, cluster: int | Index = UNKNOWN) -> Samples:
        """Build from indices and one value, or one per sample, of rotation and cluster."""
        index = np.asarray(index, dtype=np.int64)
        fill = np.zeros(len(index), dtype=np.int64)
        return cls(index, fill + turns, fill + cluster)

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """Concatenate."""
        if not parts:
            return cls.of(np.empty(0, np.int64))
        columns = zip(*((p.index, p.turns, p.cluster) for p in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: Index | slice) -> Samples:
        return Samples(self.index[chosen], self.turns[chosen], self.cluster[chosen])


@dataclass(frozen=True, eq=False)
class PeerSplit:
    """What one peer gets; ``label_map`` int64 [classes] renames its labels (flipped labels, merged cases)."""

    train: Samples
    test: Samples
    validation: Samples = field(default_factory=lambda: Samples.of(np.empty(0, np.int64)))
    label_map: Index | None = None


@dataclass(frozen=True, eq=False)
class SplitInput:
    """All that a split may depend on, besides its options and the data seed.

    Attributes:
        labels: int64 [n] of the whole pool; zeros in regression.
        train_count: samples before this place are for training, the others for testing.
        peers: N.
        source: int64 [n], the distribution a sample comes from, or None.
        writer: int64 [n] or None.
    """

    labels: Index
    train_count: int
    peers: int
    source: Index | None = None
    writer: Index | None = None

    @property
    def halves(self) -> tuple[Index, Index]:
        """Indices of the training set and of the test set."""
        return np.arange(self.train_count), np.arange(self.train_count, len(self.labels))


class Options:
    """The manifest's ``split_options``, read key by key with a default and a check, so that no key goes unread."""

    def __init__(self, split: str, values: Mapping[str, object]) -> None:
        self.split = split
        self._values = dict(values)
        self._read: set[str] = set()

    def get(self, key: str, default: object) -> object:
        """Return a raw value."""
        self._read.add(key)
        return self._values.get(key, default)

    def number(self, key: str, default: float, least: float, most: float = np.inf) -> float:
        """Return a number in [least, most]."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise TaskError(f"split_options.{key} is {value!r}; a number from {least} to {most} is allowed")
        return value

    def integer(self, key: str, default: int, least: int, most: float = np.inf) -> int:
        """Return an integer in [least, most]."""
        value = self.number(key, default, least, most)
        if value != int(value):
            raise TaskError(f"split_options.{key} is {value!r}; it must be an integer")
        return int(value)

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise TaskError(f"split_options.{key} is {value!r}; it must be text")
        return value

    def turns(self, k_default: int) -> list[int]:
        """Return the quarter turn of each cluster, from ``rotations`` in degrees, else from ``k``: r * 360 / k."""
        degrees = self.get("rotations", None)
        if degrees is None:
            k = self.integer("k", k_default, 1, 4)
            if 4 % k:
                raise TaskError(f"split_options.k is {k}; 1, 2 or 4 are allowed, because rotations are quarter turns")
            return [r * (4 // k) for r in range(k)]
        self.get("k", None)
        if not isinstance(degrees, list | tuple) or not degrees or any(d not in {0, 90, 180, 270} for d in degrees):
            raise TaskError(f"split_options.rotations is {degrees!r}; a list of 0, 90, 180 or 270 degrees is allowed")
        return [int(d) // 90 for d in degrees]

    def finish(self) -> None:
        """Refuse keys that the split has not read.

        Raises:
            TaskError: a key is unknown to this split.
        """
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise TaskError(
                f"split_options.{unknown[0]}: split {self.split!r} reads only {', '.join(sorted(self._read))}"
            )


SplitFunction = Callable[[SplitInput, Options, np.random.Generator], list[PeerSplit]]


def deal(samples: Samples, parts: int, draw: np.random.Generator) -> list[Samples]:
    """Permute and deal to ``parts`` hands whose sizes differ by at most one."""
    return [samples[hand] for hand in np.array_split(draw.permutation(len(samples)), parts)]


def deal_counts(pools: Sequence[Samples], counts: Index, draw: np.random.Generator) -> list[Samples]:
    """Permute each pool and give peer i its next ``counts[i, p]`` samples; counts int64 [peers, pools]."""
    hands: list[list[Samples]] = [[] for _ in counts]
    for p, pool in enumerate(pools):
        order = draw.permutation(len(pool))
        ends = np.cumsum(counts[:, p])
        for i, end in enumerate(ends):
            hands[i].append(pool[order[end - counts[i, p] : end]])
    return [Samples.joined(hand) for hand in hands]


def solvable_counts(sizes: NDArray[np.float64], shares: NDArray[np.float64], pools: Sequence[int]) -> Index:
    """Return how many samples each peer takes from each pool, int64 [peers, pools].

    OURS (algorithms spec 8): where a pool would run out, all requests shrink by one common factor, so that the shares
    stay what was drawn and equal requests stay equal.

    Args:
        sizes: samples that each peer asks for, [peers].
        shares: part of them from each pool, [peers, pools], rows sum to 1.
        pools: samples in each pool.
    """
    wanted = (sizes[:, None] * shares).sum(0)
    scale = min(1.0, *(have / want for have, want in zip(pools, wanted, strict=True) if want > 0))
    while scale > 0:
        totals: Index = np.floor(sizes * scale + 1e-9).astype(np.int64)
        counts: Index = np.rint(totals[:, None] * shares).astype(np.int64)
        counts[:, -1] = totals - counts[:, :-1].sum(1)
        if (counts >= 0).all() and (counts.sum(0) <= np.asarray(pools)).all():
            return counts
        scale -= 1.0 / max(1.0, float(sizes.max()))  # rounding went past a pool: one sample less per peer
    raise TaskError(f"split: pools of {list(pools)} samples are too small for {len(sizes)} peers; use fewer peers")


def finished(splits: list[PeerSplit], options: Options, cap: bool, draw: np.random.Generator) -> list[PeerSplit]:
    """Shuffle and apply what every split knows: ``validation``, a share of the training samples, and sizes.

    ``samples_per_peer`` and ``test_per_peer`` cut each peer's samples if ``cap``; other splits have used them before.
    """
    train_cap = options.integer("samples_per_peer", 0, 0)
    test_cap = options.integer("test_per_peer", 0, 0)
    share = options.number("validation", 0.0, 0.0, 0.9)
    done = []
    for split in splits:
        train = split.train[draw.permutation(len(split.train))[: train_cap if cap and train_cap else None]]
        test = split.test[draw.permutation(len(split.test))[: test_cap if cap and test_cap else None]]
        held = round(share * len(train))
        validation = train[:held] if held else split.validation
        done.append(replace(split, train=train[held:], validation=validation, test=test))
    return done

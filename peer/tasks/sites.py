"""The numbers of one site that the scaling of features by all sites needs, and their exact combination. Pure.

A site is a peer's training set. Its numbers are its count, mean and sum of squared deviations of each feature, and its count of
each class: nothing else of its data leaves it. The sums of all sites follow from those of each one:

    n = sum n_i        mean = sum n_i mean_i / n        squares = sum (squares_i + n_i (mean_i - mean)^2)

A result depends on the numbers alone, bit for bit, in whatever order they came and on whatever machine: sites are added in the
order of their ids and rows in the order of the samples, each by one float64 addition. Means are added as differences from the
first, so that a constant feature has exactly the deviation 0.

Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979, Eq. 1.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ConfigProblem, ShardError, TaskError
from coordinator_free_bootstrap.validation import counted
from peer.core.messages import NUMBERS_MAX, Numbers
from peer.tasks.arrays import count, is_stored
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import Shard
from peer.tasks.task import Task

Floats = NDArray[np.float64]
COUNT_MAX = 2**53  # integers up to it are exact in float64
VALUE_MAX = (
    float(np.finfo(np.float32).max) / 4
)  # of a value or a mean; then the deviation of all sites fits float32, too
ROWS = 1024  # that are added in one call of NumPy


@dataclass(frozen=True)
class SiteForm:
    """What the numbers of every site of a run look like.

    Attributes:
        shape: of a sample.
        classes: number of classes that are counted; 0: the targets are not one label for each sample.
        samples_min: training samples of each site.
    """

    shape: tuple[int, ...]
    classes: int
    samples_min: int

    @property
    def features(self) -> int:
        """Number of features."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def size(self) -> int:
        """How many numbers a site has."""
        return 1 + 2 * self.features + self.classes

    def problem(self, numbers: Numbers) -> str:
        """Return why numbers cannot be those of a site, "" if they can; a neighbor's are a claim."""
        if len(numbers) != self.size:
            return f"expected {self.size} numbers of a site, got {len(numbers)}"
        site = self.read(numbers)
        counts = np.append(site.classes, site.count)
        if not ((counts >= 0) & (counts <= COUNT_MAX) & (counts == np.floor(counts))).all():
            return "expected counts of samples and classes that are whole numbers, got others"
        if site.count < self.samples_min:
            return f"expected at least {self.samples_min} training samples of a site, got {site.count:g}"
        if self.classes and site.classes.sum() != site.count:
            return f"expected a class of each of {site.count:g} samples, got {site.classes.sum():g} classes"
        if (
            not (np.abs(site.mean) <= VALUE_MAX).all()
            or not ((site.squares >= 0) & (site.squares <= site.count * VALUE_MAX**2)).all()
        ):
            return f"expected means and deviations of at most {VALUE_MAX:.2g}, got others"
        return ""

    def read(self, numbers: Numbers) -> SiteNumbers:
        """Return numbers of the right length by their meaning."""
        array, d = numbers.array, self.features
        return SiteNumbers(float(array[0]), array[1 : 1 + d], array[1 + d : 1 + 2 * d], array[1 + 2 * d :])


@dataclass(frozen=True, eq=False)
class SiteNumbers:
    """The numbers of one site.

    Attributes:
        count: training samples.
        mean: of each feature, float64 [features].
        squares: sum of the squared deviations from ``mean``, float64 [features].
        classes: samples of each class, float64 [classes].
    """

    count: float
    mean: Floats
    squares: Floats
    classes: Floats

    @property
    def numbers(self) -> Numbers:
        """As they travel."""
        return Numbers.of(self.count, self.mean, self.squares, self.classes)


def form_of(task: Task, shard: Shard) -> SiteForm | None:
    """Return the form of the numbers for a task and a shard whose mean and deviation are pending; None: they are not.

    Raises:
        TaskError: the inputs are several or on disk, or they have more features than a message carries.
    """
    used = shard.preprocessing or task.preprocessing
    if used is None or used.shared is None or not used.is_pending:
        return None
    x = shard.train_x
    if isinstance(x, Mapping) or is_stored(x) or not isinstance(x, np.ndarray):
        found = "several inputs by name" if isinstance(x, Mapping) else "an array on disk"
        raise TaskError(ConfigProblem("preprocessing", "one array in memory for shared scaling", found, _OWN))
    names = shard.class_names or task.class_names
    one_label = task.kind == "classification" and len(shard.train_y.shape) == 1
    classes = (task.classes or len(names or ())) if one_label else 0
    form = SiteForm(tuple(x.shape[1:]), int(classes), used.shared.samples_min)
    if form.size >= NUMBERS_MAX:
        most = f"at most {NUMBERS_MAX - 1} numbers of a site, mean and deviation of each feature, for shared scaling"
        raise TaskError(ConfigProblem("preprocessing", most, str(form.size), _OWN))
    return form


_OWN = "Scale by the numbers of the task, or of each site."


def numbers_of(form: SiteForm, shard: Shard) -> SiteNumbers:
    """Return the numbers of a site; ``shard`` has raw inputs and checked targets.

    Raises:
        ShardError: the site has too few samples.
        TaskError: a feature has a value that is NaN, Inf or beyond `VALUE_MAX`.
    """
    n = count(shard.train_x)
    if n < form.samples_min:
        expected = f"at least {counted(form.samples_min, 'training sample')} of a site for shared scaling"
        fix = "Its sums would say too much about each sample. Give this peer more data, or leave it out of the graph."
        raise ShardError(ConfigProblem("shard", expected, str(n), fix))
    x = np.asarray(shard.train_x).reshape(n, -1)
    names = None if shard.preprocessing is None else shard.preprocessing.columns
    if len(wrong := np.flatnonzero(~(np.abs(x.astype(np.float64)) <= VALUE_MAX).all(0))):
        feature = int(wrong[0])
        name = f" ({names[feature]!r})" if names is not None and feature < len(names) else ""
        raise TaskError(
            f"preprocessing: feature {feature}{name}: expected finite numbers, got NaN, Inf or a number beyond "
            f"{VALUE_MAX:.2g} in the training samples. Fill them in, or leave the feature out."
        )
    first = x[0].astype(np.float64)
    mean = first + _sum(x, first, power=1) / n
    labels = np.asarray(shard.train_y, np.int64) if form.classes else np.empty(0, np.int64)
    classes = np.bincount(labels, minlength=form.classes).astype(np.float64)
    return SiteNumbers(float(n), mean, _sum(x, mean, power=2), classes)


def _sum(x: np.ndarray, center: Floats, *, power: int) -> Floats:
    """Return the sum over rows of (row - center) ** power, float64 [features]; row by row, which no vector unit changes."""
    total = np.zeros_like(center)
    for start in range(0, len(x), ROWS):
        rows = x[start : start + ROWS].astype(np.float64) - center
        total = np.add.accumulate(np.vstack([total, rows if power == 1 else rows * rows]))[-1]
    return total


@dataclass(frozen=True, eq=False)
class AllSites:
    """The numbers of all sites together.

    Attributes:
        count: training samples.
        mean: of each feature, float64 [features].
        deviation: of each feature, float64 [features]; 0 of a constant one.
        sites: the numbers of each site, by peer id, ascending.
    """

    count: float
    mean: Floats
    deviation: Floats
    sites: Mapping[int, SiteNumbers]

    @classmethod
    def of(cls, sites: Mapping[int, SiteNumbers]) -> AllSites:
        """Combine the numbers of sites; their order does not matter."""
        ordered = {peer: sites[peer] for peer in sorted(sites)}
        first, *_ = ordered.values()
        total, shift, squares = 0.0, np.zeros_like(first.mean), np.zeros_like(first.mean)
        for site in ordered.values():
            total += site.count
            shift = shift + site.count * (site.mean - first.mean)
        mean = first.mean + shift / total
        for site in ordered.values():
            squares = squares + (site.squares + site.count * np.square(site.mean - mean))
        return cls(total, mean, np.sqrt(squares / total), ordered)

    @property
    def samples_min(self) -> int:
        """Training samples of the smallest site."""
        return int(min(site.count for site in self.sites.values()))

    def scaling(self, pending: Preprocessing, shape: tuple[int, ...]) -> Preprocessing:
        """Return a pending preprocessing with these numbers; ``shape`` is that of a sample."""
        assert pending.shared is not None  # it is pending
        narrow = self.deviation.astype(np.float32)
        shared = replace(pending.shared, sites=len(self.sites), samples=int(self.count))
        mean, std = self.mean.reshape(shape), np.where(narrow > 0, narrow, 1).reshape(shape)
        return replace(pending, mean=mean.tolist(), std=std.tolist(), shared=shared)

    @property
    def digest(self) -> str:
        """SHA-256 of the numbers of all sites, hexadecimal: peers with the same one scale in the same way."""
        state = hashlib.sha256()
        for peer, site in self.sites.items():
            state.update(Numbers.of(peer).data + site.numbers.data)
        return state.hexdigest()

    def fields(self, pending: Preprocessing) -> dict[str, Any]:
        """Return the line ``scaling`` of a history: numbers as JSON values, with the names of a pending preprocessing."""
        named = {} if pending.columns is None else {"columns": list(pending.columns)}
        return named | {
            "digest": self.digest,
            "samples": {str(peer): int(site.count) for peer, site in self.sites.items()},
            "classes": {str(peer): [int(n) for n in site.classes] for peer, site in self.sites.items()},
            "mean": self.mean.tolist(),
            "deviation": self.deviation.tolist(),
        }

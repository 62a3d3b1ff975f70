"""Built-in data sets by name: each is read from where it lies and becomes a `Pool`, decoded once per process."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.seeds import generator
from peer.tasks import files, leaf, vision
from peer.tasks.pool import Pool

Settings = Mapping[str, object]
Loader = Callable[[str, Settings, Path | None, bool], Pool]

DIGITS_TEST_COUNT = 360  # of 1 797, a fifth


def load_pool(name: str, options: Settings, data_root: Path | None, download: bool) -> Pool:
    """Return a data set; calls with equal arguments share one copy.

    Args:
        name: a key of `LOADERS`.
        options: the manifest's ``task_options``.
        data_root: folder that holds the files; ``digits`` and ``linear`` need none.
        download: whether torchvision may fetch missing files.

    Raises:
        TaskError: unknown name or option, or missing or unreadable files.
    """
    if name not in LOADERS:
        raise TaskError(f"task: {name!r} is unknown; built in are {', '.join(sorted(LOADERS))}")
    _, known, needs_root = LOADERS[name]
    unknown = sorted(set(options) - known)
    if unknown:
        raise TaskError(f"task_options.{unknown[0]}: task {name!r} has only {sorted(known) or 'no options'}")
    if needs_root and data_root is None:
        raise TaskError(f"task: {name} reads files; say where they lie with --data-root FOLDER")
    frozen = tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in options.items()))
    return _load(name, frozen, data_root, download)


@functools.lru_cache(maxsize=4)
def _load(name: str, options: tuple[tuple[str, object], ...], data_root: Path | None, download: bool) -> Pool:
    settings = dict(options)
    second = settings.pop("second", None)
    pool = LOADERS[name][0](name, settings, data_root, download)
    if second is None:
        return pool
    if second not in vision.DATASETS:
        raise TaskError(f"task_options.second is {second!r}; {', '.join(vision.DATASETS)} are allowed")
    return vision.joined(pool, load_pool(str(second), {}, data_root, download))


def _digits(name: str, options: Settings, data_root: Path | None, download: bool) -> Pool:
    """Return scikit-learn's bundled 8x8 handwritten digits, values / 16; a fifth, always the same, is for testing."""
    # Only the file is wanted: importing sklearn.datasets would cost every lone peer 73 MB and a second.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise TaskError("task 'digits' reads the file that scikit-learn bundles: install scikit-learn")
    rows = np.loadtxt(
        Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.float32
    )
    rows = rows[generator(0, "digits").permutation(len(rows))]
    x = (rows[:, :-1] / 16.0).reshape(-1, 1, 8, 8)  # (n, 1, 8, 8)
    return Pool(x=x, y=rows[:, -1].astype(np.int64), train_count=len(x) - DIGITS_TEST_COUNT, classes=10)


def _linear(name: str, options: Settings, data_root: Path | None, download: bool) -> Pool:
    """Return FedSoft's regression, per cluster s: x ~ N(0, I), y = <theta_s, x> + N(0, 1), theta_s ~ N(0, 10 I).

    ``clusters`` is 2 or 8 in the paper; ``features`` 10.
    """
    clusters = _integer(options, "clusters", 2)
    features = _integer(options, "features", 10)
    train = _integer(options, "samples_per_cluster", 10_000)
    test = _integer(options, "test_per_cluster", 2_000)
    draw = generator(_integer(options, "seed", 0, least=0), "linear")
    theta = draw.normal(0.0, np.sqrt(10.0), (clusters, features))
    source = np.concatenate([np.repeat(np.arange(clusters), count) for count in (train, test)])
    x = draw.normal(size=(len(source), features))
    y = (x * theta[source]).sum(1) + draw.normal(size=len(source))
    train_count = clusters * train
    return Pool(x=x.astype(np.float32), y=y.astype(np.float32), train_count=train_count, classes=None, source=source)


def _integer(options: Settings, key: str, default: int, least: int = 1) -> int:
    value = options.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TaskError(f"task_options.{key} is {value!r}; an integer of {least} or more is allowed")
    return value


# name -> (loader, its options, whether it reads files)
LOADERS: dict[str, tuple[Loader, frozenset[str], bool]] = {
    "digits": (_digits, frozenset(), False),
    "linear": (
        _linear,
        frozenset({"clusters", "features", "samples_per_cluster", "test_per_cluster", "seed"}),
        False,
    ),
    **{name: (vision.load, frozenset({"normalize", "second"}), True) for name in vision.DATASETS},
    "emnist": (vision.load, frozenset({"normalize", "second", "split"}), True),
    "femnist": (leaf.load, frozenset({"writers"}), True),
    "image-folder": (files.load_images, frozenset({"classes", "size", "channels"}), True),
    "tabular": (files.load_table, frozenset({"classes", "file", "kind", "target", "standardize"}), True),
}

"""The table of built-in data sets, and their loading: once per process and data set.

To add a data set, write its loader and add one entry to `DATASETS`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import Option, TaskError
from coordinator_free_bootstrap.extras import require
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import unknown_name
from peer.tasks.preprocessing import Preprocessing
from peer.zoo.tasks import files, leaf, tabular, vision
from peer.zoo.tasks.data_options import (
    DataOptions,
    EmnistOptions,
    FemnistOptions,
    FolderOptions,
    ImageOptions,
    LinearOptions,
    TableOptions,
)
from peer.zoo.tasks.pool import DataSet, Facts, Pool, Settings

DIGITS_TEST_COUNT = 360  # of 1,797: a fifth


def load_pool(
    name: str, options: Settings, data_root: Path | None, download: bool, group_by: str | None = None
) -> Pool:
    """Return the samples of a data set; calls with equal arguments share one copy.

    Args:
        name: a key of `DATASETS`.
        options: the manifest's ``task_options``.
        data_root: folder of the files; required if the entry has ``reads_files``.
        download: whether torchvision may download missing files.
        group_by: column of a table whose values group the samples, see `group_column`.

    Raises:
        TaskError: unknown name or option, or missing or unreadable files.
    """
    if name not in DATASETS:
        raise TaskError(unknown_name("run.task", name, DATASETS))
    dataset = DATASETS[name]
    options = dataset.read(options)
    if dataset.reads_files and data_root is None:
        raise TaskError(f"{Option('data_root')}: expected a folder, since task {name!r} reads files, got nothing")
    if group_by is not None:
        options = {**options, "by": group_by}
    return _load(name, json.dumps(dict(options), sort_keys=True), data_root or Path(), download)


@functools.lru_cache(maxsize=4)
def _load(name: str, options: str, data_root: Path, download: bool) -> Pool:
    settings = json.loads(options)
    second = settings.pop("second", None)
    pool = DATASETS[name].load(DATASETS[name], settings, data_root, download)
    if second is None:
        return pool
    if second not in joinable():
        raise TaskError(f"task_options.second: expected one of {', '.join(joinable())}, got {second!r}")
    return vision.joined(pool, load_pool(str(second), {}, data_root, download))


def group_column(manifest: Manifest) -> str | None:
    """Return the column by which split ``by_column`` deals the rows; None with another split.

    Raises:
        TaskError: the column is not named, or the task has no columns.
    """
    if manifest.split != "by_column":
        return None
    if not DATASETS[manifest.task].has_columns:
        allowed = ", ".join(name for name, dataset in DATASETS.items() if dataset.has_columns)
        raise TaskError(
            f"run.split: expected {allowed}, got 'by_column' with task {manifest.task!r}, which has no columns"
        )
    column = manifest.split_options.get("by")
    if not isinstance(column, str) or not column:
        raise TaskError(
            f"run.split_options.by: expected the name of a column of the table with split by_column, got {column!r}"
        )
    return column


def joinable() -> list[str]:
    """Return the names of the data sets that can be joined with another one by the option ``second``."""
    return [name for name, dataset in DATASETS.items() if "second" in dataset.options.model_fields]


def facts_of(manifest: Manifest) -> Facts:
    """Return what follows from the task's name and options about its samples."""
    options = DATASETS[manifest.task].read(manifest.task_options)
    facts = DATASETS[manifest.task].facts(options)
    second = options.get("second")
    if second not in joinable():
        return facts
    other = DATASETS[str(second)].facts(DATASETS[str(second)].read({}))
    shape = tuple(map(max, facts.sample_shape or (), other.sample_shape or ()))  # `vision.joined` pads to the larger
    return Facts(shape, max(facts.classes or 0, other.classes or 0))


def _digits(dataset: DataSet, options: Settings, data_root: Path, download: bool) -> Pool:
    """Return scikit-learn's bundled 8x8 handwritten digits, values 0..16; the test set is a fixed fifth."""
    # Only the file is read: importing sklearn.datasets costs each peer process 73 MB and a second.
    require(("sklearn",), "task 'digits'")
    package: Any = importlib.util.find_spec("sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    rows = rows[generator(0, "digits").permutation(len(rows))]
    x = rows[:, :-1].reshape(-1, 1, 8, 8)  # (n, 1, 8, 8)
    y, classes = rows[:, -1].astype(np.int64), dataset.facts(options).classes
    return Pool(
        x=x,
        y=y,
        train_count=len(x) - DIGITS_TEST_COUNT,
        classes=classes,
        preprocessing=Preprocessing(divisor=16.0),
        class_names=tuple("0123456789"),
    )


def _linear(dataset: DataSet, options: Settings, data_root: Path, download: bool) -> Pool:
    """Return synthetic linear regression: per cluster s, x ~ N(0, I), y = <theta_s, x> + N(0, 1), theta_s ~ N(0, 10 I).

    The paper has 2 and 8 clusters. Source: FedSoft (Ruan and Joe-Wong 2022, arXiv:2112.06053), Section 5.
    """
    chosen = LinearOptions(**options)
    clusters, features = chosen.clusters, chosen.features
    train, test = chosen.samples_per_cluster, chosen.test_per_cluster
    draw = generator(chosen.seed, "linear")
    theta = draw.normal(0.0, np.sqrt(10.0), (clusters, features))
    source = np.concatenate([np.repeat(np.arange(clusters), count) for count in (train, test)])
    x = draw.normal(size=(len(source), features))
    y = (x * theta[source]).sum(1) + draw.normal(size=len(source))
    train_count = clusters * train
    return Pool(x=x.astype(np.float32), y=y.astype(np.float32), train_count=train_count, classes=None, source=source)


def _linear_facts(options: Settings) -> Facts:
    return Facts((options["features"],), None, regression=True)


def _fixed(sample_shape: tuple[int, ...], classes: int) -> Callable[[Settings], Facts]:
    """Return the facts of a data set that its options do not change."""
    return lambda options: Facts(sample_shape, classes)


def _image_set(
    name: str,
    torchvision: str,
    about: str,
    facts: Callable[[Settings], Facts],
    model: str,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    layout: str,
    options: type[DataOptions] = ImageOptions,
) -> DataSet:
    """Return the entry of an image data set of torchvision."""
    return DataSet(
        name=name,
        load=vision.load,
        facts=facts,
        model=(model, {}),
        about=about,
        options=options,
        layout=layout,
        torchvision=torchvision,
        mean=mean,
        std=std,
    )


GREY, COLOR = (1, 28, 28), (3, 32, 32)
RGB_10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # mean and standard deviation of CIFAR-10
RGB_100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)  # of CIFAR-100

DATASETS: dict[str, DataSet] = {
    dataset.name: dataset
    for dataset in (
        DataSet(
            name="digits",
            load=_digits,
            facts=_fixed((1, 8, 8), 10),
            model=("mlp", {"hidden": 256}),
            about="1,797 handwritten digits of 8 x 8 pixels, part of scikit-learn.",
            reads_files=False,
        ),
        DataSet(
            name="linear",
            load=_linear,
            facts=_linear_facts,
            model=("mlr", {}),
            about="Synthetic linear regression from several distributions; use split linear_synth or iid.",
            options=LinearOptions,
            reads_files=False,
        ),
        _image_set(
            "mnist",
            "MNIST",
            "70,000 handwritten digits.",
            _fixed(GREY, 10),
            "mlp2048",
            (0.1307,),
            (0.3081,),
            "MNIST/raw/*-ubyte",
        ),
        _image_set(
            "fmnist",
            "FashionMNIST",
            "70,000 pictures of clothes in 10 classes.",
            _fixed(GREY, 10),
            "mlp2048",
            (0.2860,),
            (0.3530,),
            "FashionMNIST/raw/*-ubyte",
        ),
        _image_set(
            "emnist",
            "EMNIST",
            "Handwritten letters and digits.",
            vision.emnist_facts,
            "dfca_cnn",
            (0.1736,),
            (0.3317,),
            "EMNIST/raw/emnist-{split}-*-ubyte",
            EmnistOptions,
        ),
        _image_set(
            "cifar10",
            "CIFAR10",
            "60,000 color pictures in 10 classes.",
            _fixed(COLOR, 10),
            "dpfl_cnn",
            *RGB_10,
            "cifar-10-batches-py/*",
        ),
        _image_set(
            "cifar100",
            "CIFAR100",
            "60,000 color pictures in 100 classes.",
            _fixed(COLOR, 100),
            "dpfl_cnn",
            *RGB_100,
            "cifar-100-python/*",
        ),
        DataSet(
            name="femnist",
            load=leaf.load,
            facts=_fixed(GREY, 62),
            model=("mlp2048", {}),
            about="Handwritten characters with the id of each writer, in the JSON format of LEAF.",
            layout="**/*.json",
            options=FemnistOptions,
        ),
        DataSet(
            name="image-folder",
            load=files.load_images,
            facts=files.image_facts,
            model=("dfca_cnn", {}),
            about="Your own pictures, in one folder per class.",
            options=FolderOptions,
            files="pictures",
        ),
        DataSet(
            name="tabular",
            load=tabular.load_table,
            facts=tabular.table_facts,
            model=("mlp", {"hidden": 64}),
            about="Your own table, CSV or Parquet, with a column to predict; use split iid or by_column.",
            options=TableOptions,
            files="table.csv",
            has_columns=True,
        ),
    )
}

"""Image data sets in the folder layout of torchvision, as pools of bytes."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.ordinary_file import unreadable
from peer.tasks.preprocessing import PIXELS, of_channels
from peer.tasks.torchvision_shim import import_torchvision
from peer.zoo.tasks.idx import read_idx
from peer.zoo.tasks.pool import DataSet, Facts, Pool, Settings

# Of bymerge and balanced, where an upper-case letter looks like the lower-case one.
_MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"
EMNIST_LABELS = {
    "balanced": _MERGED,
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "bymerge": _MERGED,
    "letters": string.ascii_lowercase,
    "digits": string.digits,
    "mnist": string.digits,
}  # by split; one character for each label
_CLOTHES = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle_boot"
_NUMBERS = "zero one two three four five six seven eight nine"
_NAMES = {
    "MNIST": tuple(f"{digit} - {word}" for digit, word in enumerate(_NUMBERS.split())),
    "FashionMNIST": tuple(word.replace("_", " ") for word in _CLOTHES.split()),
}


class _Half(NamedTuple):
    """The training or the test set: images uint8 [n, channels, height, width], labels int64 [n], names of the labels."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: tuple[str, ...]


def emnist_facts(options: Settings) -> Facts:
    """Return shape and number of classes of a split of EMNIST."""
    return Facts((1, 28, 28), len(EMNIST_LABELS[options["split"]]))


def load(dataset: DataSet, options: Settings, data_root: Path, download: bool) -> Pool:
    """Return a data set of torchvision from its folder layout under ``data_root``.

    ``normalize`` standardizes each channel. Default: true for color images; false for grey images, which then lie in
    [0, 1]. EMNIST: labels of letters start at 0, and images are transposed to upright.

    Raises:
        TaskError: a wrong option, or the files are missing or damaged.
    """
    normalize = len(dataset.mean) == 3 if options["normalize"] is None else options["normalize"]
    read = _from_bytes if dataset.layout.endswith("-ubyte") else _from_torchvision
    try:
        training, test = (read(dataset, options, data_root, train, download) for train in (True, False))
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        command = f"peer data show --set run.task={dataset.name} --set data_root={data_root} --set download=true"
        remedy = "" if download else f", or download them: {command}"
        fix = f"Put torchvision's files into {data_root}{remedy}."
        raise TaskError(unreadable("run.task", error, fix, f"the files of {dataset.torchvision}")) from error
    classes = dataset.facts(options).classes
    return Pool(
        x=np.concatenate([training.images, test.images]),
        y=np.concatenate([training.labels, test.labels]),
        train_count=len(training.labels),
        classes=classes,
        preprocessing=of_channels(dataset.mean, dataset.std) if normalize else PIXELS,
        class_names=training.names if len(training.names) == classes else None,
    )


def _from_bytes(dataset: DataSet, options: Settings, root: Path, train: bool, download: bool) -> _Half:
    """Read MNIST and its relatives, whose files are arrays of bytes; torchvision is imported for a download only."""
    letters = dataset.torchvision == "EMNIST"
    names = tuple(EMNIST_LABELS[options["split"]]) if letters else _NAMES[dataset.torchvision]
    paths = list(_paths(dataset, options, root, train))
    if download and not all(path.exists() for path in paths):
        _torchvision(dataset, root, train, download, **({"split": options["split"]} if letters else {}))
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1).astype(np.int64)
    if len(images) != len(labels):
        raise ValueError(f"{paths[1]}: expected {len(images)} labels, as many as images, got {len(labels)}")
    if letters:
        images = np.ascontiguousarray(images.swapaxes(1, 2))  # the files have transposed images
        labels -= options["split"] == "letters"  # labels 1..26
    return _Half(images[:, None], labels, names)


def _paths(dataset: DataSet, options: Settings, root: Path, train: bool) -> Iterator[Path]:
    """Yield the file of the images and that of the labels."""
    emnist = dataset.torchvision == "EMNIST"
    prefix = f"emnist-{options['split']}-{'train' if train else 'test'}" if emnist else "train" if train else "t10k"
    for kind in ("images-idx3", "labels-idx1"):
        yield root / dataset.torchvision / "raw" / f"{prefix}-{kind}-ubyte"


def _from_torchvision(dataset: DataSet, options: Settings, root: Path, train: bool, download: bool) -> _Half:
    """Read CIFAR, whose files are pickles that torchvision checks by their digests."""
    found = _torchvision(dataset, root, train, download)
    images = np.ascontiguousarray(found.data.transpose(0, 3, 1, 2))
    labels = torch.as_tensor(found.targets, dtype=torch.int64).numpy()
    return _Half(images, labels, tuple(map(str, found.classes)))


def _torchvision(dataset: DataSet, root: Path, train: bool, download: bool, **options: object) -> Any:
    """Return torchvision's data set."""
    make = getattr(import_torchvision().datasets, dataset.torchvision)
    return make(root=str(root), train=train, download=download, **options)


def joined(first: Pool, second: Pool) -> Pool:
    """Return two image sets as one pool with ``source`` 0 and 1, for the split pair_mixture.

    Grey images get three equal channels, smaller images a black border. OURS: both sets use the same labels, so the
    model has as many outputs as the larger set has classes.
    """
    channels = max(first.sample_shape[0], second.sample_shape[0])
    side = max(*first.sample_shape[1:], *second.sample_shape[1:])
    parts = []
    for training in (True, False):
        for source, pool in enumerate((first, second)):
            half = slice(None, pool.train_count) if training else slice(pool.train_count, None)
            parts.append((_padded(pool.x[half], channels, side), pool.y[half], source))
    return Pool(
        x=np.concatenate([x for x, _, _ in parts]),
        y=np.concatenate([y for _, y, _ in parts]),
        train_count=first.train_count + second.train_count,
        classes=max(first.classes or 0, second.classes or 0),
        source=np.concatenate([np.full(len(y), s, dtype=np.int64) for _, y, s in parts]),
        preprocessing=first.preprocessing,
    )


def _padded(images: np.ndarray, channels: int, side: int) -> np.ndarray:
    """Repeat grey channels and pad evenly with zeros to [n, channels, side, side]."""
    n, found, height, width = images.shape
    padded = np.zeros((n, channels, side, side), images.dtype)
    top, left = (side - height) // 2, (side - width) // 2
    padded[:, :, top : top + height, left : left + width] = images if found == channels else images[:, :1]
    return padded

"""Image data sets of torchvision, as pools of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.ordinary_file import unreadable
from peer.tasks.preprocessing import PIXELS, of_channels
from peer.tasks.torchvision_shim import import_torchvision
from peer.zoo.tasks.pool import DataSet, Facts, Pool, Settings

EMNIST_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}  # by split


def emnist_facts(options: Settings) -> Facts:
    """Return shape and number of classes of a split of EMNIST."""
    return Facts((1, 28, 28), EMNIST_CLASSES[options["split"]])


def load(dataset: DataSet, options: Settings, data_root: Path, download: bool) -> Pool:
    """Return a data set of torchvision from its folder layout under ``data_root``.

    ``normalize`` standardizes each channel. Default: true for color images; false for grey images, which then lie in
    [0, 1]. EMNIST: labels of letters start at 0, and images are transposed to upright.

    Raises:
        TaskError: a wrong option, or the files are missing or damaged.
    """
    normalize = len(dataset.mean) == 3 if options["normalize"] is None else options["normalize"]
    arguments: dict[str, object] = {}
    if dataset.torchvision == "EMNIST":
        arguments["split"] = options["split"]
    halves = [_read(dataset, arguments, data_root, train, download) for train in (True, False)]
    x, y = (np.concatenate([half[part] for half in halves]) for part in (0, 1))
    if dataset.torchvision == "EMNIST":
        x = np.ascontiguousarray(x.swapaxes(-1, -2))  # the files have transposed images
        y -= arguments["split"] == "letters"  # labels 1..26
    return Pool(
        x=x,
        y=y,
        train_count=len(halves[0][1]),
        classes=dataset.facts(options).classes,
        preprocessing=of_channels(dataset.mean, dataset.std) if normalize else PIXELS,
        class_names=_class_names(halves[0][2], dataset.facts(options).classes),
    )


def _read(
    dataset: DataSet, arguments: dict[str, object], root: Path, train: bool, download: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64], list[str]]:
    """Return images uint8 [n, channels, height, width], labels int64 [n], and the names of the labels."""
    dataset_class = getattr(import_torchvision().datasets, dataset.torchvision)
    try:
        found: Any = dataset_class(root=str(root), train=train, download=download, **arguments)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        command = f"peer data show --set run.task={dataset.name} --set data_root={root} --set download=true"
        remedy = "" if download else f", or download them: {command}"
        fix = f"Put torchvision's files into {root}{remedy}."
        raise TaskError(unreadable("run.task", error, fix, f"the files of {dataset.torchvision}")) from error
    images = torch.as_tensor(found.data).numpy()
    images = images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    labels = torch.as_tensor(found.targets, dtype=torch.int64).numpy()
    return images, labels, [str(name) for name in getattr(found, "classes", [])]


def _class_names(found: list[str], classes: int | None) -> tuple[str, ...] | None:
    """Return torchvision's names without its placeholder for a label that is not used; None if a name is missing."""
    names = tuple(name for name in found if name != "N/A")
    return names if len(names) == classes else None


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

"""The image sets that torchvision knows, as pools of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks.pool import Pool
from peer.tasks.torchvision_shim import import_torchvision

Channels = tuple[float, ...]

# name -> (torchvision's class, mean and standard deviation per channel of its training images / 255)
DATASETS: dict[str, tuple[str, Channels, Channels]] = {
    "mnist": ("MNIST", (0.1307,), (0.3081,)),
    "fmnist": ("FashionMNIST", (0.2860,), (0.3530,)),
    "emnist": ("EMNIST", (0.1736,), (0.3317,)),
    "cifar10": ("CIFAR10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ("CIFAR100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
EMNIST_SPLITS = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}  # labels


def load(name: str, options: Mapping[str, object], data_root: Path | None, download: bool) -> Pool:
    """Return one of `DATASETS` from torchvision's folder layout under ``data_root``.

    ``normalize`` standardizes each channel; the default is true for color and false for grey images, which then lie in
    [0, 1]. EMNIST: ``split``, default balanced; letters count from 0, and images are turned upright.

    Raises:
        TaskError: a wrong option, or the files are missing or damaged.
    """
    _, mean, std = DATASETS[name]
    normalize = options.get("normalize", len(mean) == 3)
    if not isinstance(normalize, bool):
        raise TaskError(f"task_options.normalize is {normalize!r}; true or false are allowed")
    arguments: dict[str, object] = {}
    if name == "emnist":
        arguments["split"] = options.get("split", "balanced")
        if arguments["split"] not in EMNIST_SPLITS:
            raise TaskError(f"task_options.split is {arguments['split']!r}; {', '.join(EMNIST_SPLITS)} are allowed")
    halves = [_read(name, arguments, data_root, train, download) for train in (True, False)]
    x, y = (np.concatenate(both) for both in zip(*halves, strict=True))
    if name == "emnist":
        x = np.ascontiguousarray(x.swapaxes(-1, -2))  # stored transposed
        y -= arguments["split"] == "letters"  # labels 1..26
    return Pool(
        x=x,
        y=y,
        train_count=len(halves[0][1]),
        classes=100 if name == "cifar100" else int(y.max()) + 1,
        mean=mean if normalize else (0.0,),
        std=std if normalize else (1.0,),
    )


def _read(
    name: str, arguments: Mapping[str, object], root: Path | None, train: bool, download: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images uint8 [n, channels, height, width] and labels int64 [n]."""
    class_name = DATASETS[name][0]
    dataset_class = getattr(import_torchvision().datasets, class_name)
    try:
        found: Any = dataset_class(root=str(root), train=train, download=download, **arguments)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        fetch = "" if download else f", or fetch them: peer data show --task {name} --data-root {root} --download"
        raise TaskError(
            f"task: {class_name} cannot be read from {root}: {error}; put torchvision's files there{fetch}"
        ) from error
    images = torch.as_tensor(found.data).numpy()
    images = images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return images, torch.as_tensor(found.targets, dtype=torch.int64).numpy()


def joined(first: Pool, second: Pool) -> Pool:
    """Return two image sets as one pool with ``source`` 0 and 1, for split pair_mixture.

    Grey images get three equal channels, smaller ones a black border. OURS: both sets share their labels, so that a
    peer's model has as many outputs as the larger set has classes.
    """
    channels = max(first.sample_shape[0], second.sample_shape[0])
    side = max(*first.sample_shape[1:], *second.sample_shape[1:])
    parts = []
    for training in (True, False):
        for source, pool in enumerate((first, second)):
            half = slice(None, pool.train_count) if training else slice(pool.train_count, None)
            parts.append((_framed(pool.x[half], channels, side), pool.y[half], source))
    return Pool(
        x=np.concatenate([x for x, _, _ in parts]),
        y=np.concatenate([y for _, y, _ in parts]),
        train_count=first.train_count + second.train_count,
        classes=max(first.classes or 0, second.classes or 0),
        source=np.concatenate([np.full(len(y), s, dtype=np.int64) for _, y, s in parts]),
        mean=first.mean,
        std=first.std,
    )


def _framed(images: NDArray[Any], channels: int, side: int) -> NDArray[Any]:
    """Repeat grey channels and pad evenly with zeros to [n, channels, side, side]."""
    n, found, height, width = images.shape
    framed = np.zeros((n, channels, side, side), images.dtype)
    top, left = (side - height) // 2, (side - width) // 2
    framed[:, :, top : top + height, left : left + width] = images if found == channels else images[:, :1]
    return framed

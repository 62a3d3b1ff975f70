"""A user's pictures as a pool: a folder of images per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ConfigProblem, TaskError
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import counted
from peer.tasks.pictures import IMAGE_SUFFIXES, Picture, read_pixels, summary
from peer.tasks.preprocessing import PIXELS
from peer.zoo.tasks.pool import DataSet, Facts, Pool, Settings

TEST_SHARE = 0.2  # if the files have no test part


def image_facts(options: Settings) -> Facts:
    """Return shape and number of classes that the options of `load_images` give."""
    return Facts((options["channels"], options["size"], options["size"]), named_classes(options))


def named_classes(options: Settings) -> int | None:
    """Return the number of classes that the options list, or None."""
    names = options["classes"]
    return len(names) if isinstance(names, list | tuple) else None


def load_images(dataset: DataSet, options: Settings, root: Path, download: bool) -> Pool:
    """Return the images ``root/<class>/*``, or ``root/train/<class>/*`` and ``root/test/<class>/*``.

    The option ``classes`` is needed where the folder of a peer may lack a class.

    Raises:
        TaskError: no images, an unreadable image, or a wrong option.
    """
    size, channels = options["size"], options["channels"]
    split = (root / "train").is_dir() and (root / "test").is_dir()
    folders = [root / "train", root / "test"] if split else [root]
    classes = class_list(options["classes"], sorted({d.name for f in folders for d in _subfolders(f)}), root)
    parts = [_images(folder, classes, size, channels == 1) for folder in folders]
    x, y = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    reading = "; ".join(filter(None, (part[2] for part in parts))) or None
    preprocessing, names = replace(PIXELS, reading=reading), tuple(classes)
    if not split:
        return replace(held_out(x, y, len(names)), preprocessing=preprocessing, class_names=names)
    train_count = len(parts[0][1])
    return Pool(x=x, y=y, train_count=train_count, classes=len(names), preprocessing=preprocessing, class_names=names)


def class_list(given: object, found: list[str], path: Path) -> list[str]:
    """Return the classes that the option ``classes`` lists, or those of the folders.

    Raises:
        TaskError: fewer than two, or a list with one name twice.
    """
    if given is None:
        if len(found) < 2:
            raise TaskError(f"task: {path}: expected two or more classes, got {len(found)} ({', '.join(found)})")
        return found
    if not isinstance(given, list | tuple) or len(set(given)) != len(given) or len(given) < 2:
        raise TaskError(f"task_options.classes: expected a list of two or more different names, got {given!r}")
    return [str(name) for name in given]


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        fix = "Give a folder with one folder per class."
        raise TaskError(ConfigProblem("image-folder", f"the folder {folder}", "none", fix))
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(
    folder: Path, classes: Sequence[str], size: int, grey: bool
) -> tuple[np.ndarray, NDArray[np.int64], str | None]:
    """Return images [n, channels, size, size] in the order of class and file name, labels int64 [n], and what was converted."""
    pictures: list[Picture] = []
    labels, others = [], []
    for subfolder in _subfolders(folder):
        if subfolder.name not in classes:
            raise TaskError(f"image-folder: expected one of the classes {', '.join(classes)}, got folder {subfolder}")
        for path in sorted(p for p in subfolder.iterdir() if not p.name.startswith(".")):
            if path.suffix.lower() not in IMAGE_SUFFIXES:
                others.append(path)
                continue
            pictures.append(read_pixels(path, (1 if grey else 3, size, size)))
            labels.append(classes.index(subfolder.name))
    if not pictures:
        raise TaskError(f"image-folder: expected images such as {folder}/<class>/1.png, got none")
    said = [summary(picture.conversions for picture in pictures)]
    if others:
        endings = ", ".join(sorted({path.suffix or path.name for path in others})[:5])
        said.append(f"not read, as no picture: {counted(len(others), 'file')} ({endings})")
    pixels = np.stack([picture.pixels for picture in pictures])
    return pixels, np.array(labels, dtype=np.int64), "; ".join(filter(None, said)) or None


def held_out(x: np.ndarray, y: np.ndarray, classes: int | None, group: NDArray[np.int64] | None = None) -> Pool:
    """Return samples as a pool: shuffled with a fixed seed, a fifth held out for testing.

    With groups it is a fifth of each group of two rows or more.
    """
    order = generator(0, "held-out").permutation(len(y))
    groups = [order] if group is None else [order[group[order] == value] for value in np.unique(group)]
    tests = [each[len(each) - max(len(each) > 1, round(TEST_SHARE * len(each))) :] for each in groups]
    is_test = np.zeros(len(y), dtype=bool)
    is_test[np.concatenate(tests)] = True
    order = np.concatenate([order[~is_test[order]], order[is_test[order]]])
    return Pool(
        x=np.ascontiguousarray(x[order]),
        y=y[order],
        train_count=int((~is_test).sum()),
        classes=classes,
        group=None if group is None else group[order],
    )

"""A user's own files as pools: a folder of images per class, or a table with a target column."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.seeds import generator
from peer.tasks.pool import Pool

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
TEST_SHARE = 0.2  # where the files are not split into training and test


def load_images(name: str, options: Mapping[str, object], data_root: Path | None, download: bool) -> Pool:
    """Return the images ``data_root/<class>/*``, or ``data_root/train/<class>/*`` and ``data_root/test/<class>/*``.

    ``size`` is the side in pixels to which images are scaled (32), ``channels`` 1 or 3 (3), ``classes`` the list of
    class names, which all peers must share where a device's folder may lack one; default: the folders' names, sorted.

    Raises:
        TaskError: no images, an unreadable one, or a wrong option.
    """
    root = Path(data_root or ".")
    size, channels = options.get("size", 32), options.get("channels", 3)
    if not isinstance(size, int) or isinstance(size, bool) or not 4 <= size <= 1024:
        raise TaskError(f"task_options.size is {size!r}; 4 to 1024 pixels are allowed")
    if channels not in {1, 3}:
        raise TaskError(f"task_options.channels is {channels!r}; 1 (grey) or 3 (color) are allowed")
    split = (root / "train").is_dir() and (root / "test").is_dir()
    folders = [root / "train", root / "test"] if split else [root]
    classes = _class_names(options.get("classes"), sorted({d.name for f in folders for d in _subfolders(f)}), root)
    parts = [_images(folder, classes, size, channels == 1) for folder in folders]
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    if split:
        return Pool(x=x, y=y, train_count=len(parts[0][1]), classes=len(classes))
    return _held_out(x, y, len(classes))


def load_table(name: str, options: Mapping[str, object], data_root: Path | None, download: bool) -> Pool:
    """Return a CSV file with a header row, or a Parquet file where pandas is installed; one sample a row, numbers only.

    ``file`` inside ``data_root`` (or ``data_root`` is the file); ``target`` names the column to predict (the last one);
    ``kind`` is classification or regression; ``classes`` lists the labels (default: those found, sorted);
    ``standardize`` (true) scales each feature by the training rows' mean and deviation.

    Raises:
        TaskError: the file, a column or a cell cannot be used; the sentence names it.
    """
    path = _table_path(Path(data_root or "."), options.get("file"))
    header, rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    target = options.get("target", header[-1])
    if target not in header:
        raise TaskError(f"task_options.target is {target!r}; {path} has the columns {', '.join(header)}")
    place = header.index(str(target))
    features = [column for column in range(len(header)) if column != place]
    x = np.array([[_number(path, header, line, column, row[column]) for column in features] for line, row in rows])
    kind = options.get("kind", "classification")
    if kind not in {"classification", "regression"}:
        raise TaskError(f"task_options.kind is {kind!r}; classification or regression are allowed")
    classes: list[str] | None = None
    if kind == "regression":
        y: NDArray[Any] = np.array([_number(path, header, line, place, row[place]) for line, row in rows], np.float32)
    else:
        classes = _class_names(options.get("classes"), sorted({row[place] for _, row in rows}), path)
        y = np.array([_label(path, line, row[place], classes) for line, row in rows], dtype=np.int64)
    pool = _held_out(x.astype(np.float32), y, None if classes is None else len(classes))
    return _standardized(pool) if options.get("standardize", True) else pool


def _table_path(root: Path, file: object) -> Path:
    if file is not None:
        root = root / str(file)
    if root.is_dir():
        tables = sorted(p for p in root.iterdir() if p.suffix in {".csv", ".parquet"})
        if len(tables) != 1:
            raise TaskError(f"task: tabular: {root} holds {len(tables)} tables; name one with task_options.file")
        root = tables[0]
    if not root.is_file():
        raise TaskError(f"task: tabular: there is no file {root}")
    return root


def _csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and each row with its line number."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TaskError(f"task: tabular: {path} cannot be read: {error}") from error
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise TaskError(f"task: tabular: {path} needs a header row, two or more columns and rows of data")
    header = lines[0][1]
    for line, row in lines[1:]:
        if len(row) != len(header):
            raise TaskError(f"task: tabular: {path} line {line} has {len(row)} cells, the header has {len(header)}")
    return header, lines[1:]


def _parquet(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    try:
        import pandas
    except ImportError as error:
        raise TaskError("task: tabular: Parquet needs pandas and pyarrow; install coordinator-free[tabular]") from error
    try:
        frame = pandas.read_parquet(path)
    except (OSError, ValueError, ImportError) as error:
        raise TaskError(f"task: tabular: {path} cannot be read: {error}") from error
    rows = [(number, [str(cell) for cell in row]) for number, row in enumerate(frame.itertuples(index=False), 1)]
    return [str(column) for column in frame.columns], rows


def _number(path: Path, header: Sequence[str], line: int, column: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise TaskError(f"task: tabular: {path} line {line}, {header[column]}: {cell!r} is not a finite number")
    return value


def _label(path: Path, line: int, cell: str, classes: Sequence[str]) -> int:
    if cell not in classes:
        raise TaskError(f"task: tabular: {path} line {line}: label {cell!r} is not one of {', '.join(classes)}")
    return classes.index(cell)


def _class_names(given: object, found: list[str], path: Path) -> list[str]:
    if given is None:
        if len(found) < 2:
            raise TaskError(f"task: {path} holds {len(found)} classes ({', '.join(found)}); two or more are needed")
        return found
    if not isinstance(given, list | tuple) or len(set(given)) != len(given) or len(given) < 2:
        raise TaskError(f"task_options.classes is {given!r}; a list of two or more different names is allowed")
    return [str(name) for name in given]


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise TaskError(f"task: image-folder: there is no folder {folder}")
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path, classes: Sequence[str], size: int, grey: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images uint8 [n, channels, size, size] in the order of class and file name, and labels int64 [n]."""
    from PIL import Image, UnidentifiedImageError

    images, labels = [], []
    for subfolder in _subfolders(folder):
        if subfolder.name not in classes:
            raise TaskError(f"task: image-folder: {subfolder} is not one of the classes {', '.join(classes)}")
        for path in sorted(p for p in subfolder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES):
            try:
                with Image.open(path) as opened:
                    scaled = opened.convert("L" if grey else "RGB").resize((size, size), Image.Resampling.BILINEAR)
                    pixels = np.asarray(scaled)
            except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
                raise TaskError(f"task: image-folder: {path} cannot be read: {error}") from error
            images.append(pixels[None] if grey else pixels.transpose(2, 0, 1))
            labels.append(classes.index(subfolder.name))
    if not images:
        raise TaskError(f"task: image-folder: no images in {folder}; expected {folder}/<class>/*.png")
    return np.stack(images), np.array(labels, dtype=np.int64)


def _held_out(x: NDArray[Any], y: NDArray[Any], classes: int | None) -> Pool:
    """Shuffle, always in the same order, and keep the last fifth for testing."""
    order = generator(0, "held-out").permutation(len(y))
    held = max(1, round(TEST_SHARE * len(y)))
    return Pool(x=np.ascontiguousarray(x[order]), y=y[order], train_count=len(y) - held, classes=classes)


def _standardized(pool: Pool) -> Pool:
    train = pool.x[: pool.train_count]
    deviation = train.std(0)
    pool.x[:] = (pool.x - train.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    return pool

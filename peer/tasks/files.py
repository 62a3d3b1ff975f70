"""A user's files as pools: a folder of images per class, or a table with a target column."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.ordinary_file import ordinary_file
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import counted
from peer.tasks.pool import DataSet, Facts, Pool, Settings
from peer.tasks.preprocessing import PIXELS, Preprocessing, read_picture

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
TABLE_BYTES_MAX = 16 << 30  # rows are in memory, where they take ten times as much
TEST_SHARE = 0.2  # if the files have no test part


def image_facts(options: Settings) -> Facts:
    """Return shape and number of classes that the options of `load_images` give."""
    size = options.get("size", 32)
    return Facts((options.get("channels", 3), size, size), _named(options))  # type: ignore[arg-type] # checked on load


def table_facts(options: Settings) -> Facts:
    """Return the number of classes that the options of `load_table` give, and the kind."""
    return Facts(None, _named(options), options.get("kind") == "regression")


def _named(options: Settings) -> int | None:
    names = options.get("classes")
    return len(names) if isinstance(names, list | tuple) else None


def load_images(dataset: DataSet, options: Settings, root: Path, download: bool) -> Pool:
    """Return the images ``root/<class>/*``, or ``root/train/<class>/*`` and ``root/test/<class>/*``.

    ``size``: side in pixels after scaling (32). ``channels``: 1 or 3 (3). ``classes``: list of class names, needed where
    the folder of a peer may lack a class; default: the names of the folders, sorted.

    Raises:
        TaskError: no images, an unreadable image, or a wrong option.
    """
    size, channels = options.get("size", 32), options.get("channels", 3)
    if not isinstance(size, int) or isinstance(size, bool) or not 4 <= size <= 1024:
        raise TaskError(f"task_options.size: found {size!r}; allowed: 4 to 1024 pixels")
    if channels not in {1, 3}:
        raise TaskError(f"task_options.channels: found {channels!r}; allowed: 1 (grey) or 3 (color)")
    split = (root / "train").is_dir() and (root / "test").is_dir()
    folders = [root / "train", root / "test"] if split else [root]
    classes = _class_names(options.get("classes"), sorted({d.name for f in folders for d in _subfolders(f)}), root)
    parts = [_images(folder, classes, size, channels == 1) for folder in folders]
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not split:
        return replace(_held_out(x, y, len(classes)), preprocessing=PIXELS, class_names=tuple(classes))
    names = tuple(classes)
    return Pool(x=x, y=y, train_count=len(parts[0][1]), classes=len(names), preprocessing=PIXELS, class_names=names)


def load_table(dataset: DataSet, options: Settings, root: Path, download: bool) -> Pool:
    """Return a CSV file with a header row, or a Parquet file (needs pandas); one sample per row, numbers only.

    ``file``: name inside ``root``, which may also be the file itself. ``target``: column to predict (default: the last).
    ``columns``: list of the input columns, in the order of the model's inputs (default: all besides the target, as in the
    table). ``kind``: classification or regression. ``classes``: list of labels (default: the labels found, sorted).
    ``standardize`` (true): scale each feature by mean and standard deviation of the training rows. ``by``: column whose values
    group the rows (split ``by_column``); it is no feature.

    Raises:
        TaskError: the file, a column or a cell is wrong; the message names it.
    """
    path = _table_path(root, options.get("file"))
    header, rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    target = options.get("target", header[-1])
    if target not in header:
        raise TaskError(f"task_options.target: found {target!r}; allowed: a column of {path}: {', '.join(header)}")
    place = header.index(str(target))
    by = options.get("by")
    features = [header.index(name) for name in input_columns(options.get("columns"), header, (target, by), path)]
    if by is not None and (by not in header or by == target or not features):
        raise TaskError(
            f"run.split_options.by: found {by!r}; allowed: a column of {path} besides the target {target!r} and one or more "
            f"inputs: {', '.join(header)}"
        )
    group = None if by is None else _groups(path, header, header.index(str(by)), rows)
    x = np.array([[_number(path, header, line, column, row[column]) for column in features] for line, row in rows])
    kind = options.get("kind", "classification")
    if kind not in {"classification", "regression"}:
        raise TaskError(f"task_options.kind: found {kind!r}; allowed: classification, regression")
    classes: list[str] | None = None
    if kind == "regression":
        y: NDArray[Any] = np.array([_number(path, header, line, place, row[place]) for line, row in rows], np.float32)
    else:
        classes = _class_names(options.get("classes"), sorted({row[place] for _, row in rows}), path)
        y = np.array([_label(path, line, row[place], classes) for line, row in rows], dtype=np.int64)
    pool = _held_out(x.astype(np.float32), y, None if classes is None else len(classes), group)
    columns = tuple(header[column] for column in features)
    preprocessing = Preprocessing(columns=columns)
    if options.get("standardize", True):
        preprocessing = Preprocessing.standardizing(pool.x[: pool.train_count], columns)
    names = None if classes is None else tuple(classes)
    return replace(pool, preprocessing=preprocessing, class_names=names, about={"target": str(target)})


def input_columns(given: object, header: Sequence[str], others: Collection[object], path: Path) -> list[str]:
    """Return the names of the input columns: those given, in their order, or all of a header but the others, as in the table.

    Raises:
        TaskError: a name is given that is no input column, or twice; or the header has one twice.
    """
    allowed = [name for name in header if name not in others]
    if given is None:
        if repeated := [name for name in allowed if allowed.count(name) > 1]:
            raise TaskError(f"tabular: {path}: found several columns named {repeated[0]!r}; rename them")
        return allowed
    listed = list(given) if isinstance(given, list | tuple) else []
    wrong = [name for name in listed if allowed.count(name) != 1 or listed.count(name) != 1]
    if wrong or not listed:
        raise TaskError(
            f"task_options.columns: found {(wrong or [given])[0]!r}; allowed: a list of different input columns of {path}: "
            f"{', '.join(allowed)}"
        )
    return listed


def _table_path(root: Path, file: object) -> Path:
    if file is not None:
        root = root / str(file)
    if root.is_dir():
        tables = sorted(p for p in root.iterdir() if p.suffix in {".csv", ".parquet"})
        if len(tables) != 1:
            raise TaskError(
                f"tabular: found {counted(len(tables), 'table')} in {root}; name one with task_options.file"
            )
        root = tables[0]
    if not root.is_file():
        raise TaskError(f"tabular: found no file {root}; give a CSV or Parquet file")
    return root


def _csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and each row with its line number."""
    try:
        with ordinary_file(path, TABLE_BYTES_MAX).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TaskError(f"tabular: {path} cannot be read: {error}") from error
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise TaskError(f"tabular: {path}: found no data; allowed: a header, two or more columns, rows of data")
    header = lines[0][1]
    for line, row in lines[1:]:
        if len(row) != len(header):
            raise TaskError(
                f"tabular: {path} line {line}: found {counted(len(row), 'cell')}; allowed: {len(header)} by the header"
            )
    return header, lines[1:]


def _parquet(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    try:
        import pandas
    except ImportError as error:
        raise TaskError("tabular: Parquet needs pandas and pyarrow; install coordinator-free[tabular]") from error
    try:
        frame = pandas.read_parquet(ordinary_file(path, TABLE_BYTES_MAX))
    except (OSError, ValueError, ImportError) as error:
        raise TaskError(f"tabular: {path} cannot be read: {error}") from error
    rows = [(number, [str(cell) for cell in row]) for number, row in enumerate(frame.itertuples(index=False), 1)]
    return [str(column) for column in frame.columns], rows


def _number(path: Path, header: Sequence[str], line: int, column: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise TaskError(f"tabular: {path} line {line}, {header[column]}: found {cell!r}; allowed: a finite number")
    return value


def _groups(path: Path, header: Sequence[str], column: int, rows: Sequence[tuple[int, list[str]]]) -> NDArray[np.int64]:
    """Return the number of each row's value in a column, int64 [n]; values ascend, as numbers if all of them are numbers."""
    cells = [row[column] for _, row in rows]
    if "" in cells:
        line = rows[cells.index("")][0]
        raise TaskError(f"tabular: {path} line {line}, {header[column]}: found an empty cell; allowed: a value")
    try:
        return np.unique([float(cell) for cell in cells], return_inverse=True)[1].astype(np.int64)
    except ValueError:
        return np.unique(cells, return_inverse=True)[1].astype(np.int64)


def _label(path: Path, line: int, cell: str, classes: Sequence[str]) -> int:
    if cell not in classes:
        raise TaskError(f"tabular: {path} line {line}: found label {cell!r}; allowed: {', '.join(classes)}")
    return classes.index(cell)


def _class_names(given: object, found: list[str], path: Path) -> list[str]:
    if given is None:
        if len(found) < 2:
            raise TaskError(
                f"task: {path}: found {counted(len(found), 'class')} ({', '.join(found)}); allowed: two or more"
            )
        return found
    if not isinstance(given, list | tuple) or len(set(given)) != len(given) or len(given) < 2:
        raise TaskError(f"task_options.classes: found {given!r}; allowed: a list of two or more different names")
    return [str(name) for name in given]


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise TaskError(f"image-folder: found no folder {folder}; give a folder with one folder per class")
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path, classes: Sequence[str], size: int, grey: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images uint8 [n, channels, size, size] in the order of class and file name, and labels int64 [n]."""
    images, labels = [], []
    for subfolder in _subfolders(folder):
        if subfolder.name not in classes:
            raise TaskError(f"image-folder: found folder {subfolder}; allowed: the classes {', '.join(classes)}")
        for path in sorted(p for p in subfolder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES):
            images.append(read_picture(path, (1 if grey else 3, size, size)))
            labels.append(classes.index(subfolder.name))
    if not images:
        raise TaskError(f"image-folder: found no images in {folder}; allowed: such as {folder}/<class>/1.png")
    return np.stack(images), np.array(labels, dtype=np.int64)


def _held_out(x: NDArray[Any], y: NDArray[Any], classes: int | None, group: NDArray[np.int64] | None = None) -> Pool:
    """Shuffle with a fixed seed and hold out a fifth for testing, with groups a fifth of each group of two rows or more."""
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

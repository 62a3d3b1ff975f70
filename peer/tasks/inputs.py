"""Read the samples of a prediction (an array, a table, pictures) as inputs of a model."""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.ordinary_file import opened, ordinary_file
from peer.tasks.files import IMAGE_SUFFIXES, TABLE_BYTES_MAX
from peer.tasks.preprocessing import Preprocessing, read_picture

ALLOWED = "a .npy, .npz, .safetensors or .csv file, a picture, or a folder of pictures"
ARRAY_NAME = "x"  # of the samples, in a file of several arrays

_UNREADABLE = (
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, SafetensorError),
)
INTEGER_MAX = 2.0**53  # float64 has every integer below it
NAMES_SHOWN = 8  # of columns, in a message


@dataclass(frozen=True, eq=False)
class Inputs:
    """Samples to predict.

    Attributes:
        x: inputs of the model, float32 or int64 [n, ...]; several by name.
        files: name of the file of each sample, if each has its own.
        unused: columns of the table that the model does not read.
    """

    x: NDArray[Any] | dict[str, NDArray[Any]]
    files: tuple[str, ...] | None = None
    unused: tuple[str, ...] = ()


def read_inputs(path: Path, sample_shape: tuple[int, ...], dtype: str, preprocessing: Preprocessing | None) -> Inputs:
    """Return the samples of a file, preprocessed as in training.

    Args:
        path: ``.npy``, ``.npz``, ``.safetensors``: one array of one sample or several; among several arrays, the one
            named ``x``. ``.csv``: one sample per row; a header row is optional, and selects columns by name where the
            model knows the names. A picture, or a folder of pictures, which may have subfolders.
        sample_shape: of one input of the model.
        dtype: of the inputs of the model, float32 or int64.
        preprocessing: applied to the samples; None: the file has inputs of the model, and nothing is applied.

    Raises:
        TaskError: the file cannot be read, or its samples are not of the model's shape and type.
    """
    files: tuple[str, ...] | None = None
    unused: tuple[str, ...] = ()
    if not path.exists():
        raise TaskError(f"--input: {path} cannot be read: found no such file; give {ALLOWED}")
    if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        raw, files = _pictures(path, sample_shape, preprocessing)
    elif path.suffix == ".csv":
        raw, unused = _table(path, sample_shape, preprocessing)
    elif path.suffix in {".npy", ".npz", ".safetensors"}:
        raw = _array(path)
    else:
        raise TaskError(f"--input: {path}: found the ending {path.suffix!r}; allowed: {ALLOWED}")
    if raw.shape == sample_shape:
        raw = raw[None]
    if raw.shape[1:] != sample_shape or not len(raw):
        shape = ", ".join(map(str, sample_shape))
        raise TaskError(
            f"--input: {path}: found an array of shape {list(raw.shape)}; allowed: [samples, {shape}] or [{shape}]; "
            "give samples of the shape that the model was trained on"
        )
    raw = _converted(path, raw, dtype)
    if preprocessing is None:
        return Inputs(raw, files, unused)
    if files is None and preprocessing.divisor != 1.0 and raw.dtype == np.float32 and 0 < np.abs(raw).max() <= 1:
        raise TaskError(
            f"--input: {path}: found values up to {np.abs(raw).max():.4g}, which seem to be scaled already; allowed: raw "
            f"values 0..{preprocessing.divisor:g}; give these, or --preprocessed if the samples are inputs of the model"
        )
    x = preprocessing.apply(raw)
    if x.dtype != dtype:
        raise TaskError(f"preprocessing: found {x.dtype} inputs; the model was trained on {dtype}; correct the task")
    return Inputs(x, files, unused)


def read_named_inputs(path: Path, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]) -> Inputs:
    """Return the samples of a model with several inputs: arrays with their names, which are not scaled.

    Args:
        path: ``.npz`` or ``.safetensors``: one array [samples, ...] for each name; others are not read.
        shapes: of one sample, by name.
        dtypes: float32 or int64, by name.

    Raises:
        TaskError: the file cannot be read, lacks a name, or has arrays of wrong shapes or values.
    """
    wanted = ", ".join(f"{name} {[*map(str, ('samples', *shape))]}".replace("'", "") for name, shape in shapes.items())
    if path.suffix not in {".npz", ".safetensors"}:
        raise TaskError(
            f"--input: {path}: found the ending {path.suffix!r}; allowed for a model with several inputs: a .npz or "
            f".safetensors file with the arrays {wanted}"
        )
    arrays = _arrays(path)
    found = {name: list(array.shape) for name, array in arrays.items()}
    first = next(iter(found.get(next(iter(shapes)), [])), 0)
    if not first or any(found.get(name) != [first, *shapes[name]] for name in shapes):
        raise TaskError(f"--input: {path}: found the arrays {found}; allowed: {wanted}, with equally many samples")
    return Inputs(
        {name: _converted(path, arrays[name], dtypes[name]) for name in shapes}, None, tuple(arrays.keys() - shapes)
    )


def _converted(path: Path, raw: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the samples as float32 or int64.

    Raises:
        TaskError: a value is not a finite number or, for int64, not an integer.
    """
    if raw.dtype.kind not in "fiub":
        raise TaskError(f"--input: {path}: found dtype {raw.dtype}; allowed: numbers; convert them to {dtype}")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is reported
        if dtype == "float32":
            wrong = ~np.isfinite(raw.astype(np.float32))
        elif raw.dtype.kind == "f":
            wrong = ~(np.abs(raw) < INTEGER_MAX) | (raw != np.floor(raw))
        else:
            wrong = np.zeros(raw.shape, np.bool_)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        allowed = "finite float32 numbers" if dtype == "float32" else "integers, such as token ids"
        raise TaskError(
            f"--input: {path}: sample {place[0]}, position {list(place[1:])}: found {raw[place]}; allowed: {allowed}; "
            "correct or remove the sample"
        )
    return np.ascontiguousarray(raw, dtype=dtype)


def _array(path: Path) -> NDArray[Any]:
    return _chosen(path, _arrays(path))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name; the one of a ``.npy`` file is called `ARRAY_NAME`."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(ordinary_file(path), framework="numpy") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        with opened(path) as stream:
            found = np.load(stream, allow_pickle=False)
            return {ARRAY_NAME: found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except _UNREADABLE as error:
        raise TaskError(f"--input: {path} cannot be read: {error}; write the file again") from error


def _chosen(path: Path, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if ARRAY_NAME not in arrays:
        found = ", ".join(sorted(arrays)) or "none"
        raise TaskError(
            f"--input: {path}: found the arrays {found}; allowed: one array, or several with the samples in {ARRAY_NAME!r}"
        )
    return arrays[ARRAY_NAME]


def _table(
    path: Path, sample_shape: tuple[int, ...], preprocessing: Preprocessing | None
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the rows as float64 [n, *sample_shape], and the columns that are not read."""
    columns = None if preprocessing is None else preprocessing.columns
    try:
        with ordinary_file(path, TABLE_BYTES_MAX).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TaskError(
            f"--input: {path} cannot be read: {error}; give a table in UTF-8, separated by commas"
        ) from error
    header = None
    if lines and (set(columns or ()) & set(lines[0][1]) or not any(map(_is_number, lines[0][1]))):
        header = lines.pop(0)[1]
    width = int(np.prod(sample_shape))
    places, unused = list(range(width)), tuple[str, ...]()
    if header is not None and columns is not None:
        if missing := [name for name in columns if header.count(name) != 1]:
            raise TaskError(
                f"--input: {path}: found {header.count(missing[0])} columns named {missing[0]!r} in the header; allowed: one "
                f"of each column that the model reads: {_some(columns)}; rename the columns, or give rows without a header"
            )
        places, unused = [header.index(name) for name in columns], tuple(n for n in header if n not in columns)
    cells_allowed = width if header is None or columns is None else len(header)
    rows = []
    for line, row in lines:
        if len(row) != cells_allowed:
            names = "" if columns is None else f": {_some(columns)}"
            raise TaskError(
                f"--input: {path} line {line}: found {len(row)} cells; allowed: {cells_allowed}, a sample has shape "
                f"{list(sample_shape)}{names}"
            )
        values = [_cell(row[place]) for place in places]
        if bad := [place for place, value in zip(places, values, strict=True) if not np.isfinite(value)]:
            name = f"column {bad[0] + 1}" if header is None else f"column {header[bad[0]]!r}"
            raise TaskError(
                f"--input: {path} line {line}, {name}: found {row[bad[0]]!r}; allowed: a finite number; "
                "correct or remove the row"
            )
        rows.append(values)
    if not rows:
        raise TaskError(f"--input: {path}: found no rows; allowed: one sample per row")
    return np.array(rows).reshape(-1, *sample_shape), unused


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _cell(text: str) -> float:
    return float(text) if _is_number(text) else float("nan")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pictures(
    path: Path, sample_shape: tuple[int, ...], preprocessing: Preprocessing | None
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return a picture or a folder of pictures with the values 0..divisor, and their names."""
    if preprocessing is None:
        raise TaskError(
            f"--input: {path}: found pictures, which are raw; allowed with --preprocessed: arrays and tables"
        )
    paths = [path]
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not paths:
        raise TaskError(
            f"--input: {path}: found a folder without pictures; allowed: {', '.join(sorted(IMAGE_SUFFIXES))}"
        )
    pixels = np.stack([read_picture(p, sample_shape) for p in paths])
    raw = pixels if preprocessing.divisor == 255.0 else pixels * np.float32(preprocessing.divisor / 255.0)
    return raw, tuple(str(p.relative_to(path)) if path.is_dir() else p.name for p in paths)

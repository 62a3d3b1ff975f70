"""Read the samples of a prediction (an array, a table, pictures) as inputs of a model."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from coordinator_free_bootstrap.errors import ConfigProblem, Option, TaskError
from coordinator_free_bootstrap.ordinary_file import opened, ordinary_file, text_of, unreadable
from coordinator_free_bootstrap.validation import counted
from peer.tasks.arrays import by_name
from peer.tasks.columns import NUMBER, Columns
from peer.tasks.in_numpy import in_numpy
from peer.tasks.pictures import IMAGE_SUFFIXES, read_pixels, summary
from peer.tasks.preprocessing import PIXELS, Preprocessing, precision
from peer.tasks.table import NOTHING, Table, is_table, read_table

ALLOWED = "a .npy, .npz or .safetensors file, a .csv, .tsv or .parquet table, a picture, or a folder of pictures"
ARRAY_SUFFIXES = frozenset({".npy", ".npz", ".safetensors"})
READER = "INPUT"  # of the samples, in messages: the argument of peer predict
ARRAY_NAME = "x"  # of the samples, in a file of several arrays

_UNREADABLE = (
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, SafetensorError),
)
INTEGER_MAX = 2.0**53  # float64 has every integer below it


@dataclass(frozen=True, eq=False)
class PredictionInputs:
    """Samples to predict.

    Attributes:
        x: inputs of the model, float32 or int64 [n, ...]; several by name.
        files: name of the file of each sample, if each has its own.
        unused: columns of the table that the model does not read.
        reading: what was detected in the table, or converted in the pictures.
    """

    x: np.ndarray | dict[str, np.ndarray]
    files: tuple[str, ...] | None = None
    unused: tuple[str, ...] = ()
    reading: str | None = None


def read_inputs(
    path: Path, sample_shape: tuple[int, ...], dtype: str, preprocessing: Preprocessing | None
) -> PredictionInputs:
    """Return the samples of a file, preprocessed as in training.

    Args:
        path: ``.npy``, ``.npz``, ``.safetensors``: one array of one sample or several; among several arrays, the one
            named ``x``. A table (``.csv``, ``.tsv``, ``.parquet``): one sample per row; a header is optional, and selects
            columns by name where the model knows the names. A picture, or a folder of pictures, which may have subfolders.
        sample_shape: of one input of the model.
        dtype: of the inputs of the model, float32 or int64.
        preprocessing: applied to the samples; None: the file has inputs of the model, and nothing is applied.

    Raises:
        TaskError: the file cannot be read, or its samples are not of the model's shape and type.
    """
    files: tuple[str, ...] | None = None
    unused: tuple[str, ...] = ()
    reading: str | None = None
    if not path.exists():
        raise TaskError(ConfigProblem(f"{READER}: {path}", ALLOWED, "none"))
    if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        raw, files, reading = _pictures(path, sample_shape, preprocessing)
    elif is_table(path):
        raw, unused, reading = _table(path, sample_shape, preprocessing)
    elif path.suffix in ARRAY_SUFFIXES:
        raw = _array(path)
    else:
        raise TaskError(f"{READER}: {path}: expected {ALLOWED}, got the ending {path.suffix!r}")
    if raw.shape == sample_shape:
        raw = raw[None]
    if raw.shape[1:] != sample_shape or not len(raw):
        shape = ", ".join(map(str, sample_shape))
        raise TaskError(
            f"{READER}: {path}: expected [samples, {shape}] or [{shape}], got an array of shape "
            f"{list(raw.shape)}. Give samples of the shape that the model was trained on."
        )
    converted = _converted(path, raw, dtype)
    if preprocessing is None:
        return PredictionInputs(converted, files, unused, reading)
    if files is None and preprocessing.divisor != 1.0 and dtype == "float32" and 0 < np.abs(raw).max() <= 1:
        raise TaskError(
            f"{READER}: {path}: expected raw values 0..{preprocessing.divisor:g}, got values up to "
            f"{np.abs(raw).max():.4g}, which seem to be scaled already. Give these, or {Option('preprocessed')} if "
            "the samples are inputs of the model."
        )
    x = preprocessing.apply(raw if precision(raw) is np.float64 else converted)
    if x.dtype != dtype:
        raise TaskError(f"preprocessing: expected {dtype} inputs, as in training, got {x.dtype}. Correct the task.")
    return PredictionInputs(x, files, unused, reading)


def read_named_inputs(path: Path, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]) -> PredictionInputs:
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
            f"{READER}: {path}: expected a .npz or .safetensors file with the arrays {wanted} for a model "
            f"with several inputs, got the ending {path.suffix!r}"
        )
    arrays = _arrays(path)
    found = {name: list(array.shape) for name, array in arrays.items()}
    first = next(iter(found.get(next(iter(shapes)), [])), 0)
    if not first or any(found.get(name) != [first, *shapes[name]] for name in shapes):
        raise TaskError(f"{READER}: {path}: expected {wanted}, with equally many samples, got the arrays {found}")
    return PredictionInputs(
        {name: _converted(path, arrays[name], dtypes[name]) for name in shapes}, None, tuple(arrays.keys() - shapes)
    )


def _converted(path: Path, raw: np.ndarray, dtype: str) -> np.ndarray:
    """Return the samples as float32 or int64.

    Raises:
        TaskError: a value is not a finite number or, for int64, not an integer.
    """
    if raw.dtype.kind not in "fiub":
        raise TaskError(f"{READER}: {path}: expected numbers, got dtype {raw.dtype}. Convert them to {dtype}.")
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
            f"{READER}: {path}: sample {place[0]}, position {list(place[1:])}: expected {allowed}, got "
            f"{raw[place]}. Correct or remove the sample."
        )
    return np.ascontiguousarray(raw, dtype=dtype)


def _array(path: Path) -> np.ndarray:
    return _chosen(path, _arrays(path))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name; the one of a ``.npy`` file is called `ARRAY_NAME`."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(ordinary_file(path), framework="numpy") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        with opened(path) as stream:
            found = np.load(stream, allow_pickle=False)
            return {ARRAY_NAME: found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except _UNREADABLE as error:
        raise TaskError(unreadable(f"{READER}: {path}", error, "Write the file again.", "arrays")) from error


def _chosen(path: Path, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if ARRAY_NAME not in arrays:
        found = ", ".join(sorted(arrays)) or "none"
        raise TaskError(
            f"{READER}: {path}: expected one array, or several with the samples in {ARRAY_NAME!r}, got the "
            f"arrays {found}"
        )
    return arrays[ARRAY_NAME]


def _table(
    path: Path, sample_shape: tuple[int, ...], preprocessing: Preprocessing | None
) -> tuple[NDArray[np.float64], tuple[str, ...], str]:
    """Return the rows as float64 [n, *sample_shape], the columns that are not read, and the form of the table."""
    known = None if preprocessing is None else preprocessing.table
    names = None if preprocessing is None else preprocessing.columns
    table = _rows(path, known, names or ())
    width = int(np.prod(sample_shape))
    if known is None and names is None:  # by position
        if len(table.header) != width:
            raise TaskError(
                f"{table.place(0)}: expected {width}, a sample has shape {list(sample_shape)}, got "
                f"{counted(len(table.header), 'cell')}"
            )
        table = replace(table, header=tuple(f"column {n + 1}" for n in range(width)))
    known = known or Columns(tuple((name, NUMBER) for name in names or table.header), table.form)
    if len(known.names) != width:
        raise TaskError(
            f"preprocessing: expected columns for a sample of shape {list(sample_shape)}, got {len(known.names)}. "
            "Correct the task."
        )
    by_name = all(table.header.count(name) == 1 for name, _ in known.kinds)
    unused = tuple(name for name in table.header if name not in dict(known.kinds)) if by_name else ()
    return known.encode(table).reshape(-1, *sample_shape), unused, str(table.form)


def _rows(path: Path, known: Columns | None, names: Sequence[str]) -> Table:
    """Return a table of one row or more, read as that of the training where its text leaves something open."""
    raw = list(names) if known is None else [name for name, _ in known.kinds]
    table = read_table(path, READER, known=raw, likely=NOTHING if known is None else known.form)
    if not table.rows:
        raise TaskError(f"{READER}: {path}: expected one sample per row, got no rows")
    return table


def read_raw(path: Path, sample_shape: Any) -> Any:
    """Return raw samples for a task's `encode`: the rows of a table or of JSON lines as dicts, else an array, or several by name.

    Args:
        path: as in `read_inputs`; or ``.jsonl``: one JSON object per line.
        sample_shape: of one input of the model, to which pictures are scaled.

    Raises:
        TaskError: the file cannot be read.
    """
    if not path.exists():
        raise TaskError(ConfigProblem(f"{READER}: {path}", f"{ALLOWED}, or a .jsonl file", "none"))
    if path.suffix == ".jsonl":
        return _json_lines(path)
    if is_table(path):
        table = _rows(path, None, ())
        return [dict(zip(table.header, row, strict=True)) for row in table.rows]
    if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        return _pictures(path, tuple(sample_shape), PIXELS)[0]
    if path.suffix not in ARRAY_SUFFIXES:
        raise TaskError(f"{READER}: {path}: expected {ALLOWED}, or a .jsonl file, got the ending {path.suffix!r}")
    arrays = _arrays(path)
    return arrays[ARRAY_NAME] if arrays.keys() == {ARRAY_NAME} else arrays


def checked_inputs(found: Any, shape: Any, dtype: Any) -> PredictionInputs:
    """Return what a task's `encode` gave as inputs of the model.

    Args:
        found: an array, or several by name.
        shape: of one sample; of several inputs by name.
        dtype: float32 or int64, likewise.

    Raises:
        TaskError: it is of another shape or type.
    """
    shapes, dtypes = (value if isinstance(value, Mapping) else {"": value} for value in (shape, dtype))
    arrays = {name: in_numpy(f"encode{name and [name]}", array) for name, array in by_name(found).items()}
    seen = {name: list(np.shape(array)) for name, array in arrays.items()}
    samples = next(iter(seen.values()), [0])[:1]
    if samples == [0]:
        raise TaskError("encode: expected raw samples for one input of the model or more, got none")
    if not all(isinstance(a, np.ndarray) for a in arrays.values()) or seen != {
        name: [*samples, *size] for name, size in shapes.items()
    }:
        raise TaskError(
            f"encode: expected arrays [samples, ...] with samples of shape {shapes.get('', shapes)}, got "
            f"{seen.get('', seen)}. Return inputs of the model."
        )
    checked = {name: _converted(Path("encode"), array, dtypes[name]) for name, array in arrays.items()}
    return PredictionInputs(checked.get("", checked))


def _json_lines(path: Path) -> list[Any]:
    try:
        text = text_of(path).removeprefix("\ufeff")
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise TaskError(
            unreadable(f"{READER}: {path}", error, expected="one JSON object per line, in UTF-8")
        ) from error


def _pictures(
    path: Path, sample_shape: tuple[int, ...], preprocessing: Preprocessing | None
) -> tuple[np.ndarray, tuple[str, ...], str | None]:
    """Return a picture or a folder of pictures with the values 0..divisor, their names, and what was converted."""
    if preprocessing is None:
        raise TaskError(
            f"{READER}: {path}: expected arrays and tables with {Option('preprocessed')}, got pictures, which are raw"
        )
    paths = [path]
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not paths:
        raise TaskError(
            f"{READER}: {path}: expected one of {', '.join(sorted(IMAGE_SUFFIXES))}, got a folder without pictures"
        )
    pictures = [read_pixels(p, sample_shape) for p in paths]
    pixels = np.stack([picture.pixels for picture in pictures])
    raw = pixels if preprocessing.divisor == 255.0 else pixels * np.float32(preprocessing.divisor / 255.0)
    names = tuple(str(p.relative_to(path)) if path.is_dir() else p.name for p in paths)
    return raw, names, summary(picture.conversions for picture in pictures)

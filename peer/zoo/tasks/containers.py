"""Samples in a program, in arrays, frames or data sets of libraries, as a pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import ConfigProblem, ShardError, TaskError
from coordinator_free_bootstrap.ordinary_file import unreadable
from coordinator_free_bootstrap.strict_json import of_type
from coordinator_free_bootstrap.validation import counted
from peer.tasks.columns import some
from peer.tasks.in_numpy import in_numpy, is_missing
from peer.tasks.preprocessing import PIXELS, RAW, SAMPLES_MIN, Preprocessing, Shared, precision
from peer.tasks.table import table_of_frame
from peer.zoo.tasks.data_options import TableOptions
from peer.zoo.tasks.files import class_list, held_out
from peer.zoo.tasks.pool import Pool
from peer.zoo.tasks.tabular import CLASSES_MIN_REFUSED, pool_of

ARRAY_OPTIONS = ("kind", "classes", "standardize", "samples_min", "preprocessing")
FRAME_OPTIONS = ("kind", "classes", "standardize", "samples_min", "columns", "ignore", "categories", "missing")
CHANNELS = (1, 3, 4)  # of pictures
SOURCE = "peer.Data"
Read = Callable[[str | None], Pool]  # the samples, grouped by the values of a column, or by None


def samples_of(x: Any, y: Any, options: Mapping[str, Any]) -> Read:
    """Return a function that returns the samples as a pool.

    Args:
        x: inputs, or a data set of inputs and targets.
        y: targets, the name of a column, or None.
        options: of `ARRAY_OPTIONS` or `FRAME_OPTIONS`.

    Raises:
        TaskError: an unknown container or option.
    """
    kind = options.get("kind")
    if kind not in (None, "classification", "regression"):
        raise TaskError(f"{SOURCE}: kind: expected classification or regression, got {kind!r}")
    if hasattr(x, "column_names") and hasattr(x, "__getitem__"):
        x, y, options = _of_columns(x, y, options)
    elif y is None:
        x, y = _of_pairs(x)
    known = FRAME_OPTIONS if hasattr(x, "iloc") else ARRAY_OPTIONS
    if unknown := sorted(set(options).difference(known)):
        raise TaskError(f"{SOURCE}: expected one of the options {', '.join(known)}, got {unknown[0]}")
    shared = _shared(options)
    if hasattr(x, "iloc"):
        return _frame(x, y, dict(options))
    if isinstance(y, str):
        raise TaskError(f"{SOURCE}: y: expected an array of targets [n], got the text {y!r} beside {of_type(x)}")
    pool = _array_pool(_array("x", x), _array("y", y), options, shared)

    def read(by: str | None) -> Pool:
        if by is not None:
            raise TaskError("run.split: expected a frame of pandas with 'by_column', got arrays, which have no columns")
        return pool

    return read


def _of_columns(data: Any, target: Any, options: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return inputs, targets and options of a data set with named columns: a frame, or the array of its one nested column."""
    names = list(data.column_names) if not isinstance(data.column_names, Mapping) else []
    if not isinstance(target, str) or target not in names:
        allowed = (
            f"the name of the column to predict: {', '.join(names)}"
            if names
            else "one part of the data, as data['train']"
        )
        raise TaskError(f"{SOURCE}: y: expected {allowed}, got {target!r}")
    labels = in_numpy("y", data[target])
    labels = labels if isinstance(labels, np.ndarray) else np.asarray(list(labels))
    known = getattr((getattr(data, "features", None) or {}).get(target), "names", None)  # of a ClassLabel
    if known and labels.dtype.kind in "iu" and labels.size and 0 <= labels.min() <= labels.max() < len(known):
        labels, options = np.array(known)[labels], {"classes": list(known), **options}
    inputs = {name: data[name] for name in names if name != target}
    inputs = {name: each if hasattr(each, "shape") else list(each) for name, each in inputs.items()}
    if len(inputs) == 1:
        only = next(iter(inputs.values()))
        if len(only) and not isinstance(only[0], str) and np.ndim(only[0]):
            return only, labels, options
    import pandas

    columns: dict[str, Any] = {name: in_numpy(name, each) for name, each in {**inputs, target: labels}.items()}
    return pandas.DataFrame(columns), target, options


def _of_pairs(data: Any) -> tuple[Any, Any]:
    """Return inputs and targets of a pair, or of a map-style data set of pairs."""
    if isinstance(data, tuple) and len(data) == 2:
        return data
    if hasattr(data, "iloc"):
        raise TaskError(
            f"{SOURCE}: y: expected the name of the column to predict: {some(list(map(str, data)))}, got none"
        )
    if isinstance(found := getattr(data, "tensors", None), tuple) and len(found) == 2:
        return found
    if hasattr(data, "detach") or isinstance(data, list | str | np.ndarray) or not hasattr(data, "__len__"):
        raise TaskError(
            f"{SOURCE}: expected inputs and targets (x, y), a frame and a column, or a data set with a length whose "
            f"items are pairs (x, y), got {of_type(data)} without targets"
        )
    items = [data[n] for n in range(len(data))]
    if wrong := [n for n, item in enumerate(items) if not isinstance(item, tuple | list) or len(item) != 2]:
        raise TaskError(f"{SOURCE}: item {wrong[0]}: expected a pair (x, y), got {of_type(items[wrong[0]])}")
    if not items:
        raise TaskError(f"{SOURCE}: expected pairs (x, y), got a data set without items")
    x, y = zip(*items, strict=True)
    return list(x), [target.item() if hasattr(target, "item") and target.ndim == 0 else target for target in y]


def _array(name: str, values: Any) -> np.ndarray:
    """Return values as an array of numbers or, of labels, texts."""
    try:
        if isinstance(values, list | tuple) and len(values) and hasattr(values[0], "detach"):
            values = [in_numpy(name, each) for each in values]
        found = in_numpy(name, values)
        found = np.asarray(found) if isinstance(found, np.ndarray) else in_numpy(name, _listed(found))
    except (ValueError, ShardError) as error:
        raise TaskError(unreadable(f"{SOURCE}: {name}", error, expected="an array of samples of one shape")) from error
    result: np.ndarray = found
    return result


def _listed(values: Any) -> np.ndarray:
    """Return a list as an array; texts beside numbers or None stay objects, which NumPy would make texts."""
    found = np.asarray(values)
    if found.dtype.kind in "US" and found.ndim == 1 and not all(isinstance(value, str) for value in values):
        return np.array(list(values), dtype=object)
    return found


def _shared(options: Mapping[str, Any]) -> Shared | None:
    """Return the scaling by all peers that the options ask for, or None."""
    standardize: object = options.get("standardize", True)
    if not isinstance(standardize, bool) and standardize != "shared":
        raise TaskError(f"{SOURCE}: standardize: expected True, False or 'shared', got {standardize!r}")
    if standardize == "shared":
        return Shared(options.get("samples_min", SAMPLES_MIN))
    if "samples_min" in options:
        why = "standardize is not 'shared'"
        raise TaskError(ConfigProblem.without_effect(f"{SOURCE}: samples_min", options["samples_min"], why))
    return None


def _array_pool(x: np.ndarray, y: np.ndarray, options: Mapping[str, Any], shared: Shared | None) -> Pool:
    if x.ndim < 2:
        raise TaskError(
            f"{SOURCE}: x: expected [samples, features...], such as x.reshape(-1, 1), got shape {list(x.shape)}"
        )
    if y.ndim < 1 or len(x) != len(y):
        raise TaskError(
            f"{SOURCE}: expected a target for each sample, got {len(x)} samples in x and {list(y.shape)} in y"
        )
    if x.dtype.kind not in "fiub":
        raise TaskError(
            f"{SOURCE}: x: expected numbers, got dtype {x.dtype}. Give a frame of pandas for texts and missing values."
        )
    if len(wrong := np.argwhere(~np.isfinite(x))):
        place = ", ".join(map(str, wrong[0]))
        raise TaskError(
            f"{SOURCE}: x[{place}]: expected finite numbers, got {x[tuple(wrong[0])]} ({len(wrong)} such values). "
            "Fill them in, or leave these samples out."
        )
    x = _pictures(x) if x.dtype == np.uint8 and x.ndim in (3, 4) else x
    targets, names = _targets(y, options)
    preprocessing = options.get("preprocessing")
    if preprocessing is not None and "standardize" in options:
        raise TaskError(f"{SOURCE}: expected one of preprocessing and standardize, got both")
    rows = x.ndim == 2 and preprocessing is None
    x = x.astype(precision(x)) if rows or x.dtype == bool else x
    pool = held_out(x, targets, None if names is None else len(names))
    if shared is not None and not rows:
        raise TaskError(
            f"{SOURCE}: standardize: expected rows [samples, features] for 'shared', got shape {list(x.shape)}"
        )
    if shared is not None:
        preprocessing = Preprocessing(shared=shared)
    elif preprocessing is None and rows and options.get("standardize", True):
        preprocessing = Preprocessing.standardizing(pool.x[: pool.train_count])
    preprocessing = preprocessing or (PIXELS if x.dtype == np.uint8 else RAW)
    return replace(pool, preprocessing=preprocessing, class_names=names)


def _pictures(x: np.ndarray) -> np.ndarray:
    """Return bytes [n, height, width] or [n, height, width, channels] as [n, channels, height, width]."""
    if x.ndim == 3:
        return x[:, None]
    return np.moveaxis(x, -1, 1) if x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS else x


def kind_of(y: np.ndarray, kind: str | None) -> str:
    """Return the kind of targets: that given, else classification for texts and integers, regression for fractions.

    Raises:
        TaskError: they may be both.
    """
    if kind is not None:
        return kind
    found = [value for value in y.ravel().tolist() if not is_missing(value)]
    if y.dtype.kind in "fiu":
        different = sorted(set(found))
        whole = all(float(value).is_integer() for value in found)
        many = len(different) > max(CLASSES_MIN_REFUSED, len(found) / 2)
        if (y.dtype.kind == "f" and whole) or (whole and many):
            raise TaskError(
                f"{SOURCE}: y: expected classes or numbers to predict, got {len(different)} different whole numbers "
                f"({some(list(map(str, different)))}) of type {y.dtype}, which may be either. Give kind='classification' or "
                "kind='regression'."
            )
        return "classification" if whole else "regression"
    return "classification"


def _targets(y: np.ndarray, options: Mapping[str, Any]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return int64 labels [n] and the names of the classes, or float32 targets and None."""
    absent = [n for n, value in enumerate(y.reshape(len(y), -1)[:, 0].tolist()) if is_missing(value)]
    if absent:
        raise TaskError(
            f"{SOURCE}: y[{absent[0]}]: expected a target, got {y[absent[0]]!r} ({len(absent)} of {len(y)} are missing). "
            "Leave these samples out."
        )
    if kind_of(y, options.get("kind")) == "regression":
        if y.dtype.kind not in "fiu" or not np.isfinite(y).all():
            raise TaskError(
                f"{SOURCE}: y: expected finite numbers for regression, got {y.dtype} that are not all finite"
            )
        if "classes" in options:
            why = "the targets are numbers to predict: kind is 'regression'"
            raise TaskError(ConfigProblem.without_effect(f"{SOURCE}: classes", options["classes"], why))
        return y.astype(np.float32), None
    if y.ndim != 1:
        raise TaskError(f"{SOURCE}: y: expected one label for each sample [n], as y.ravel(), got shape {list(y.shape)}")
    try:
        different = np.unique(y).tolist()
    except TypeError as error:
        raise TaskError(
            f"{SOURCE}: y: expected texts, integers or booleans, got labels of several types ({error})"
        ) from error
    classes = class_list(options.get("classes"), list(map(_name, different)), Path("y"))
    if unknown := [name for name in map(_name, different) if name not in classes]:
        raise TaskError(f"{SOURCE}: y: expected one of {', '.join(classes)}, got label {unknown[0]!r}")
    places = {name: place for place, name in enumerate(classes)}
    return np.array([places[_name(label)] for label in y.tolist()], np.int64), tuple(classes)


def _name(label: object) -> str:
    """Return the name of a label; 1.0 is the label 1."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _frame(frame: Any, y: Any, options: dict[str, Any]) -> Read:
    """Return the rows of a frame of pandas as samples, as the task ``tabular`` reads a table."""
    if isinstance(y, str) and y not in frame.columns:
        raise TaskError(f"{SOURCE}: y: expected a column of the frame: {', '.join(map(str, frame.columns))}, got {y!r}")
    target = y if isinstance(y, str) else str(getattr(y, "name", None) or "y")
    if not isinstance(y, str):
        index = getattr(y, "index", None)
        if len(y) != len(frame) or (hasattr(y, "iloc") and not frame.index.equals(index)):
            found = f"{len(y)} targets" if len(y) != len(frame) else "another index"
            raise TaskError(
                f"{SOURCE}: y: expected a target for each row, got {found} beside a frame of "
                f"{counted(len(frame), 'row')}"
            )
        if target in frame.columns:
            fix = f"Give y={target!r}, or drop the column."
            raise TaskError(ConfigProblem(f"{SOURCE}: y", f"no column {target!r} in the frame beside y", "one", fix))
        frame = frame.assign(**{target: _array("y", y) if not hasattr(y, "iloc") else y})
    targets = frame[target]
    options["kind"] = kind_of(targets.dropna().to_numpy(), options.get("kind"))
    options["target"] = target
    table = table_of_frame(frame, f"{SOURCE}: frame", "pandas")

    def read(by: str | None) -> Pool:
        try:
            return pool_of(table, TableOptions.complete(options | ({} if by is None else {"by": by})), Path("frame"))
        except TaskError as error:
            raise TaskError(str(error).replace("task_options.", "")) from error

    return read

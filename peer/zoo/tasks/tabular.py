"""A user's table as a pool: one sample per row, a column to predict, and the others as inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ConfigProblem, TaskError
from coordinator_free_bootstrap.validation import counted
from peer.tasks.columns import NUMBER, Columns, columns_of, refuse_look_alikes, some
from peer.tasks.numerals import number
from peer.tasks.preprocessing import Preprocessing, Shared, precision
from peer.tasks.table import MISSING, SUFFIXES, Form, Table, is_table, read_table
from peer.zoo.tasks.files import class_list, held_out, named_classes
from peer.zoo.tasks.pool import DataSet, Facts, Pool, Settings

READER = "tabular"  # of the tables, in messages
CLASSES_MIN_REFUSED = 20  # more classes than this, and than half of the rows, seem to be numbers to predict


def table_facts(options: Settings) -> Facts:
    """Return the number of classes that the options of `load_table` give, and the kind."""
    return Facts(None, named_classes(options), options["kind"] == "regression")


def load_table(dataset: DataSet, options: Settings, root: Path, download: bool) -> Pool:
    """Return a text file (CSV and its relatives) or a Parquet file (needs pandas); one sample per row.

    The options are those of `TableOptions`, with ``by``: column whose values group the rows (split ``by_column``); it is no
    input. ``root`` is the folder, or the file itself.

    Raises:
        TaskError: an option, the file, a column or a cell is wrong; the message names it.
    """
    path = _table_path(root, options["file"])
    return pool_of(read_table(path, READER, _form(options)), options, path)


def pool_of(table: Table, options: Settings, path: Path) -> Pool:
    """Return the rows of a table as samples; the options are those of `load_table`, and ``path`` names the table in messages.

    Raises:
        TaskError: as `load_table`.
    """
    header = table.header
    if not table.rows or len(header) < 2:
        raise TaskError(f"{table.source}: expected a header, two or more columns, rows of data, got no data")
    target, by = options["target"] or header[-1], options.get("by")
    if target not in header:
        raise TaskError(f"task_options.target: expected a column of {path}: {', '.join(header)}, got {target!r}")
    ignored = _ignored(options["ignore"], path, header, str(target))
    features = _input_columns(options["columns"], header, (target, by, *ignored), path)
    if by is not None and (by not in header or by == target or not features):
        raise TaskError(
            f"run.split_options.by: expected a column of {path} besides the target {target!r} and one or more inputs: "
            f"{', '.join(header)}, got {by!r}"
        )
    used = [*features, str(target), *([] if by is None else [str(by)])]
    if repeated := [name for name in used if header.count(name) > 1]:
        raise TaskError(
            f"{table.source}: expected one column named {repeated[0]!r}, got {header.count(repeated[0])}. Rename them."
        )
    texts = _categories(options["categories"], features, path)
    kept = _complete(table, used, {**texts, str(target): list(map(str, _listed(options["classes"])))}, options)
    columns = columns_of(kept, features, texts)
    x = columns.encode(kept)
    y, classes = _targets(kept, str(target), options)
    group = None if by is None else _groups(kept.column(header.index(str(by))))
    pool = held_out(x.astype(precision(x)), y, None if classes is None else len(classes), group)
    if options["standardize"] == "shared":
        scaling = Preprocessing(columns=columns.names, shared=Shared(options["samples_min"]))
    elif options["standardize"]:
        scaling = Preprocessing.standardizing(pool.x[: pool.train_count], columns.names)
    else:
        scaling = Preprocessing(columns=columns.names)
    aim = f"to predict: {target}, " + ("a number" if classes is None else f"classes {some(classes)}")
    left_out = len(table.rows) - len(kept.rows)
    dropped = f"; left out: {counted(left_out, 'row')} without a value" if left_out else ""
    scaling = replace(scaling, table=columns, reading=f"{columns}; {aim}{dropped}")
    names = None if classes is None else tuple(classes)
    return replace(pool, preprocessing=scaling, class_names=names, about={"target": str(target)})


def _input_columns(given: object, header: Sequence[str], others: Collection[object], path: Path) -> list[str]:
    """Return the names of the input columns: those given, in their order, or all of a header but the others, as in the table.

    Raises:
        TaskError: a name is given that is no input column, or twice.
    """
    allowed = [name for name in header if name not in others]
    if given is None:
        return allowed
    listed = list(given) if isinstance(given, list | tuple) else []
    wrong = [name for name in listed if allowed.count(name) != 1 or listed.count(name) != 1]
    if wrong or not listed:
        raise TaskError(
            f"task_options.columns: expected a list of different input columns of {path}: {', '.join(allowed)}, got "
            f"{(wrong or [given])[0]!r}"
        )
    return listed


def _table_path(root: Path, file: object) -> Path:
    if file is not None:
        root = root / str(file)
    if root.is_dir():
        tables = sorted(p for p in root.iterdir() if is_table(p))
        if len(tables) != 1:
            raise TaskError(
                f"{READER}: expected one table ({', '.join(SUFFIXES)}) in {root}, got {len(tables)}. "
                "Name one with task_options.file."
            )
        root = tables[0]
    if not root.is_file():
        raise TaskError(ConfigProblem(READER, f"the file {root}", "none", "Give a CSV or Parquet file."))
    return root


def _form(options: Settings) -> Form:
    """Return how the options say that the text is written."""
    return Form(**{name: options[name] for name in ("header", "decimal", "delimiter", "encoding")})


def _listed(given: object) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else []


def _ignored(given: object, path: Path, header: Sequence[str], target: str) -> list[str]:
    wrong = [name for name in _listed(given) if name not in header or name == target]
    if not isinstance(given, list | tuple) or wrong:
        raise TaskError(
            f"task_options.ignore: expected a list of columns of {path} besides the target {target!r}: "
            f"{', '.join(header)}, got {wrong[0] if wrong else given!r}"
        )
    return list(given)


def _categories(given: object, features: Sequence[str], path: Path) -> dict[str, list[str]]:
    """Return the texts of columns that the option ``categories`` lists as "column=text"."""
    texts: dict[str, list[str]] = {}
    for item in given if isinstance(given, list | tuple) else [given]:
        name = max((name for name in features if str(item).startswith(f"{name}=")), key=len, default=None)
        if name is None or str(item) in [f"{name}={text}" for text in texts.get(name, ())]:
            raise TaskError(
                f"task_options.categories: expected a list of different 'column=text' of {path}, got {item!r}. Its "
                f"inputs are {', '.join(features)}"
            )
        texts.setdefault(name, []).append(str(item)[len(name) + 1 :])
    return texts


def _complete(table: Table, used: Sequence[str], texts: Mapping[str, Sequence[str]], options: Settings) -> Table:
    """Return the table without rows that lack a value, or refuse them; a text that an option lists is a value.

    Raises:
        TaskError: rows lack a value, and they are not to be left out; or no row remains.
    """
    choice = options["missing"]
    if choice not in {"refuse", "drop"}:
        raise TaskError(f"task_options.missing: expected refuse or drop, got {choice!r}")
    lacking: dict[int, tuple[str, str]] = {}
    for name in used:
        listed = texts.get(name, ())
        for row, cell in enumerate(table.column(table.header.index(name))):
            if cell in MISSING and cell not in listed:
                lacking.setdefault(row, (name, cell))
    if not lacking:
        return table
    if len(lacking) == len(table.rows):
        empty = [name for name in used if all(cell in MISSING for cell in table.column(table.header.index(name)))]
        column = f"{empty[0]!r} has none" if empty else "each row lacks one"
        raise TaskError(
            f"{table.source}: expected a row with all values, got none: {column}. Fill them in, or set task_options.ignore."
        )
    if choice == "refuse":
        row = min(lacking)
        name, cell = lacking[row]
        lines = some([str(table.lines[n]) for n in sorted(lacking)])
        raise TaskError(
            f"{table.place(row)}, {name}: expected a value, got {cell!r}. {len(lacking)} of {len(table.rows)} rows lack one: "
            f"{lines}. Fill them in, or leave these rows out with task_options.missing=drop."
        )
    return table.without(lacking)


def _targets(table: Table, target: str, options: Settings) -> tuple[np.ndarray, list[str] | None]:
    """Return the targets of all rows, and the names of the classes; None for regression."""
    kind = options["kind"]
    if kind not in {"classification", "regression"}:
        raise TaskError(f"task_options.kind: expected classification or regression, got {kind!r}")
    if kind == "regression":
        return Columns(((target, NUMBER),), table.form).encode(table)[:, 0].astype(np.float32), None
    path, given = Path(table.source.partition(": ")[2]), options["classes"]
    labels, numbers = table.column(table.header.index(target)), table.numbers(table.header.index(target))
    numeric = all(value is not None for value in numbers)
    if numeric:  # 1 and 1.0 are one label
        labels = [_plain(label, value) for label, value in zip(labels, numbers, strict=True)]
    found = sorted(set(labels))
    classes = class_list(given, found, path)
    if given is None:
        refuse_look_alikes(f"{table.source}, {target}", found)
        if numeric and len(found) > max(CLASSES_MIN_REFUSED, len(labels) / 2):
            raise TaskError(
                f"{table.source}, {target}: expected classes, got {len(found)} different numbers in {len(labels)} rows. To "
                "predict a number, set task_options.kind=regression; for classes, list them in task_options.classes."
            )
    places = {(_plain(name, number(name, ".")) if numeric else name): place for place, name in enumerate(classes)}
    for row, label in enumerate(labels):
        if label not in places:
            raise TaskError(f"{table.place(row)}: expected one of {', '.join(classes)}, got label {label!r}")
    return np.array([places[label] for label in labels], dtype=np.int64), classes


def _plain(label: str, value: float | None) -> str:
    """Return a whole number that is written as a fraction, such as 1.0, as an integer."""
    whole = value is not None and value.is_integer() and not label.lstrip("+-").isdigit()
    return str(int(value)) if whole and value is not None else label


def _groups(cells: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of each cell's value, int64 [n]; values ascend, as numbers if all of them are numbers."""
    try:
        return np.unique([float(cell) for cell in cells], return_inverse=True)[1].astype(np.int64)
    except ValueError:
        return np.unique(cells, return_inverse=True)[1].astype(np.int64)

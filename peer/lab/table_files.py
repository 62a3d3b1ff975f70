"""Tables as JSON files: one for each experiment, with a table for each scale at which it was measured, one row a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.ordinary_file import text_of, unreadable
from coordinator_free_bootstrap.validation import joined, sentences
from peer.lab.table import ResultTable
from peer.store.files import write_atomic

FOLDER = "results"  # of a paper, beside its experiment files


class ResultFile(BaseModel):
    """The tables of one experiment, one for each scale and setting in which it was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tables: tuple[ResultTable, ...]


def table_files(directory: Path) -> list[Path]:
    """Return the files with the tables of a paper's folder, by name."""
    return sorted((directory / FOLDER).glob("*.json"))


def read_tables(path: Path) -> tuple[ResultTable, ...]:
    """Return the tables of a file.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    try:
        found = json.loads(text_of(path))
        return ResultFile.model_validate(found).tables
    except ValidationError as error:
        raise UsageError(joined(str(path), sentences(error, ResultFile, found))) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(unreadable(str(path), error, expected="what peer experiment table --out writes")) from error


def write_tables(folder: Path, tables: Sequence[ResultTable]) -> list[Path]:
    """Write tables into the files of their experiments and return these; a file keeps its tables of other scales.

    Raises:
        UsageError: a file that exists holds something else.
        StorageError: a file cannot be written.
    """
    paths = []
    for name in dict.fromkeys(table.experiment for table in tables):
        path = folder / f"{name}.json"
        new = {table.key: table for table in tables if table.experiment == name}
        old = {table.key: table for table in read_tables(path)} if path.exists() else {}
        write_atomic(path, text_of_tables((old | new).values()).encode())
        paths.append(path)
    return paths


def text_of_tables(tables: Iterable[ResultTable]) -> str:
    """Return tables as JSON text, without what is empty."""
    return f'{{"tables": [{",".join(map(_text, tables))}\n]}}\n'


def _text(table: ResultTable) -> str:
    lines = []
    for key, value in table.model_dump(mode="json", exclude_none=True).items():
        text = (
            _compact(value)
            if key not in ("rows", "totals")
            else "[" + ",".join(f"\n  {_compact(v)}" for v in value) + "]"
        )
        lines += [] if value in ("", []) else [f"\n {json.dumps(key)}: {text}"]
    return f"\n{{{','.join(lines)}}}"


def _compact(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value in which whole numbers have no decimal point."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

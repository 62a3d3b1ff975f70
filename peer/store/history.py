"""The run history: an append-only file with one JSON object per line. One peer writes it; reports and progress read it.

`peer.store.records` lists the kinds of lines and their fields. An incomplete last line is removed when the
file is opened again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic_core import from_json

from coordinator_free_bootstrap.ordinary_file import opened
from coordinator_free_bootstrap.strict_json import dumps, finite, of_type
from coordinator_free_bootstrap.validation import counted
from peer.store.files import storage_errors
from peer.store.lines import LINE_BYTES_MAX, PART_BYTES, LineFile, check_line, parts_of
from peer.store.records import KINDS

_DURABLE = frozenset({"start", "leave", "end"})  # flushed to the disk at once; the others when the kernel likes
log = logging.getLogger("peer")


class HistoryWriter:
    """Append lines to a history file; the constructor removes an incomplete last line.

    Every line has ``kind``, ``t`` (seconds since the constructor, monotonic), ``time`` (wall clock, ISO 8601, UTC) and
    ``incarnation``; the caller may give other values. NaN and Inf are written as null.

    Args:
        path: of the part that grows, see `peer.store.lines`.
        incarnation: of the lines.
        part_bytes: after a round, a part that has as many is closed.

    Raises:
        StorageError: the file cannot be opened or repaired.
    """

    def __init__(self, path: Path, *, incarnation: int = 0, part_bytes: int = PART_BYTES) -> None:
        self.incarnation = incarnation
        self._started = time.monotonic()
        self._file = LineFile(path, "history.write", part_bytes)

    def stamped(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return the line that `write` would write now."""
        stamp = {
            "t": round(time.monotonic() - self._started, 6),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "incarnation": self.incarnation,
        }
        return {"kind": kind, **stamp, **fields}

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line.

        Raises:
            ValueError: `kind` is not in `KINDS`.
            StorageError: it could not be written; the file then ends with the line before.
        """
        if kind not in KINDS:
            raise ValueError(f"history line: expected kind to be one of {', '.join(KINDS)}, got {kind!r}")
        self._file.append(_encode(self.stamped(kind, **fields)), durable=kind in _DURABLE)
        if kind == "round" and self._file.is_full:
            self._file.close_part()

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        self._file.close()

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@dataclass
class Unread:
    """The lines of a file that cannot be read, which readers leave out and name: their number, and the first of them.

    Attributes:
        path: of the file.
        count: of such lines.
        first: number of the first one, from 1.
        reason: why it cannot be read.
    """

    path: Path
    count: int = 0
    first: int = 0
    reason: str = ""

    def add(self, number: int, reason: str) -> None:
        """Count a line."""
        if not self.count:
            self.first, self.reason = number, reason
        self.count += 1

    def sentences(self) -> list[str]:
        """Return a sentence about these lines, [] if there are none."""
        if not self.count:
            return []
        lines = f"{counted(self.count, 'line')} could not be read and {'is' if self.count == 1 else 'are'} left out"
        return [f"{self.path}: {lines}; the first is line {self.first}: {self.reason}"]


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of all parts in order; [] if there is no file. What cannot be read is left out, with a warning.

    Raises:
        StorageError: the file exists and cannot be read.
    """
    lines: list[dict[str, Any]] = []
    unread, before = Unread(Path(path)), 0
    for part in parts_of(Path(path)):
        with storage_errors("read", part), opened(part) as file:
            for piece in _pieces(file):
                lines += usable_lines(piece, before, unread)
                before += piece.count(b"\n")
    for sentence in unread.sentences():
        log.warning("%s", sentence)
    return lines


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines of a file, some at a time."""
    rest = b""
    while data := file.read(LINE_BYTES_MAX):
        complete, newline, rest = (rest + data).rpartition(b"\n")
        check_line(len(rest))
        yield complete + newline


def first_line(path: Path) -> bytes:
    """Return the first line of a history with its newline; b"" if there is none.

    Raises:
        StorageError: the file exists and cannot be read.
    """
    for part in parts_of(path)[:1]:
        with storage_errors("read", part), opened(part) as file:
            return file.readline(LINE_BYTES_MAX)
    return b""


def usable_lines(
    data: bytes, before: int, unread: Unread, problem_of: Callable[[dict[str, Any]], str] = lambda _: ""
) -> Iterator[dict[str, Any]]:
    """Yield each line of `data` that ends with a newline and is a valid JSON object with a ``kind``.

    Args:
        data: of a file.
        before: the number of lines before it in the file.
        unread: counts the other lines; an empty one says nothing, and is not counted.
        problem_of: returns what is wrong with an object, "" if it is valid.
    """
    for number, line in enumerate(data.split(b"\n")[:-1], before + 1):
        if not line.strip():
            continue
        try:
            record = _decode(line)
        except (ValueError, RecursionError):
            record = None
        is_record = isinstance(record, dict) and "kind" in record
        if problem := problem_of(record) if is_record else "expected a JSON object with a kind":
            unread.add(number, problem)
        else:
            yield record


def parse_lines(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines as `usable_lines` does, for a reader that looks for one of them."""
    return usable_lines(data, 0, Unread(Path()))


def _decode(line: bytes) -> Any:
    """Return the value of a JSON line."""
    try:
        return from_json(line, cache_strings="keys")  # lines have the same keys: one string for all of them
    except ValueError:  # half of a surrogate pair, which Python's reader takes
        return json.loads(line)


def _encode(record: dict[str, Any]) -> bytes:
    return dumps(record, separators=(",", ":"), default=plain).encode() + b"\n"


def plain(value: Any) -> Any:
    """Return the JSON value of a NumPy value or a set, for `json.dumps`; raises TypeError for anything else."""
    if isinstance(value, np.generic | np.ndarray):
        return finite(value.tolist())
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"history line: expected a JSON value or a NumPy array, got {of_type(value)}")

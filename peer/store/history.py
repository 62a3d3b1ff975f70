"""The run history: an append-only file with one JSON object per line. One peer writes it; reports and progress read it.

`peer.store.records` lists the kinds of lines and their fields. An incomplete last line is removed when the
file is opened again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic_core import from_json

from coordinator_free_bootstrap.ordinary_file import opened, ordinary_file
from coordinator_free_bootstrap.strict_json import dumps, finite, of_type
from coordinator_free_bootstrap.validation import counted
from peer import failpoints
from peer.store.files import storage_error, storage_errors
from peer.store.records import KINDS
from peer.store.system import OPEN_FLAGS, read_at

_DURABLE = frozenset({"start", "leave", "end"})  # flushed to the disk at once; the others when the kernel likes
_TAIL_BLOCK_BYTES = 1 << 16
log = logging.getLogger("peer")
LINE_BYTES_MAX = 64 << 20  # of one line; a round with 100,000 neighbors has less


class HistoryWriter:
    """Append lines to a history file; the constructor removes an incomplete last line.

    Every line has ``kind``, ``t`` (seconds since the constructor, monotonic), ``time`` (wall clock, ISO 8601, UTC) and
    ``incarnation``; the caller may give other values. NaN and Inf are written as null.

    Raises:
        StorageError: the file cannot be opened or repaired.
    """

    def __init__(self, path: Path, *, incarnation: int = 0) -> None:
        self.path = Path(path)
        self.incarnation = incarnation
        self._started = time.monotonic()
        with storage_errors("open", self.path):
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | OPEN_FLAGS, 0o644)
            try:
                ordinary_file(self.path)  # a pipe would take lines only until it is full
                self._size = _repair_tail(self._handle)
            except OSError:
                os.close(self._handle)
                raise

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
        line = _encode(self.stamped(kind, **fields))
        try:
            failpoints.reach("history.write")
            _write_all(self._handle, line)
            if kind in _DURABLE:
                os.fsync(self._handle)
        except OSError as error:
            self._cut_back()
            raise storage_error("append to", self.path, error) from error
        self._size += len(line)

    def _cut_back(self) -> None:
        """Remove the bytes of a failed write."""
        try:
            os.ftruncate(self._handle, self._size)
        except OSError:
            return  # readers leave the fragment out

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

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
    """Return the complete lines in file order; [] if there is no file. What cannot be read is left out, with a warning.

    Raises:
        StorageError: the file exists and cannot be read.
    """
    lines: list[dict[str, Any]] = []
    unread, before = Unread(Path(path)), 0
    try:
        with opened(path) as file:
            for piece in _pieces(file):
                lines += usable_lines(piece, before, unread)
                before += piece.count(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error("read", Path(path), error) from error
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


def check_line(size: int) -> None:
    """Raise OSError for a line that no peer has written."""
    if size > LINE_BYTES_MAX:
        raise OSError(f"expected lines of at most {LINE_BYTES_MAX} bytes, each one JSON object, got a longer line")


def first_line(path: Path) -> bytes:
    """Return the first line of a history with its newline; b"" if there is none.

    Raises:
        StorageError: the file exists and cannot be read.
    """
    try:
        with opened(path) as file:
            return file.readline(LINE_BYTES_MAX)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise storage_error("read", path, error) from error


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


def _repair_tail(handle: int) -> int:
    """Truncate the file after its last newline; return its size."""
    size = end = os.fstat(handle).st_size
    while end > 0:
        check_line(size - end)
        start = max(0, end - _TAIL_BLOCK_BYTES)
        newline = read_at(handle, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(handle, end)
    return end


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _encode(record: dict[str, Any]) -> bytes:
    return dumps(record, separators=(",", ":"), default=plain).encode() + b"\n"


def plain(value: Any) -> Any:
    """Return the JSON value of a NumPy value or a set, for `json.dumps`; raises TypeError for anything else."""
    if isinstance(value, np.generic | np.ndarray):
        return finite(value.tolist())
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"history line: expected a JSON value or a NumPy array, got {of_type(value)}")

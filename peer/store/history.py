"""The run history: an append-only file with one JSON object a line. Written by one peer, read by reports and watchers.

Kinds of lines: ``start``, ``round``, ``neighbor`` (its state changed), ``refused``, ``checkpoint``, ``leave``,
``end``, ``log``. docs/history.md lists the fields of each. A line is complete or it is not there: a torn last line is
cut away when the file is opened again.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from peer import failpoints
from peer.store.files import storage_error, storage_errors

KINDS = frozenset({"start", "round", "neighbor", "refused", "checkpoint", "leave", "end", "log", "caught_up"})
_DURABLE = frozenset({"start", "leave", "end"})  # flushed to the disk at once; the others when the kernel likes
_TAIL_BLOCK_BYTES = 1 << 16


class HistoryWriter:
    """Append lines to a history file, repairing a torn last line first.

    Every line gets ``kind``, ``t`` (seconds since this writer was made, monotonic), ``time`` (wall clock, ISO 8601,
    UTC) and ``incarnation``, unless the caller gives them. Numbers that are not finite are written as null.

    Raises:
        StorageError: the file cannot be opened or repaired.
    """

    def __init__(self, path: Path, *, incarnation: int = 0) -> None:
        self.path = Path(path)
        self.incarnation = incarnation
        self._started = time.monotonic()
        with storage_errors("open", self.path):
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                self._size = _repair_tail(self._handle)
            except OSError:
                os.close(self._handle)
                raise

    def write(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append one line and return it as written.

        Raises:
            ValueError: `kind` is none of `KINDS`.
            StorageError: it could not be written; the file then ends with the line before.
        """
        if kind not in KINDS:
            raise ValueError(f"history has no lines of kind {kind!r}; kinds are {', '.join(sorted(KINDS))}")
        stamp = {
            "t": round(time.monotonic() - self._started, 6),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "incarnation": self.incarnation,
        }
        record = {"kind": kind, **stamp, **fields}
        line = _encode(record)
        try:
            failpoints.reach("history.write")
            _write_all(self._handle, line)
            if kind in _DURABLE:
                os.fsync(self._handle)
        except OSError as error:
            self._cut_back()
            raise storage_error("append to", self.path, error) from error
        self._size += len(line)
        return record

    def _cut_back(self) -> None:
        """Remove what a failed write left behind, so that the next line starts clean."""
        try:
            os.ftruncate(self._handle, self._size)
        except OSError:
            return  # `read_history` passes over the fragment

    def close(self) -> None:
        """Close the file; harmless when done twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines in file order; [] if there is no file. Fragments are passed over.

    Raises:
        StorageError: the file exists and cannot be read.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error("read", Path(path), error) from error
    return list(parse_lines(data))


def parse_lines(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield each complete line of `data` (those that end with a newline) that is a JSON object with a ``kind``."""
    for line in data.split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and "kind" in record:
            yield record


def _repair_tail(handle: int) -> int:
    """Cut the file behind its last newline; return the size that remains."""
    size = end = os.fstat(handle).st_size
    while end > 0:
        start = max(0, end - _TAIL_BLOCK_BYTES)
        newline = os.pread(handle, end - start, start).rfind(b"\n")
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
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False, default=_plain)
    except ValueError:  # a diverged loss is NaN, and NaN is no JSON
        text = json.dumps(_finite(record), separators=(",", ":"), allow_nan=False, default=_plain)
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return _finite(value.tolist())
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"history cannot hold a {type(value).__name__}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

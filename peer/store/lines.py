"""A file of lines that one process appends to, for years: when it is large, it is closed as a part and a new one begins.

Closed parts of ``history.jsonl`` are ``history.1.jsonl``, ``history.2.jsonl``, ...; readers take them first, in this order.
Nothing is ever removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from coordinator_free_bootstrap.ordinary_file import ordinary_file
from peer import failpoints
from peer.store.files import fsync_path, storage_error, storage_errors
from peer.store.system import OPEN_FLAGS, read_at

PART_BYTES = 64 << 20
LINE_BYTES_MAX = 64 << 20  # of one line; a round with 100,000 neighbors has less
_TAIL_BLOCK_BYTES = 1 << 16


def closed_part(path: Path, number: int) -> Path:
    """Return where a closed part of a file is, or would be."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def parts_of(path: Path) -> list[Path]:
    """Return the parts of a file that exist, oldest first; the file itself is the last of them."""
    return [part for part in (*_closed(path), path) if part.exists()]


def _closed(path: Path) -> Iterator[Path]:
    for number in count(1):
        part = closed_part(path, number)
        if not part.exists():
            return
        yield part


def check_line(size: int) -> None:
    """Raise OSError for a line that no peer has written."""
    if size > LINE_BYTES_MAX:
        raise OSError(f"expected lines of at most {LINE_BYTES_MAX} bytes, each one JSON object, got a longer line")


class LineFile:
    """The open file; the constructor removes an incomplete last line.

    Args:
        path: of the part that grows.
        failpoint: reached before each write.
        part_bytes: a part that has as many is complete.

    Attributes:
        cut_bytes: of the incomplete line that was removed.

    Raises:
        StorageError: the file cannot be opened or repaired.
    """

    def __init__(self, path: Path, failpoint: str, part_bytes: int = PART_BYTES) -> None:
        self.path, self._failpoint, self._part_bytes = Path(path), failpoint, part_bytes
        with storage_errors("open", self.path):
            self._handle = self._open()
            try:
                ordinary_file(self.path)  # a pipe would take lines only until it is full
                before = os.fstat(self._handle).st_size
                self._size = _repair_tail(self._handle)
            except OSError:
                os.close(self._handle)
                raise
        self.cut_bytes = before - self._size

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | OPEN_FLAGS, 0o644)

    @property
    def is_full(self) -> bool:
        """Whether the part should be closed."""
        return self._size >= self._part_bytes

    def append(self, line: bytes, *, durable: bool = False) -> None:
        """Append a line, with its newline; flush it to the disk if it is durable, else when the kernel likes.

        Raises:
            StorageError: it could not be written; the file then ends with the line before.
        """
        try:
            failpoints.reach(self._failpoint)
            _write_all(self._handle, line)
            if durable:
                os.fsync(self._handle)
        except OSError as error:
            self._cut_back()
            raise storage_error("append to", self.path, error) from error
        self._size += len(line)

    def close_part(self) -> None:
        """Close the part and begin the next one; after a crash in between, the next start begins it.

        Raises:
            StorageError: it cannot be closed, and goes on to grow.
        """
        number = len(parts_of(self.path))
        with storage_errors("close the part", self.path):
            os.fsync(self._handle)
            if self.path.exists():  # else an earlier call has closed it, and could not begin the next
                self.path.rename(closed_part(self.path, number))
            fsync_path(self.path.parent)
            failpoints.reach("part.closed")
            opened = self._open()
        os.close(self._handle)
        self._handle, self._size = opened, 0

    def last_line(self) -> bytes:
        """Return the last line of all parts, without its newline; b"" if there is none."""
        with storage_errors("read", self.path):
            for part in reversed(parts_of(self.path)):
                with part.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    data, start = b"", size
                    while start > 0 and b"\n" not in data[:-1]:
                        check_line(size - start)
                        start = max(0, start - _TAIL_BLOCK_BYTES)
                        file.seek(start)
                        data = file.read(size - start)
                if data:
                    return data[:-1].rpartition(b"\n")[2]
        return b""

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

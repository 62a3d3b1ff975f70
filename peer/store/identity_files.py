"""The lock and the incarnation file of a state directory.

A peer acquires the lock and persists its incarnation before it sends the first byte to a neighbor (invariant I7).
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from coordinator_free_bootstrap.errors import CheckpointCorrupt, Option, StorageError
from coordinator_free_bootstrap.identity import INCARNATION_MAX, next_incarnation
from coordinator_free_bootstrap.ordinary_file import content_of
from peer.store.files import seal, storage_error, storage_errors, unseal, write_atomic
from peer.store.forks import close_in_children, keep_in_children
from peer.store.system import OPEN_FLAGS, read_at, try_lock

FILE_BYTES_MAX = 4096  # it has about 100


class IncarnationFile:
    """The incarnation of a peer on disk; it is persisted before use and only grows.

    `next_incarnation` computes it: the stored one plus 1, or a random high part after a lost disk. It is above the
    incarnation that a neighbor has seen (``Hello.seen_incarnation``, passed as `above`).
    """

    def __init__(self, directory: Path) -> None:
        self.path = Path(directory) / "incarnation.json"
        self.problem: str | None = None  # set by `read`: why the file is not usable

    def read(self) -> int | None:
        """Return the last claimed incarnation; None without a file, or if it is damaged: `problem` says why.

        Raises:
            StorageError: the file exists and cannot be read.
        """
        self.problem = None
        try:
            data = content_of(self.path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        try:
            value = unseal(data)
            return _incarnation_in(value)
        except CheckpointCorrupt as error:
            self.problem = f"{self.path}: damaged ({error}); the peer takes a new incarnation, as after a lost disk"
            return None

    def claim(self, entropy: int | None = None, *, above: int = 0) -> int:
        """Persist and return an incarnation greater than every earlier one and than `above`.

        Args:
            entropy: random bits for `next_incarnation`; None: from the operating system.
            above: the highest incarnation of this peer in a checkpoint or at a neighbor.

        Raises:
            StorageError: it cannot be persisted; the peer must not use it.
            IdentityError: no higher incarnation is left, or `above` is out of range.
        """
        claimed = next_incarnation(self.read(), above, secrets.randbits(32) if entropy is None else entropy)
        write_atomic(self.path, seal({"incarnation": claimed}))
        return claimed


def _incarnation_in(value: object) -> int:
    incarnation = value.get("incarnation") if isinstance(value, dict) else None
    if isinstance(incarnation, bool) or not isinstance(incarnation, int) or not 0 <= incarnation <= INCARNATION_MAX:
        raise CheckpointCorrupt("its content is no incarnation")
    return incarnation


class StateLock:
    """Exclusive lock of a state directory (``flock``), held by one process.

    The kernel releases the lock when the process ends for any reason, so there are no stale locks.
    """

    _attempts, _pause_s = 10, 0.05  # `held_by` in another process holds the lock for a moment

    def __init__(self, directory: Path) -> None:
        self.path = Path(directory) / "lock"
        self._handle: int | None = None

    def acquire(self) -> None:
        """Acquire the lock.

        Raises:
            StorageError: another process holds it (the message has its process id), or the file cannot be made.
        """
        with storage_errors("lock", self.path):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o644)
            if not self._try_lock(handle):
                owner = read_at(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                raise StorageError(
                    f"state directory {self.path.parent}: expected no other process, got process {owner}, which uses it. "
                    f"Stop that process, or choose another {Option('state_dir')}"
                )
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, f"{os.getpid()}\n".encode())
            self._handle = handle
            close_in_children(handle)

    def _try_lock(self, handle: int) -> bool:
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(self._pause_s)
            if try_lock(handle):
                return True
        return False

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""
        if self._handle is not None:
            keep_in_children(self._handle)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> StateLock:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


def held_by(directory: Path) -> int | None:
    """Return the id of the process that holds the lock of a state directory, 0 if unknown, None if none; read only."""
    try:
        handle = os.open(Path(directory) / "lock", os.O_RDONLY | OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        if try_lock(handle, shared=True):
            return None
        text = read_at(handle, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(handle)

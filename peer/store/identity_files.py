"""Who uses a state directory, and which life of the peer this is: the lock and the incarnation.

Both must be settled before the first byte goes to a neighbor (invariant I7).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path
from types import TracebackType

from coordinator_free_bootstrap.errors import CheckpointCorrupt, StorageError
from coordinator_free_bootstrap.identity import life, next_incarnation
from peer.store.files import seal, storage_error, storage_errors, unseal, write_atomic

__all__ = ["IncarnationFile", "StateLock", "held_by", "life"]


class IncarnationFile:
    """The incarnation of a peer, persisted before use; it only grows.

    `next_incarnation` decides the number: one more on an intact disk; after a lost one a random high part, and far
    above what a neighbor has seen (``Hello.seen_incarnation``, passed as `above`).
    """

    def __init__(self, directory: Path) -> None:
        self.path = Path(directory) / "incarnation.json"
        self.problem: str | None = None  # why the file could not be believed, after `read`

    def read(self) -> int | None:
        """Return the last claimed incarnation; None if there is none or the file is damaged (then `problem` says so).

        Raises:
            StorageError: the file exists and cannot be read.
        """
        self.problem = None
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        try:
            value = unseal(data)
        except CheckpointCorrupt as error:
            self.problem = f"{self.path} is damaged ({error}); starting as after a lost disk"
            return None
        return int(value["incarnation"])

    def claim(self, entropy: int | None = None, *, above: int = 0) -> int:
        """Persist and return an incarnation greater than every earlier one and than `above`.

        Args:
            entropy: any integer; its low 32 bits become the random part of a life without a disk. None: drawn from
                the operating system.
            above: the greatest incarnation of this peer known elsewhere (a checkpoint, a neighbor's echo).

        Raises:
            StorageError: it cannot be persisted; it must not be used then.
            IdentityError: no greater number is left.
        """
        claimed = next_incarnation(self.read(), above, secrets.randbits(32) if entropy is None else entropy)
        write_atomic(self.path, seal({"incarnation": claimed}))
        return claimed


class StateLock:
    """Exclusive use of a state directory by one process, for as long as that process lives (``flock``).

    The kernel drops the lock when the process ends, however it ends, so there is no stale lock to clean up.
    """

    _attempts, _pause_s = 10, 0.05  # `held_by` of an observer takes the lock for an instant

    def __init__(self, directory: Path) -> None:
        self.path = Path(directory) / "lock"
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StorageError: another process has it (the sentence names its process id), or the file cannot be made.
        """
        with storage_errors("lock", self.path):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not self._try_lock(handle):
                owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                raise StorageError(
                    f"{self.path.parent} is in use by process {owner}; stop it, or choose another --state-dir"
                )
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            self._handle = handle

    def _try_lock(self, handle: int) -> bool:
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(self._pause_s)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                continue
        return False

    def release(self) -> None:
        """Give the lock back; harmless if it was never taken."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> StateLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def held_by(directory: Path) -> int | None:
    """Return the process id of the peer that uses this state directory now, or None; changes nothing."""
    try:
        handle = os.open(Path(directory) / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        text = os.pread(handle, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(handle)

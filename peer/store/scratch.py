"""Folders for temporary files that killed processes leave behind: each has a lock; the next process removes those without.

The kernel releases a lock when its process ends for any reason. So a folder without one is not in use, also where a process
number was given again or the owner runs in another container.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from coordinator_free_bootstrap.errors import StorageError
from peer.store.system import OPEN_FLAGS, try_lock

Purpose = Literal["sockets", "simulated", "bed", "training"]
PREFIXES = tuple(f"peer-{purpose}-" for purpose in get_args(Purpose))
_ATTEMPTS = 10  # another process may sweep a folder between its creation and its lock
_HAS_LOCKS = hasattr(os, "O_DIRECTORY")  # not on Windows


class ScratchFolder:
    """A folder of this process, mode 0700, in the system's folder for temporary files; those of dead processes are removed first.

    Args:
        purpose: part of its name.

    Raises:
        StorageError: there is no folder for temporary files, or it cannot be written.
    """

    def __init__(self, purpose: Purpose) -> None:
        with _usable():
            sweep(Path(tempfile.gettempdir()))
            self.path, self._handle = _made(f"peer-{purpose}-")

    def remove(self) -> None:
        """Delete the folder; a second call has no effect."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def temporary_folder() -> Path:
    """Return the system's folder for temporary files.

    Raises:
        StorageError: none can be written; the message names those that were tried.
    """
    with _usable():
        return Path(tempfile.gettempdir())


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"no folder for temporary files can be used ({error.strerror or error}). Mount one that can be written at /tmp, or "
            "set TMPDIR to one."
        ) from error


def sweep(parent: Path) -> list[Path]:
    """Remove the folders of dead processes of this user, and return their paths; what cannot be removed is left."""
    removed = []
    if not _HAS_LOCKS:
        return []
    for entry in os.scandir(parent):
        if entry.name.startswith(PREFIXES) and _removed(Path(entry.path)):
            removed.append(Path(entry.path))
    return removed


def _removed(path: Path) -> bool:
    """Remove one folder if it is this user's and no process has its lock; never follow a link."""
    try:
        handle = _open(path)
    except OSError:
        return False
    try:
        about = os.fstat(handle)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) != 0o700 or not try_lock(handle):
            return False
        shutil.rmtree(path)  # with the lock: its maker sees that the folder is gone, and makes another
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _made(prefix: str) -> tuple[Path, int | None]:
    """Make a folder and lock it; return its path, and the descriptor that has the lock."""
    for _ in range(_ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=prefix))
        if not _HAS_LOCKS:
            return path, None
        try:
            handle = _open(path)
        except FileNotFoundError:
            continue
        try:
            if try_lock(handle) and os.path.samestat(os.fstat(handle), os.lstat(path)):
                return path, handle
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks, on which no process sweeps
            os.close(handle)
            return path, None
        os.close(handle)
    raise OSError(f"{_ATTEMPTS} new folders in {tempfile.gettempdir()} were removed by other processes")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | OPEN_FLAGS)

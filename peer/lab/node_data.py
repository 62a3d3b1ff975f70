"""Data sets on the nodes of a cluster: a node that has the files uses its own; the others get each file once.

Files are compared by name, size and SHA-256. What a node gets lies in its temporary folder (TMPDIR) and serves later runs too.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coordinator_free_bootstrap.errors import StorageError
from coordinator_free_bootstrap.ordinary_file import opened
from peer.store.files import storage_errors, write_atomic
from peer.store.scratch import temporary_folder


@dataclass(frozen=True, order=True)
class DataFile:
    """One file of a data set: its path below the data root, its size in bytes, and its SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataFiles:
    """The files that a run reads.

    Attributes:
        root: the user's data root.
        folder: the folder of the files: the root, or that of the root if it is a file.
        files: sorted by path.
    """

    root: Path
    folder: Path
    files: tuple[DataFile, ...]

    @staticmethod
    def of(root: Path, paths: Iterable[Path]) -> DataFiles:
        """Read and describe files below a data root; the root may be the only one."""
        root = root.resolve()
        folder = root.parent if root.is_file() else root
        files = []
        for path in paths:
            with storage_errors("read", path):
                size, digest = path.stat().st_size, _sha256(path)
            files.append(DataFile(path.resolve().relative_to(folder).as_posix(), size, digest))
        return DataFiles(root, folder, tuple(sorted(files)))

    @property
    def digest(self) -> str:
        """Name of the folder that holds these files on a node."""
        return hashlib.sha256(repr(self.files).encode()).hexdigest()[:16]


def scratch() -> Path:
    """Return the folder of this user on this machine for data sets and unfinished runs; only the user can open it.

    Raises:
        StorageError: it cannot be made, or belongs to another user.
    """
    folder = temporary_folder() / f"coordinator-free-{os.getuid()}"
    with storage_errors("make", folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StorageError(f"{folder}: expected a folder that only this user can open. Remove it, or set TMPDIR.")
    return folder


def root_on_this_node(data: DataFiles, fetch: Callable[[DataFile], bytes] | None) -> tuple[Path, int] | None:
    """Return a data root with the files, and the bytes that were fetched for it; None: the files are needed.

    Args:
        data: the files.
        fetch: returns the content of a file; None: nothing can be fetched.
    """
    if _has_all(data.folder, data.files):
        return data.root, 0
    folder = scratch() / "data" / data.digest
    root = folder / data.root.relative_to(data.folder)
    if _has_all(folder, data.files):
        return root, 0
    if fetch is None:
        return None
    import fcntl  # Windows has none, and no Ray cluster

    with storage_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{data.digest}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of the runs of this node, one fetches
            missing = [file for file in data.files if not _has(folder, file)]
            for file in missing:
                (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
                write_atomic(folder / file.path, fetch(file))
    return root, sum(file.size for file in missing)


def _has_all(folder: Path, files: tuple[DataFile, ...]) -> bool:
    return all(_has(folder, file) for file in files)


def _has(folder: Path, file: DataFile) -> bool:
    path = folder / file.path
    try:
        found = path.stat()
        return found.st_size == file.size and _known_sha256(path, found.st_mtime_ns) == file.sha256
    except OSError:
        return False


@functools.lru_cache(maxsize=4096)
def _known_sha256(path: Path, changed_ns: int) -> str:
    """Return the digest of a file; read once for each time that it was changed."""
    return _sha256(path)


def _sha256(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

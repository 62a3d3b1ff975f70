"""Atomic, durable writes, and operating-system errors as sentences.

A durable write has four steps: write a temporary file, fsync it, rename it, fsync its directory.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap.errors import CheckpointCorrupt, StorageError
from coordinator_free_bootstrap.strict_json import dumps

_REMEDIES = {
    errno.ENOSPC: "The disk is full. Free space or use another folder.",
    errno.EDQUOT: "The disk quota is used up. Free space or use another folder.",
    errno.EFBIG: "The file is larger than the file size limit. Raise it (ulimit -f).",
    errno.EACCES: "This user has no permission. Change the owner or mode, or use another folder.",
    errno.EPERM: "This user has no permission. Change the owner or mode, or use another folder.",
    errno.EROFS: "The file system is read-only. Write to a folder on a writable one.",
    errno.EIO: "The disk reports an input/output error. Check it, or use another folder.",
    errno.ENOTDIR: "Expected a folder, got a file. Remove it, or use another folder.",
    errno.EEXIST: "Expected a folder, got a file. Remove it, or use another folder.",
    errno.ELOOP: "The symbolic links form a loop. Remove them, or use another folder.",
    errno.EISDIR: "Expected a file, got a folder. Remove it, or use another folder.",
    errno.EMFILE: "Too many open files. Raise the limit (ulimit -n).",
}


def storage_error(action: str, path: Path, error: OSError) -> StorageError:
    """Return a `StorageError` whose sentence says what failed, where, and what to do."""
    if error.errno is None:  # of `ordinary_file`, whose sentence says what is allowed
        return StorageError(f"cannot {action} {path}: {error}. Remove it, or use another folder.")
    remedy = _REMEDIES.get(error.errno, "Check that the path exists and can be written.")
    return StorageError(f"cannot {action} {path}: {error.strerror or error}. {remedy}")


@contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Convert an `OSError` of the block to a `StorageError`."""
    try:
        yield
    except OSError as error:
        raise storage_error(action, path, error) from error


def fsync_path(path: Path) -> None:
    """Flush the content of a file, or the entries of a directory, to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no directories; it writes their entries itself
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the content of a file durably; a reader sees the old bytes or the new ones.

    Raises:
        StorageError: the file cannot be written; the old content is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors("write", path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        fsync_path(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically, with null in place of NaN and Infinity; see `write_atomic`."""
    write_atomic(path, (dumps(value, indent=2) + "\n").encode())


_SEAL_HEAD, _SEAL_TAIL = b'{"body":', b',"sha256":"%s"}\n'
_SEAL_TAIL_SIZE = len(_SEAL_TAIL % bytes(64))


def seal(value: Any) -> bytes:
    """Return a JSON object with `value` and its SHA-256; `unseal` detects any changed byte."""
    body = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return _SEAL_HEAD + body + _SEAL_TAIL % hashlib.sha256(body).hexdigest().encode()


def unseal(data: bytes) -> object:
    """Return the value that `seal` wrote; its digest is checked before it is parsed.

    Raises:
        CheckpointCorrupt: the bytes are not the output of `seal`.
    """
    body = data[len(_SEAL_HEAD) : -_SEAL_TAIL_SIZE]
    if data != _SEAL_HEAD + body + _SEAL_TAIL % hashlib.sha256(body).hexdigest().encode():
        raise CheckpointCorrupt(f"its {len(data)} bytes do not match their own SHA-256 digest")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"its content is not JSON: {error}") from error

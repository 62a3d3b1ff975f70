"""Check that a path a user has named is no pipe, socket or device: reading one may wait without end."""

from __future__ import annotations

from pathlib import Path

NO_FILE = "it is a pipe, a socket or a device; allowed: a file"


def ordinary_file(path: Path | str) -> Path:
    """Return a path that can be opened without waiting; a missing one, or a folder, is the caller's to report.

    Raises:
        OSError: it is a pipe, a socket or a device.
    """
    found = Path(path)
    if found.exists() and not (found.is_file() or found.is_dir()):
        raise OSError(0, NO_FILE, str(found))
    return found

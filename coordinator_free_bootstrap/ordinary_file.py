"""Open and read files that a user or another program has put there: ordinary files of a bounded size, and nothing else.

Reading a pipe or a device may wait or fill memory without end. Every fault is an OSError with a sentence, which the caller turns
into its own error.
"""

from __future__ import annotations

import os
import re
import stat
from io import BufferedReader
from pathlib import Path

from coordinator_free_bootstrap.errors import ConfigProblem, Option

NO_FILE = "expected a file, got a pipe, a socket or a device"
TEXT_BYTES_MAX = 64 << 20  # of a text that is parsed whole, where its reader has no limit of its own
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def ordinary_file(path: Path | str, most: int | None = None) -> Path:
    """Return a path that can be opened without waiting; a missing one, or a folder, is the caller's to report.

    For readers that open a path themselves; `opened` has no moment between the check and the use.

    Args:
        path: of the file.
        most: bytes that it may have; None: any number.

    Raises:
        OSError: it is a pipe, a socket or a device, a link to itself, or larger.
    """
    found = Path(path)
    try:
        about = os.stat(found)
    except (FileNotFoundError, NotADirectoryError):
        return found
    except ValueError as error:  # a NUL in the path
        raise OSError(str(error)) from error
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
        raise OSError(NO_FILE)
    if most is not None and about.st_size > most:
        raise OSError(_too_large(most))
    return found


def opened(path: Path | str) -> BufferedReader:
    """Open an ordinary file for reading; never waits.

    Raises:
        OSError: it is missing, unreadable, a folder, a pipe, a socket or a device.
    """
    ordinary_file(path)  # to open some devices has an effect
    handle = os.open(path, os.O_RDONLY | _FLAGS)  # not blocking: a pipe may have taken the place of the file
    try:
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(NO_FILE)
        return os.fdopen(handle, "rb")  # raises IsADirectoryError for a folder
    except BaseException:
        os.close(handle)
        raise


def content_of(path: Path | str, most: int = TEXT_BYTES_MAX) -> bytes:
    """Return the content of an ordinary file of at most ``most`` bytes.

    Raises:
        OSError: as `opened`, or the file is larger.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= most else b""
        while size <= most and len(data) <= most and (more := file.read(1 << 16)):  # it grows, or is in /proc
            data += more
    if size > most or len(data) > most:
        raise OSError(_too_large(most))
    return data


def text_of(path: Path | str, most: int = TEXT_BYTES_MAX) -> str:
    """Return the text of an ordinary file in UTF-8.

    Raises:
        OSError: as `content_of`.
        UnicodeDecodeError: it has other bytes than UTF-8.
    """
    return content_of(path, most).decode()


def unreadable(key: Option | str, error: Exception, fix: str = "", expected: str = "a file") -> ConfigProblem:
    """Return the problem of a file that cannot be read: ``graph.json: expected a file, got none``.

    Args:
        key: the file or the option that names it.
        error: raised by reading it.
        fix: as of `ConfigProblem`.
        expected: as of `ConfigProblem`.
    """
    if own := re.fullmatch(r"expected (.*?), got (.*)", str(error), re.DOTALL):
        return ConfigProblem(key, own[1], own[2], fix)
    kinds: dict[type[Exception], str] = {
        FileNotFoundError: "none",
        NotADirectoryError: "none",
        IsADirectoryError: "a folder",
        PermissionError: "one without permission to read it",
    }
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    return ConfigProblem(key, expected, kinds.get(type(error), f"one that cannot be read ({text})"), fix)


def unwritable(key: Option | str, path: Path | str, error: Exception, fix: str = "Name another path.") -> ConfigProblem:
    """Return the problem of a file or folder that cannot be made or written."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    return ConfigProblem(key, "a path that can be written", f"{path} ({text})", fix)


def _too_large(most: int) -> str:
    return f"expected at most {most} bytes, got more"

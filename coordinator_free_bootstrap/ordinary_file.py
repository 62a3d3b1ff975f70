"""Open and read files that a user or another program has put there: ordinary files of a bounded size, and nothing else.

Reading a pipe or a device may wait or fill memory without end. Every fault is an OSError with a sentence, which the caller turns
into its own error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

NO_FILE = "it is a pipe, a socket or a device; allowed: a file"
TEXT_BYTES_MAX = 64 << 20  # of a text that is parsed whole, where its reader has no limit of its own
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def ordinary_file(path: Path | str) -> Path:
    """Return a path that can be opened without waiting; a missing one, or a folder, is the caller's to report.

    For readers that open a path themselves; `opened` has no moment between the check and the use.

    Raises:
        OSError: it is a pipe, a socket or a device, or a link to itself.
    """
    found = Path(path)
    try:
        mode = os.stat(found).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return found
    except ValueError as error:  # a NUL in the path
        raise OSError(str(error)) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(NO_FILE)
    return found


def opened(path: Path | str) -> BinaryIO:
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
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"found more than {most} bytes; allowed: at most {most}")
    return data


def text_of(path: Path | str, most: int = TEXT_BYTES_MAX) -> str:
    """Return the text of an ordinary file in UTF-8.

    Raises:
        OSError: as `content_of`.
        UnicodeDecodeError: it has other bytes than UTF-8.
    """
    return content_of(path, most).decode()

"""Logs of a peer: text or JSON lines, to stderr and to a file.

Log lines caused by a neighbor have ``extra={"neighbor": id, "message_kind": "push"}``, are rate-limited by kind and shorter. The
formatters escape control, bidirectional and other format characters of every message as the last step, so foreign text cannot
start a new line or reverse one. Private keys are removed.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

from typing_extensions import override

from coordinator_free_bootstrap.ordinary_file import opened, ordinary_file
from coordinator_free_bootstrap.strict_json import dumps, printable
from peer.store.files import storage_errors

LINES_PER_MINUTE_MAX = 20  # per neighbor and message kind; journald allows a whole service 10,000 in 30 s
KEYS_MAX = 1024  # pairs of neighbor and kind; all others share one limit
LINE_CHARACTERS_MAX = 4096  # per message; the rest is cut
# Per message caused by a neighbor: our own words and values, and at most 200 characters of the neighbor's (`printable`).
NEIGHBOR_LINE_CHARACTERS_MAX = 1000
FILE_BYTES_MAX = 16 << 20  # of peer.log, which is then renamed to peer.log.1
_WINDOW_S = 60.0
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


@dataclass
class _Allowance:
    window_start: float
    lines: int = 0
    suppressed: int = 0


class RateLimit(logging.Filter):
    """Pass at most `LINES_PER_MINUTE_MAX` lines per minute of each (neighbor, message kind).

    The next line of the same kind that passes says how many were suppressed, and `pending` says it at the end. Lines
    without ``neighbor`` always pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._allowances: dict[tuple[object, object], _Allowance] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line; append the number of lines suppressed before it."""
        neighbor = getattr(record, "neighbor", None)
        if neighbor is None:
            return True
        if (verdict := getattr(record, "rate_verdict", None)) is not None:  # counted already, by another handler
            return bool(verdict)
        passes = self._take((neighbor, getattr(record, "message_kind", "")), record)
        record.__dict__["rate_verdict"] = passes
        return passes

    def _take(self, key: tuple[object, object], record: logging.LogRecord) -> bool:
        now = self._clock()
        if key not in self._allowances and len(self._allowances) >= KEYS_MAX:
            key = ("others", "")
        allowance = self._allowances.setdefault(key, _Allowance(now))
        if now - allowance.window_start >= _WINDOW_S:
            allowance.window_start, allowance.lines = now, 0
        if allowance.lines >= LINES_PER_MINUTE_MAX:
            allowance.suppressed += 1
            return False
        allowance.lines += 1
        if allowance.suppressed:
            record.msg = f"{record.getMessage()} (and {allowance.suppressed} more of this kind suppressed)"
            record.args = None
            allowance.suppressed = 0
        return True

    def pending(self) -> list[str]:
        """Return a sentence for each kind with suppressed lines, and reset their counts."""
        rows = [(key, a) for key, a in self._allowances.items() if a.suppressed]
        sentences = [f"neighbor {n}: {a.suppressed} more lines of kind {kind} suppressed" for (n, kind), a in rows]
        for _, allowance in rows:
            allowance.suppressed = 0
        return sentences


def last_error(path: Path) -> str:
    """Return the message of the last error in a text log file; empty if there is none or the file cannot be read."""
    try:
        lines = _end_of(path).decode(errors="replace").splitlines()
    except OSError:
        return ""
    found = (line.partition(" ERROR ")[2].strip() for line in reversed(lines) if " ERROR " in line)
    return next(found, "")


def _end_of(path: Path) -> bytes:
    with opened(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - FILE_BYTES_MAX))
        return file.read(FILE_BYTES_MAX)


def clean(text: str, most: int = LINE_CHARACTERS_MAX) -> str:
    """Return text for one log line: private keys removed, unsafe characters escaped, length bounded."""
    return printable(_PRIVATE_KEY.sub("[private key]", text), most)


def message_of(record: logging.LogRecord) -> str:
    """Return the message of a record for one log line."""
    from_neighbor = getattr(record, "neighbor", None) is not None
    return clean(record.getMessage(), NEIGHBOR_LINE_CHARACTERS_MAX if from_neighbor else LINE_CHARACTERS_MAX)


class TextFormatter(logging.Formatter):
    """Lines like ``12:00:00.123 peer 3 WARNING message``; a traceback follows on lines of its own."""

    def __init__(self, peer_id: int) -> None:
        super().__init__()
        self.peer_id = peer_id

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        line = f"{moment} peer {self.peer_id} {record.levelname:<7} {message_of(record)}"
        if record.exc_info:
            rows = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n    {clean(row)}" for row in rows)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time``, ``level``, ``peer_id``, ``logger``, ``message``, and ``neighbor`` if there is one."""

    def __init__(self, peer_id: int) -> None:
        super().__init__()
        self.peer_id = peer_id

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        row: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "peer_id": self.peer_id,
            "logger": record.name,
            "message": message_of(record),
        }
        for name in ("neighbor", "message_kind"):
            if hasattr(record, name):
                value = getattr(record, name)
                row[name] = value if isinstance(value, int) else printable(str(value))
        if record.exc_info:
            row["traceback"] = clean(self.formatException(record.exc_info))
        return dumps(row, default=str)


def setup_logging(
    peer_id: int,
    *,
    level: str = "info",
    style: Literal["text", "json"] = "text",
    file: Path | None = None,
    stderr: bool = True,
) -> RateLimit:
    """Write the log lines of this process to stderr and to a file of bounded size; replaces an earlier setup.

    Args:
        peer_id: written into every line.
        level: debug, info, warning or error; for libraries at least warning.
        style: text or json.
        file: None: no file.
        stderr: whether to write to stderr.

    Returns:
        The rate limit; log its `pending` sentences at the end.

    Raises:
        StorageError: the file cannot be opened.
    """
    limit = RateLimit()
    formatter = JsonFormatter(peer_id) if style == "json" else TextFormatter(peer_id)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)] if stderr else []
    if file is not None:
        with storage_errors("open", file):
            handlers.append(
                RotatingFileHandler(ordinary_file(file), maxBytes=FILE_BYTES_MAX, backupCount=1, encoding="utf-8")
            )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(limit)
        root.addHandler(handler)
    root.setLevel(max(logging.WARNING, _level(level)))
    for name in ("peer", "coordinator_free_bootstrap"):
        logging.getLogger(name).setLevel(_level(level))
    return limit


def _level(name: str) -> int:
    found = logging.getLevelNamesMapping().get(name.upper())
    if found is None:
        raise ValueError(f"log level: expected one of debug, info, warning, error, got {name!r}")
    return found

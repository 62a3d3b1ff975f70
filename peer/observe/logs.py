"""Logs of a peer: text or JSON lines, to stderr and to a file. What a neighbor does can neither flood nor forge them.

A line caused by a neighbor carries ``extra={"neighbor": id, "message_kind": "push"}`` and is limited in rate; text from outside
cannot begin a new line; private keys are never shown.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

from peer.store.files import storage_errors

LINES_PER_MINUTE_MAX = 20  # of one neighbor and message kind; journald allows 10,000 in 30 s, for a whole service
KEYS_MAX = 1024  # neighbors and kinds told apart; all further ones share one allowance
LINE_CHARACTERS_MAX = 4096  # of one message; the rest is cut
FILE_BYTES_MAX = 16 << 20  # of peer.log, then it is renamed to peer.log.1; at most two such files
_WINDOW_S = 60.0
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass
class _Allowance:
    window_start: float
    lines: int = 0
    suppressed: int = 0


class RateLimit(logging.Filter):
    """Let through at most `LINES_PER_MINUTE_MAX` lines a minute of each (neighbor, message kind).

    How many were suppressed is told with the next line of the same kind that passes, and by `pending` at the end. Errors
    of our own (lines without ``neighbor``) always pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._allowances: dict[tuple[object, object], _Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line may be written; append the number of suppressed ones before it."""
        neighbor = getattr(record, "neighbor", None)
        if neighbor is None:
            return True
        if (verdict := getattr(record, "rate_verdict", None)) is not None:  # already counted by the other handler
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
            record.msg = f"{record.getMessage()} (and {allowance.suppressed} more like it not shown)"
            record.args = None
            allowance.suppressed = 0
        return True

    def pending(self) -> list[str]:
        """Return a sentence for each kind of line that was suppressed since the last one shown, and forget them."""
        rows = [(key, a) for key, a in self._allowances.items() if a.suppressed]
        sentences = [f"neighbor {n}: {a.suppressed} more {kind} messages not shown" for (n, kind), a in rows]
        for _, allowance in rows:
            allowance.suppressed = 0
        return sentences


def clean(text: str) -> str:
    """Return text fit for one log line: no private keys, no control characters, not endless."""
    text = _PRIVATE_KEY.sub("[private key]", text)
    if len(text) > LINE_CHARACTERS_MAX:
        text = f"{text[:LINE_CHARACTERS_MAX]}... ({len(text) - LINE_CHARACTERS_MAX} characters cut)"
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class TextFormatter(logging.Formatter):
    """``12:00:00.123 peer 3 WARNING message``, a traceback on the lines below."""

    def __init__(self, peer_id: int) -> None:
        super().__init__()
        self.peer_id = peer_id

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        line = f"{moment} peer {self.peer_id} {record.levelname:<7} {clean(record.getMessage())}"
        if record.exc_info:
            rows = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n    {clean(row)}" for row in rows)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``peer_id``, ``logger``, ``message``, and the neighbor if there is one."""

    def __init__(self, peer_id: int) -> None:
        super().__init__()
        self.peer_id = peer_id

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        row: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "peer_id": self.peer_id,
            "logger": record.name,
            "message": clean(record.getMessage()),
        }
        for name in ("neighbor", "message_kind"):
            if hasattr(record, name):
                row[name] = getattr(record, name)
        if record.exc_info:
            row["traceback"] = clean(self.formatException(record.exc_info))
        return json.dumps(row, default=str)


def setup_logging(
    peer_id: int,
    *,
    level: str = "info",
    style: Literal["text", "json"] = "text",
    file: Path | None = None,
    stderr: bool = True,
) -> RateLimit:
    """Send this process' log lines to stderr and, if given, to a file of bounded size; replaces any earlier setup.

    Args:
        peer_id: stands in every line.
        level: debug, info, warning or error. Libraries' own lines are shown from warning on.
        style: text for people, json for machines.
        file: usually ``StateDir.log``.
        stderr: whether to write there too.

    Returns:
        The rate limit; log its `pending` sentences before the process ends.

    Raises:
        StorageError: the file cannot be opened.
    """
    limit = RateLimit()
    formatter = JsonFormatter(peer_id) if style == "json" else TextFormatter(peer_id)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)] if stderr else []
    if file is not None:
        with storage_errors("open", file):
            handlers.append(RotatingFileHandler(file, maxBytes=FILE_BYTES_MAX, backupCount=1, encoding="utf-8"))
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
        raise ValueError(f"log level {name!r}; allowed: debug, info, warning, error")
    return found

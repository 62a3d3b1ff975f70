"""Limits on the log and history lines that a neighbor can cause: everything is counted, a few lines a minute are written."""

from __future__ import annotations

from collections import Counter

LINES_PER_MINUTE_MAX = 6  # of one sender and kind: at most a gigabyte of history a year
CHANGES_PER_MINUTE_MAX = 60  # of a neighbor's state: an unstable link causes a few, a hostile neighbor any number
SENDERS_MAX = 1024  # distinguished within a minute; in plaintext a caller can claim any id
_WINDOW_S = 60.0


class LineLimits:
    """Decides which refusals and changes of state are written as a line."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._lines: Counter[tuple[int | None, str]] = Counter()

    def take(self, now: float, sender: int | None, kind: str, most: int = LINES_PER_MINUTE_MAX) -> bool:
        """Return whether one more line of this kind about this sender may be written in the present minute."""
        if now - self._began >= _WINDOW_S:
            self._began = now
            self._lines.clear()
        key = (sender, kind)
        if key not in self._lines and len(self._lines) >= SENDERS_MAX:
            key = (None, "others")
        self._lines[key] += 1
        return self._lines[key] <= most

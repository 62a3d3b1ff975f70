"""How many lines of log and history a neighbor can cause: what it does is counted without end, but told a few times a minute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

LINES_PER_MINUTE_MAX = (
    6  # of one sender and refusal: enough to see what goes on, a gigabyte of history a year at the most
)
CHANGES_PER_MINUTE_MAX = 60  # of its state: a link that flickers makes a few, one that flickers on purpose any number
SENDERS_MAX = 1024  # told apart within a minute; in plaintext anyone can claim any id
_WINDOW_S = 60.0


class NeighborLines:
    """Says which refusals and changes of state are worth a line. Counting them all is the engine's.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._lines: Counter[tuple[int | None, str]] = Counter()

    def take(self, sender: int | None, kind: str, most: int = LINES_PER_MINUTE_MAX) -> bool:
        """Return whether one more line of this kind may be written about this sender within the minute."""
        now = self._clock()
        if now - self._began >= _WINDOW_S:
            self._began = now
            self._lines.clear()
        key = (sender, str(kind))
        if key not in self._lines and len(self._lines) >= SENDERS_MAX:
            key = (None, "others")
        self._lines[key] += 1
        return self._lines[key] <= most

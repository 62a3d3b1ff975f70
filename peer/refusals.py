"""How many refusals are logged and recorded: a hostile neighbor's are counted without end, but told a few times a minute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from coordinator_free_bootstrap.errors import Refusal

LINES_PER_MINUTE_MAX = 6  # of one sender and code: enough to see what goes on, 100 MB of history a year at the most
SENDERS_MAX = 1024  # told apart within a minute; in plaintext anyone can claim any id
_WINDOW_S = 60.0


class RefusalLines:
    """Says which refusals are worth a line. Counting them all is the engine's.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._lines: Counter[tuple[int | None, str]] = Counter()

    def take(self, sender: int | None, code: Refusal) -> bool:
        """Return whether this refusal may be logged and recorded."""
        now = self._clock()
        if now - self._began >= _WINDOW_S:
            self._began = now
            self._lines.clear()
        key = (sender, str(code))
        if key not in self._lines and len(self._lines) >= SENDERS_MAX:
            key = (None, "others")
        self._lines[key] += 1
        return self._lines[key] <= LINES_PER_MINUTE_MAX

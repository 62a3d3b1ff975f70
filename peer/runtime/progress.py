"""A log line every `EVERY_S` seconds of a long training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("peer")
EVERY_S = 60.0


class TrainingProgress:
    """Counts the optimizer steps of one training, and logs them every `EVERY_S` seconds.

    Args:
        rounds: T, for the log line.
        clock: returns seconds, monotonic.
    """

    def __init__(self, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rounds = rounds
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start the count and the clock of one training."""
        self._began = self._said = self._clock()
        self._steps = 0

    def resumed(self, steps: int) -> None:
        """Count steps that were done before a restart."""
        self._steps += steps

    def step(self, round_index: int) -> None:
        """Count a step that is about to begin."""
        now = self._clock()
        if now - self._said >= EVERY_S:
            self._said = now
            done = "training in round %d of %d: %d steps in %.0f s"
            log.info(done, round_index + 1, self._rounds, self._steps, now - self._began)
        self._steps += 1

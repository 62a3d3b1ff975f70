"""How long the rounds of a peer last, measured over the last ones. Pure."""

from __future__ import annotations

from collections import deque


class RoundRate:
    """The durations of recent rounds, seconds, except the first of an incarnation, in which everything warms up.

    Args:
        window: how many rounds count.
        durations: those of earlier incarnations; changed from now on.

    Attributes:
        first_s: the duration of the first round, 0 before it.
    """

    def __init__(self, window: int, durations: deque[float] | None = None) -> None:
        self._warm = False
        self.first_s = 0.0
        self._durations: deque[float] = deque(maxlen=window) if durations is None else durations

    def add(self, seconds: float) -> None:
        """Add a round that closed with most neighbors present."""
        if self._warm:
            self._durations.append(seconds)
        else:
            self._warm, self.first_s = True, seconds

    def duration_min_s(self) -> float:
        """Return the least duration of a round apart from the others: the upper quartile, 0 before the first round.

        Rather too long than too short: a peer that returns behind the others skips rounds alone; one ahead makes them skip.
        Yet one long round of two, or two of eight, do not count: a neighbor may have waited for a neighbor of its own.
        """
        durations = sorted(self._durations)
        return durations[3 * (len(durations) - 1) // 4] if durations else 0.0

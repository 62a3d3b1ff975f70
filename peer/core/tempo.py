"""How long rounds take beside the others: who is cut off keeps to that, and so does not run ahead of them. Pure.

Nobody waits in a round of one, and rounds of few are short. Without a tempo a peer that lost its neighbors for ten seconds can be
fifty rounds ahead when they are back, and all others would skip those rounds to catch up with it. Rounds in which a neighbor died
are no measure: they last as long as a suspicion, and two dead of four neighbors would slow everybody down to that.
"""

from __future__ import annotations

from collections import deque

ROUNDS = 8  # remembered


class Tempo:
    """The lengths of the last rounds in company, seconds; but for the first of a life, in which everything warms up."""

    def __init__(self) -> None:
        self._warm = False
        self._rounds: deque[float] = deque(maxlen=ROUNDS)

    def add(self, seconds: float) -> None:
        """Remember a round that ended in company."""
        if self._warm:
            self._rounds.append(seconds)
        self._warm = True

    def least_s(self) -> float:
        """Return how long a round apart from the others lasts at least: the upper quartile, 0 before the first.

        Rather too long than too short: who comes back behind the others skips rounds alone, who comes back ahead
        makes them skip.
        """
        rounds = sorted(self._rounds)
        return rounds[3 * len(rounds) // 4] if rounds else 0.0

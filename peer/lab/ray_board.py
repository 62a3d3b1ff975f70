"""Where tasks write their rounds: an actor on the cluster's head, which the driver reads. It imports nothing heavy."""

from __future__ import annotations

from typing import NamedTuple


class Rounds(NamedTuple):
    """The rounds of one start of a run, and the mean of its metric."""

    start: int
    completed: int
    metric: float | None


class Board:
    """The rounds of all runs, by label."""

    def __init__(self) -> None:
        self._rounds: dict[str, Rounds] = {}

    def set(self, label: str, rounds: Rounds) -> None:
        """Replace the rounds of a run."""
        self._rounds[label] = rounds

    def read(self) -> dict[str, Rounds]:
        """Return what was set since the last call."""
        found, self._rounds = self._rounds, {}
        return found

"""Progress of several runs by rounds: a bar with the time left on a terminal, lines that become rare in a pipe."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from peer.view.live.watch import LinePace
from peer.view.state.durations import duration


class RoundsBar:
    """A bar over the rounds of all runs.

    Args:
        console: where it is shown.
        total: rounds of all runs.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        left = (TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False))
        self._progress = Progress(*columns, *left, console=console, disable=not console.is_terminal)
        self._bar = self._progress.add_task("rounds", total=total, start=False)
        self._pace, self._began = LinePace(), time.monotonic()

    def update(self, completed: int, text: str) -> None:
        """Show ``completed`` rounds of all runs, and what runs now."""
        self._progress.update(self._bar, completed=completed, description=text)
        now = time.monotonic()
        if completed and not self._console.is_terminal and self._pace.due(now):
            left_s = (now - self._began) / completed * (self._total - completed)
            self._console.print(f"{text}: {completed} of {self._total} rounds, {duration(left_s)} left", soft_wrap=True)

    def __enter__(self) -> RoundsBar:
        self._progress.start()
        self._progress.start_task(self._bar)
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

"""A progress bar of rounds, in a notebook or on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from typing_extensions import override

_WIDTH = 30  # characters of the bar in a notebook


class Progress:
    """Shows how many rounds are completed, and the mean metric; on a stream that is not a terminal only the end.

    Args:
        label: what is counted.
        total: their number.
        shown: false shows nothing.
    """

    def __init__(self, label: str, total: int, *, shown: bool = True) -> None:
        self._label, self._total = label, total
        self._bar: Any = None
        self._task: Any = None
        self._cell: Any = None
        if not shown:
            return
        if in_notebook():
            from IPython.display import display

            self._cell = display(_NotebookText(self._line(0, None)), display_id=True)
        else:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            console = Console(stderr=True, highlight=False, markup=False, force_jupyter=False)
            self._bar = Bar(*columns, TimeElapsedColumn(), console=console)
            self._task = self._bar.add_task(label, total=total)

    def update(self, completed: int, metric: float | None) -> None:
        """Show a new number of rounds, and the mean metric if it is known."""
        if self._cell is not None:
            self._cell.update(_NotebookText(self._line(completed, metric)))
        elif self._bar is not None:
            shown = self._label if metric is None else f"{self._label} {metric:.4g}"
            self._bar.update(self._task, completed=completed, description=shown)

    def say(self, line: str) -> None:
        """Show a line above the bar."""
        if self._cell is not None:
            from IPython.display import display

            display(_NotebookText(line))
        elif self._bar is not None:
            self._bar.console.print(line, soft_wrap=True)

    def _line(self, completed: int, metric: float | None) -> str:
        filled = _WIDTH * completed // max(1, self._total)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        return f"{self._label} {bar} {completed}/{self._total}" + ("" if metric is None else f"  {metric:.4g}")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class _NotebookText:
    """A line of text that a notebook shows as it is."""

    def __init__(self, line: str) -> None:
        self._line = line

    @override
    def __repr__(self) -> str:
        return self._line


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"

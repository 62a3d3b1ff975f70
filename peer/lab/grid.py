"""An experiment with settings as tables that a person can read: a row for each case, a column for each setting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peer.core.metric import Metric
from peer.lab.comparison import equal_to_the_best, half_width

Result = dict[str, Any]
BEST, EQUAL = "**", "*"


@dataclass(frozen=True)
class Sheet:
    """One table: a title, and its cells with the header first."""

    title: str
    cells: list[tuple[str, ...]]


@dataclass(frozen=True)
class Cell:
    """One case in one setting: its results over seeds, and those of the best case of the setting."""

    results: Sequence[Result]
    best: Sequence[Result]

    def values(self, key: str) -> list[float]:
        """Return the numbers of a key; a result without it has none."""
        return [float(result[key]) for result in self.results if result.get(key) is not None]

    def mean(self, key: str) -> float | None:
        """Return the mean of a key over the seeds."""
        values = self.values(key)
        return statistics.fmean(values) if values else None

    @property
    def mark(self) -> str:
        """`BEST`, `EQUAL` where the interval of the difference to the best includes 0, or nothing."""
        if not self.best:
            return ""
        return BEST if self.results == self.best else EQUAL if equal_to_the_best(self.results, self.best) else ""


Grid = dict[str, dict[str, Cell]]  # by case, then by setting


def sheets(
    title: str, rows: Sequence[Sequence[Result]], best: Sequence[Sequence[Result]], metric: Metric
) -> list[Sheet]:
    """Return three tables: the measured values; the worst peer and the worst tenth; and what a case costs in all settings.

    Args:
        title: of the experiment.
        rows: results over seeds of each case in each setting; every result has "setting".
        best: for each row the results of the best case in its setting.
        metric: of all results.
    """
    grid: Grid = {}
    for results, best_results in zip(rows, best, strict=True):
        placed = results[0]["setting"]
        grid.setdefault(placed["case"], {})[placed["setting"]] = Cell(results, best_results)
    settings = list(dict.fromkeys(setting for cells in grid.values() for setting in cells))
    return [
        Sheet(
            f"{title}: {metric.column}; {BEST} best, {EQUAL} not separated from it",
            _table(grid, settings, metric, _measured),
        ),
        Sheet(
            f"{title}: worst peer / worst tenth of the peers, {metric.column}", _table(grid, settings, metric, _worst)
        ),
        Sheet(f"{title}: over all settings", _costs(grid, settings, metric)),
    ]


def _table(grid: Grid, settings: list[str], metric: Metric, text: Any) -> list[tuple[str, ...]]:
    rows = [
        (case, *(text(cells[setting], metric) if setting in cells else "" for setting in settings))
        for case, cells in grid.items()
    ]
    return [("case", *settings), *rows]


def _measured(cell: Cell, metric: Metric) -> str:
    mark = f" {cell.mark}" if cell.mark else ""
    return with_spread(cell.mean("measured"), half_width(cell.values("measured")), metric) + mark


def _worst(cell: Cell, metric: Metric) -> str:
    found = [cell.mean("accuracy_worst"), cell.mean("accuracy_p10")]
    return " / ".join(metric.scaled_text(None if value is None else metric.factor * value) for value in found)


def _costs(grid: Grid, settings: list[str], metric: Metric) -> list[tuple[str, ...]]:
    """Return one row for each case: means over its settings, and in how many of them it is best or not separated from it."""
    header = (
        "case",
        f"mean, {metric.column}",
        "best or equal",
        "MB sent a peer",
        "CPU seconds a run",
        "MB of models held",
    )
    rows = []
    for case, cells in grid.items():
        found = list(cells.values())
        sent = [1e-6 * result["payload_bytes_sent"] / result["peers"] for cell in found for result in cell.results]
        means = [value for cell in found if (value := cell.mean("measured")) is not None]
        rows.append(
            (
                case,
                metric.scaled_text(statistics.fmean(means)) if len(means) == len(settings) else "",
                f"{sum(bool(cell.mark) for cell in found)} of {len(found)}",
                shown(statistics.fmean(sent), 2),
                shown(_mean_of("cpu_seconds", found)),
                shown(_mean_of("held_bytes", found, 1e-6), 2),
                "/".join(sorted({str(len(cell.results)) for cell in found})),
            )
        )
    return [(*header, "seeds"), *rows]


def _mean_of(key: str, cells: Sequence[Cell], factor: float = 1.0) -> float | None:
    values = [value for cell in cells for value in cell.values(key)]
    return factor * statistics.fmean(values) if values else None


def shown(value: float | None, digits: int = 1) -> str:
    """Return a number as text; nothing for None."""
    return "" if value is None else f"{value:.{digits}f}"


def with_spread(value: float | None, spread: float | None, metric: Metric) -> str:
    """Return a value and half of its interval as text."""
    text = metric.scaled_text(value)
    return text if not text or spread is None else f"{text} ± {metric.scaled_text(spread, 2)}"

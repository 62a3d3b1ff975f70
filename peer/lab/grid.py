"""An experiment with settings as tables that a person can read: a row for each case, a column for each setting."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from peer.core.metric import Metric
from peer.lab.cells import Cells, clusters_right, filled, shown, to_best, with_spread
from peer.lab.table import BEST, NOT_SEPARATED, CaseRow, ResultTable, Total, mean_of

MARKS = {BEST: "**", NOT_SEPARATED: "*"}
Grid = dict[str, dict[str, CaseRow]]  # by case, then by setting


def sheets(table: ResultTable) -> list[tuple[str, Cells]]:
    """Return the measured values, the worst peers, the learned clusters, and what a case reached and cost in all settings."""
    grid: Grid = {}
    for row in table.rows:
        grid.setdefault(row.case, {})[row.setting or ""] = row
    title, column = table.title, table.metric.column
    worst = "worst peer / worst tenth" if any(row.worst is not None for row in table.rows) else "worst tenth"
    found = [
        (
            f"{title}: {column}; {MARKS[BEST]} best, {MARKS[NOT_SEPARATED]} not separated from it",
            _cells(grid, table, _measured),
        ),
        (f"{title}: {worst} of the peers, {column}", _cells(grid, table, _worst)),
        (f"{title}: runs in which every peer ended in its true cluster", _cells(grid, table, clusters_right)),
    ]
    known = [(title, cells) for title, cells in found if any(any(row[1:]) for row in cells[1:])]
    return [*known, *([(f"{title}: over all settings", _totals(grid, table))] if table.totals else [])]


def _cells(grid: Grid, table: ResultTable, text: Callable[[CaseRow, Metric], str]) -> Cells:
    settings = list(dict.fromkeys(row.setting or "" for row in table.rows))
    rows = [
        (case, *(text(cells[setting], table.metric) if setting in cells else "" for setting in settings))
        for case, cells in grid.items()
    ]
    return [("case", *settings), *rows]


def _measured(row: CaseRow, metric: Metric) -> str:
    return f"{with_spread(row.measured, metric)} {MARKS.get(row.mark, '')}".strip()


def _worst(row: CaseRow, metric: Metric) -> str:
    return " / ".join(with_spread(value, metric) for value in (row.worst, row.worst_tenth) if value is not None)


def _totals(grid: Grid, table: ResultTable) -> Cells:
    """Return one row for each case: its mean, its regret, and what it costs."""
    header = (
        "case",
        f"mean, {table.metric.column}",
        "mean to the best",
        "mean regret",
        "largest regret",
        "MB sent a peer",
        "CPU seconds a run",
        "MB of models held",
        "seeds",
    )
    return filled(header, [_total(total, _regrets(grid, total.case, table), table.metric) for total in table.totals])


def _total(total: Total, regrets: list[float], metric: Metric) -> list[str]:
    return [
        total.case,
        metric.scaled_text(total.mean),
        to_best(total, metric),
        metric.scaled_text(statistics.fmean(regrets) if regrets else None),
        metric.scaled_text(max(regrets, default=None)),
        shown(total.megabytes_sent, 2),
        shown(total.cpu_seconds),
        shown(total.held_megabytes, 2),
        "/".join(map(str, total.seeds)),
    ]


def _regrets(grid: Grid, case: str, table: ResultTable) -> list[float]:
    """Return how far a case is from the best case of each setting; nothing for a case that was not run in all of them."""
    best: dict[str, float] = {}
    better = max if table.metric.higher_is_better else min
    for cells in grid.values():
        for setting, row in cells.items():
            if (value := mean_of(row.measured)) is not None:
                best[setting] = better(best.get(setting, value), value)
    own = {setting: mean_of(row.measured) for setting, row in grid[case].items()}
    found = [abs(best[setting] - value) for setting, value in own.items() if value is not None]
    return found if len(found) == len(best) else []

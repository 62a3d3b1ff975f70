"""The assignment problem: for each row one column, no column twice, of the smallest total cost. Pure.

Source: David F. Crouse, "On implementing 2D rectangular assignment algorithms", 2016 (shortest augmenting paths). Where several
assignments have the smallest total, the choice is that of ``scipy.optimize.linear_sum_assignment``, which follows the same paper:
its results and those of this module can be compared, and scipy is no package of a bare installation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]  # [rows, columns]
Assignment = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
FREE = -1  # a row without a column, or a column without a row


def assignment(costs: npt.NDArray[Any]) -> Assignment:
    """Return the rows, ascending, and the column of each, int64 [min(rows, columns)]; a free row is left out.

    Args:
        costs: finite, [rows, columns]. For the largest total give ``-gains``.

    Raises:
        ValueError: a cost is not finite.
    """
    table = np.asarray(costs, np.float64)
    if not np.isfinite(table).all():
        raise ValueError("assignment: expected finite costs")
    if table.shape[0] > table.shape[1]:
        columns = _columns(table.T)
        order = np.argsort(columns)
        return columns[order], order
    return np.arange(len(table)), _columns(table)


def _columns(costs: Costs) -> npt.NDArray[np.int64]:
    """Return the column of each row; there are at least as many columns as rows."""
    rows, columns = costs.shape
    prices = np.zeros(rows), np.zeros(columns)  # dual variables
    column_of, row_of = np.full(rows, FREE), np.full(columns, FREE)
    for row in range(rows):
        _add(row, costs, prices, column_of, row_of)
    return column_of


def _add(row: int, costs: Costs, prices: tuple[Any, Any], column_of: Any, row_of: Any) -> None:
    """Give one more row a column: along the shortest path to a free one, each row on it takes the next column."""
    row_prices, column_prices = prices
    lengths = np.full(len(row_of), np.inf)  # of the shortest known path to each column
    before = np.full(len(row_of), FREE)  # the row before each column on that path
    open_columns = list(range(len(row_of) - 1, -1, -1))  # descending, so that the diagonal wins among equal costs
    rows, closed, length, at = [row], [], 0.0, row
    while True:
        lowest, chosen = np.inf, 0
        for index, column in enumerate(open_columns):
            through = length + costs[at, column] - row_prices[at] - column_prices[column]
            if through < lengths[column]:
                before[column], lengths[column] = at, through
            if lengths[column] < lowest or (lengths[column] == lowest and row_of[column] == FREE):
                lowest, chosen = lengths[column], index
        length, column = lowest, open_columns[chosen]
        closed.append(column)
        open_columns[chosen] = open_columns[-1]
        open_columns.pop()
        if row_of[column] == FREE:
            break
        at = int(row_of[column])
        rows.append(at)
    row_prices[row] += length
    for other in rows[1:]:
        row_prices[other] += length - lengths[column_of[other]]
    for passed in closed:
        column_prices[passed] -= length - lengths[passed]
    while True:
        at = int(before[column])
        row_of[column] = at
        column_of[at], column = column, column_of[at]
        if at == row:
            return

"""Numbers as text, with "." or "," as decimal mark, and with or without marks between thousands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from coordinator_free_bootstrap.errors import TaskError

MARKS = (".", ",")
_BETWEEN = {".": ",", ",": "."}  # thousands, by decimal mark; spaces and apostrophes stand there with both
_PLAIN = {
    mark: re.compile(rf"[-+]?(\d+{re.escape(mark)}?\d*|{re.escape(mark)}\d+)([eE][-+]?\d+)?", re.A) for mark in MARKS
}
_GROUPED = {
    mark: re.compile(
        rf"[-+]?[1-9]\d{{0,2}}([{re.escape(between)} '\u00a0\u202f])\d{{3}}(\1\d{{3}})*({re.escape(mark)}\d+)?", re.A
    )
    for mark, between in _BETWEEN.items()
}


def is_numeral(cell: str) -> bool:
    """Return whether a cell is a number with one of the two decimal marks."""
    return any(_fits(cell, mark) for mark in MARKS)


def number(cell: str, decimal: str) -> float | None:
    """Return the number that a cell has, or None.

    >>> number("1.234,5", ","), number("1.5", ","), number("1e3", ".")
    (1234.5, None, 1000.0)
    """
    if _PLAIN[decimal].fullmatch(cell):
        return float(cell.replace(decimal, "."))
    if _GROUPED[decimal].fullmatch(cell):
        return float(re.sub(rf"[{re.escape(_BETWEEN[decimal])} '\u00a0\u202f]", "", cell).replace(decimal, "."))
    return None


def decimal_mark(columns: Sequence[Sequence[str]], place: Callable[[int], str], otherwise: str = ".") -> str:
    """Return the decimal mark of a table.

    ``1.5`` and ``1,5`` say which it is. ``1,234`` may be either; then other cells decide, and without any ``otherwise`` does.

    Args:
        columns: their cells; only those count of which most are numbers.
        place: from the number of a row to its file and line, for messages.
        otherwise: the mark where no cell decides.

    Raises:
        TaskError: there are cells of both, or none of them says whether "1,234" has a thousand or a fraction.
    """
    if otherwise == "." and not any("," in cell or cell.count(".") > 1 for cells in columns for cell in cells):
        return "."  # the common case, ten times as fast
    certain: dict[str, tuple[int, str]] = {}  # by mark, the first cell that has no other
    thousands: set[str] = set()  # marks with which a cell has certain marks between thousands
    unclear: dict[str, tuple[int, str]] = {}  # by the mark in it, the first cell that may be read with both
    for cells in columns:
        if 2 * sum(map(is_numeral, cells)) < len(cells) - cells.count(""):
            continue
        for row, cell in enumerate(cells):
            fitting = [mark for mark in MARKS if _fits(cell, mark)]
            if len(fitting) == 1:
                certain.setdefault(fitting[0], (row, cell))
                if _BETWEEN[fitting[0]] in cell:
                    thousands.add(fitting[0])
            elif fitting and (mark_used := next((mark for mark in MARKS if mark in cell), None)) is not None:
                unclear.setdefault(mark_used, (row, cell))
    if len(certain) == len(MARKS):
        (row, point), (other, comma) = certain["."], certain[","]
        raise TaskError(
            f"{place(row)}: expected one decimal mark in all of a table, got {point!r}, and {comma!r} in "
            f"{place(other)}. Write all numbers alike."
        )
    mark = next(iter(certain), otherwise)
    doubtful = unclear.get(_BETWEEN[mark])
    if doubtful is not None and mark not in thousands:
        row, cell = doubtful
        raise TaskError(
            f"{place(row)}: expected a number, got {cell!r}, which may have a thousand or a fraction. Name the decimal mark, "
            "task_options.decimal='.' or ','."
        )
    return mark


def _fits(cell: str, mark: str) -> bool:
    return bool(_PLAIN[mark].fullmatch(cell) or _GROUPED[mark].fullmatch(cell))

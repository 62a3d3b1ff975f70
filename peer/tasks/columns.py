"""From the cells of a table's columns to numbers: numbers, dates, and texts as one column of 0 and 1 for each."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.validation import counted
from peer.tasks.table import MISSING, Form, Table

NUMBER, DATE = "number", "date"
Kind = str | tuple[str, ...]  # NUMBER, DATE, or the texts of the column
TEXTS_MAX = 50  # different ones in a column; more seem to be names or remarks
SHOWN = 8  # columns, texts or lines in a message
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[-+]\d\d:?\d\d)?)?", re.A)
_TIME_LIKE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}.*|\d{4}[./]\d{1,2}[./]\d{1,2}.*|\d{1,2}:\d\d(:\d\d.*)?", re.A)
_NUMBER_LIKE = re.compile(r"[<>≤≥~≈±$€£]=? *\d.*|[-+]?[\d.,' ]*\d *[%‰°$€£]", re.A)
_EPOCH, _DAY = datetime(1970, 1, 1, tzinfo=UTC), 86_400.0


@dataclass(frozen=True)
class Columns:
    """The raw columns that are read, in order, each with its kind; and the form of their table.

    >>> columns = Columns((("age", NUMBER), ("ward", ("heart", "lung"))), Form())
    >>> columns.names
    ('age', 'ward=heart', 'ward=lung')
    """

    kinds: tuple[tuple[str, Kind], ...]
    form: Form

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs: of a column of text one for each of its texts."""
        return tuple(
            name
            for column, kind in self.kinds
            for name in ([column] if isinstance(kind, str) else [f"{column}={text}" for text in kind])
        )

    @override
    def __str__(self) -> str:
        """Return form and kinds as text."""
        numbers, dates = ([name for name, kind in self.kinds if kind == wanted] for wanted in (NUMBER, DATE))
        texts = [f"{name} ({some(kind)})" for name, kind in self.kinds if not isinstance(kind, str)]
        parts = [(numbers, "numbers"), (dates, "dates, in days since 1970-01-01"), (texts, "text, one input for each")]
        return "; ".join([str(self.form), *(f"{what}: {some(names)}" for names, what in parts if names)])

    def encode(self, table: Table) -> NDArray[np.float64]:
        """Return the inputs of all rows, float64 [rows, inputs]; columns are selected by name, or by position without a header.

        Raises:
            TaskError: a column or a value is missing, or a cell is not of the column's kind.
        """
        columns: list[NDArray[np.float64]] = []
        for name, kind, index in self._found(table):
            cells = table.column(index)
            if kind in (NUMBER, DATE):
                values = np.array(table.numbers(index) if kind == NUMBER else list(map(_days, cells)), np.float64)
                columns.append(values)
                wrong = ~np.isfinite(values)
            else:
                columns += [np.array([cell == text for cell in cells], np.float64) for text in kind]
                wrong = np.sum(columns[-len(kind) :], axis=0) != 1
            if wrong.any():
                row = int(np.argmax(wrong))
                raise TaskError(
                    f"{table.place(row)}, {name}: expected {_allowed(kind)}, got {cells[row]!r}. Correct the row."
                )
        return np.array(columns, np.float64).reshape(-1, len(table.rows)).T

    def _found(self, table: Table) -> list[tuple[str, Kind, int]]:
        """Return name, kind and index of each column; without a header a table may have these columns only."""
        names = [name for name, _ in self.kinds]
        missing = [name for name in names if table.header.count(name) != 1]
        if not missing:
            return [(name, kind, table.header.index(name)) for name, kind in self.kinds]
        if not table.form.header and len(table.header) == len(names):
            return [(name, kind, index) for index, (name, kind) in enumerate(self.kinds)]
        if not table.form.header:
            raise TaskError(
                f"{table.place(0)}: expected {counted(len(names), 'cell')} ({some(names)}), got {len(table.header)}"
            )
        raise TaskError(
            f"{table.source}: expected one of each column that the model reads: {some(names)}, got "
            f"{counted(table.header.count(missing[0]), 'column')} named {missing[0]!r} in the header. Rename the "
            "columns, or give rows without a header."
        )

    def to_json(self) -> dict[str, object]:
        """Return JSON values, which `from_json` reads."""
        return {"form": asdict(self.form), "kinds": [[name, kind] for name, kind in self.kinds]}

    @classmethod
    def from_json(cls, value: Any) -> Columns:
        """Read the result of `to_json`.

        Raises:
            ValueError: it is another value.
        """
        try:
            kinds = tuple((name, kind if isinstance(kind, str) else tuple(kind)) for name, kind in value["kinds"])
            if not all(
                isinstance(t, str)
                for name, kind in kinds
                for t in (name, *([kind] if kind in (NUMBER, DATE) else kind))
            ):
                raise ValueError("another kind")
            return cls(kinds, Form(**value["form"]))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"table: {error}") from error


def columns_of(table: Table, names: Sequence[str], texts: Mapping[str, Sequence[str]]) -> Columns:
    """Return the kinds of the columns ``names``, as their cells are; those in ``texts`` have the texts given there.

    Raises:
        TaskError: a column has no values, or cells of several kinds, or texts that are names, dates or numbers with signs.
    """
    kinds = []
    for name in names:
        kinds.append((name, tuple(texts[name]) if name in texts else _kind(table, name)))
    return Columns(tuple(kinds), table.form)


def _kind(table: Table, name: str) -> Kind:
    """Return the kind of a column."""
    index = table.header.index(name)
    numbers = table.numbers(index)
    present = [(row, cell) for row, cell in enumerate(table.column(index)) if cell not in MISSING]
    leave_out = f"or leave the column out: task_options.ignore=[{name!r}]"
    if not present:
        raise TaskError(f"{table.source}, {name}: expected values, got none. Fill the column, {leave_out}.")
    others = [(row, cell) for row, cell in present if numbers[row] is None]
    if not others:
        return NUMBER
    if 2 * len(others) <= len(present):
        row, cell = others[0]
        raise TaskError(
            f"{table.place(row)}, {name}: expected a finite number, got {cell!r} ({counted(len(others), 'cell')} of "
            f"{len(present)} are no numbers). Correct them, {leave_out}"
        )
    if all(_ISO_DATE.fullmatch(cell) for _, cell in present):
        return DATE
    for row, cell in present:
        if _TIME_LIKE.fullmatch(cell) or _ISO_DATE.fullmatch(cell):
            raise TaskError(
                f"{table.place(row)}, {name}: expected dates as 2024-03-31 or 2024-03-31T23:59, got {cell!r}, which "
                f"seems to be a date or a time. Write all of them so, or as numbers, {leave_out}"
            )
        if _NUMBER_LIKE.fullmatch(cell):
            raise TaskError(
                f"{table.place(row)}, {name}: expected a number, or a text, got {cell!r}, a number with a sign. Write "
                f"the number alone, or give all texts of the column in task_options.categories, {leave_out}"
            )
    distinct = sorted({cell for _, cell in present})
    if len(distinct) > TEXTS_MAX or len(distinct) == len(present) > SHOWN:
        raise TaskError(
            f"{table.source}, {name}: expected at most {TEXTS_MAX} different texts that repeat, got {len(distinct)} in "
            f"{len(present)} rows: {some(distinct)}. Give them in task_options.categories, {leave_out}"
        )
    refuse_look_alikes(f"{table.source}, {name}", distinct)
    return tuple(distinct)


def refuse_look_alikes(source: str, names: Collection[str]) -> None:
    """Refuse texts that differ in case, spaces or forms of one character only, which are hardly meant to be two.

    Raises:
        TaskError: there are such; both are named.
    """
    seen: dict[str, str] = {}
    for name in names:
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        if (other := seen.setdefault(plain, name)) != name:
            raise TaskError(
                f"{source}: expected different texts, got {other!r} and {name!r}, which look alike. Write both the same way, "
                "or list both in task_options.classes or categories."
            )


def some(names: Sequence[str], most: int = SHOWN) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _allowed(kind: Kind) -> str:
    if kind == NUMBER:
        return "a finite number"
    return "a date, such as 2024-03-31" if kind == DATE else f"one of {some(kind)}"


def _days(cell: str) -> float:
    """Return the days since 1970-01-01 of an ISO date, without a time zone of UTC; NaN for another text."""
    try:
        moment = datetime.fromisoformat(cell) if _ISO_DATE.fullmatch(cell) else None
    except ValueError:
        moment = None
    if moment is None:
        return math.nan
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds() / _DAY

"""Read the text of a table: encoding, delimiter, header and decimal mark are detected, or given by options.

The module `csv` parses the text. pandas reads Parquet files, the only kind that needs it.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.extras import require
from coordinator_free_bootstrap.ordinary_file import content_of, unreadable
from coordinator_free_bootstrap.validation import counted
from peer.tasks.numerals import decimal_mark, is_numeral, number

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")  # of the tables in a folder
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
TYPED = {"parquet": "Parquet", "pandas": "a frame of pandas"}  # tables that are no text, in place of an encoding
TABLE_BYTES_MAX = 16 << 30  # rows are in memory, where they take ten times as much
SAMPLE_ROWS = 200  # that the delimiter is detected from
HEADER_ROWS = 2000  # that the first row is compared with
# as pandas reads them; the first is empty
_MISSING = ",#N/A,#N/A N/A,#NA,-1.#IND,-1.#QNAN,-NaN,-nan,1.#IND,1.#QNAN,<NA>,N/A,NA,NULL,NaN,None,n/a,nan,null"
MISSING = frozenset(_MISSING.split(","))
_BYTE_ORDER_MARKS = {  # those of 32 bits first: they start as those of 16
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_GZIP, _PARQUET, _ZIP, _OLE = b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)  # that Excel writes above the header
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")


@dataclass(frozen=True, kw_only=True)
class Form:
    """How the text of a table is written; None: to be detected.

    Attributes:
        encoding: a name that Python knows.
        delimiter: one character.
        decimal: "." or ",".
        header: whether the first row has names.
    """

    encoding: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    header: bool | None = None

    @override
    def __str__(self) -> str:
        """Return the form as text."""
        if self.encoding in TYPED:
            return TYPED[self.encoding]
        between = DELIMITERS.get(str(self.delimiter), repr(self.delimiter))
        mark = "comma" if self.decimal == "," else "point"
        return f"{self.encoding}, {between}, decimal {mark}, {'header' if self.header else 'no header'}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Rows of cells.

    Attributes:
        source: of the table in messages: what reads it, and the file.
        header: names of the columns; without a header "column 1", "column 2" and so on.
        lines: the line of each row in its file; of Parquet the row.
        rows: text of each cell, without spaces around it.
        form: how the file is written, detected or given.
    """

    source: str
    header: tuple[str, ...]
    lines: Sequence[int]
    rows: Sequence[Sequence[str]]
    form: Form = field(default_factory=Form)
    _numbers: dict[int, list[float | None]] = field(default_factory=dict)

    def place(self, row: int) -> str:
        """Return the source and the line of a row, for messages."""
        return f"{self.source} {'row' if self.form.encoding in TYPED else 'line'} {self.lines[row]}"

    def column(self, index: int) -> list[str]:
        """Return the cells of a column."""
        return [row[index] for row in self.rows]

    def numbers(self, index: int) -> list[float | None]:
        """Return the numbers of a column; None for a cell that is none."""
        if index not in self._numbers:
            decimal = self.form.decimal or "."
            self._numbers[index] = [number(row[index], decimal) for row in self.rows]
        return self._numbers[index]

    def without(self, rows: Collection[int]) -> Table:
        """Return the table without some rows."""
        kept = [n for n in range(len(self.rows)) if n not in rows]
        return Table(
            source=self.source,
            header=self.header,
            lines=[self.lines[n] for n in kept],
            rows=[self.rows[n] for n in kept],
            form=self.form,
        )


NOTHING = Form()


def _decompressed(data: bytes) -> bytes:
    with gzip.open(io.BytesIO(data)) as file:
        found = file.read(TABLE_BYTES_MAX + 1)
    if len(found) > TABLE_BYTES_MAX:
        raise OSError(f"expected at most {TABLE_BYTES_MAX} bytes of text, got more")
    return found


def read_table(
    path: Path, reader: str, given: Form = NOTHING, *, known: Collection[str] = (), likely: Form = NOTHING
) -> Table:
    """Return the rows of a text file, gzip-compressed or not, or of a Parquet file.

    Args:
        path: the file.
        reader: what reads it, for messages.
        given: what is not detected.
        known: names of columns that the table may have; a row that has one of them is a header.
        likely: taken where the text leaves it open.

    Raises:
        TaskError: the file cannot be read, or what is detected is not certain.
    """
    source = f"{reader}: {path}"
    try:
        data = content_of(path, TABLE_BYTES_MAX)
        data = _decompressed(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(unreadable(source, error, expected="a table")) from error
    if data.startswith(_PARQUET):
        return _parquet(data, source)
    if data.startswith((_ZIP, _OLE)):
        raise TaskError(f"{source}: expected text or Parquet, got an Excel file or an archive. Save the sheet as CSV.")
    text, encoding = _decoded(source, data, given.encoding, likely.encoding)
    delimiter = given.delimiter
    if (first := _SEPARATOR_LINE.match(text)) is not None:
        text, delimiter = "\n" + text[first.end() :], delimiter or first[1]
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise TaskError(f"task_options.delimiter: expected one character, such as ';', got {delimiter!r}")
    delimiter = delimiter or _delimiter(text, likely.delimiter)
    lines, rows = _rows(source, text, delimiter)
    header = given.header
    if header is None:
        header = bool(rows) and _has_header(source, lines, rows, known, likely.header)
    names = rows[0] if header else [""] * len(rows[0] if rows else ())
    lines, rows = lines[int(header) :], rows[int(header) :]
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(names):
            raise TaskError(
                f"{source} line {line}: expected {counted(len(names), 'cell')}, as in the first row, got {len(row)}. "
                f"Correct the row, or name the character between cells, task_options.delimiter ({delimiter!r})."
            )
    while rows and not names[-1] and not any(row[-1] for row in rows):  # delimiters at the ends of all lines
        names, rows = names[:-1], [row[:-1] for row in rows]
    decimal = given.decimal or decimal_mark(
        list(zip(*rows, strict=True)), lambda row: f"{source} line {lines[row]}", likely.decimal or "."
    )
    return Table(
        source=source,
        header=tuple(name or f"column {n + 1}" for n, name in enumerate(names)),
        lines=lines,
        rows=rows,
        form=Form(encoding=encoding, delimiter=delimiter, decimal=decimal, header=header),
    )


def is_table(path: Path) -> bool:
    """Return whether a file's name is that of a table."""
    return path.name.lower().endswith(SUFFIXES)


def _decoded(source: str, data: bytes, given: str | None, likely: str | None) -> tuple[str, str]:
    """Return text and encoding: the given one, that of the first bytes, UTF-8, the likely one, or Windows-1252."""
    marked = next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None)
    candidates = [given or marked or _wide(data) or "utf-8"]
    if candidates == ["utf-8"] and given is None:
        candidates += [likely] if likely and likely not in TYPED and not likely.startswith("utf") else []
        candidates += ["cp1252", "latin-1"]
    for encoding in candidates:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            reason = str(error)
        except LookupError:
            raise TaskError(
                f"task_options.encoding: expected the name of an encoding, such as utf-8, got {given!r}"
            ) from None
        else:
            if (other := _NO_TEXT.search(text)) is not None:
                reason = f"expected text, got the character {other[0]!r}"
                break
            return text, encoding
    fix = "Give a text file, and its encoding where it is not UTF-8."
    raise TaskError(unreadable(source, ValueError(reason), fix, "text"))


def _wide(data: bytes) -> str | None:
    """Return the encoding of text of 16 bits a character without a mark: every other byte is 0."""
    head = data[:2000]
    if not head or b"\0" not in head:
        return None
    return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"


def _parsed(text: str, delimiter: str) -> Iterable[tuple[int, list[str]]]:
    """Yield line and cells of each row."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    for row in reader:
        yield reader.line_num, [unicodedata.normalize("NFC", cell.strip()) for cell in row]


def _rows(source: str, text: str, delimiter: str) -> tuple[list[int], list[list[str]]]:
    """Return line and cells of each row that has any text."""
    try:
        found = [(line, row) for line, row in _parsed(text, delimiter) if any(row)]
        if found and "\n" in found[-1][1][-1]:
            list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise TaskError(unreadable(source, error, "Correct the quotation marks.", "rows of cells")) from error
    return [line for line, _ in found], [row for _, row in found]


def _delimiter(text: str, likely: str | None) -> str:
    """Return the delimiter that gives most rows equally many cells, of which most are one number or one text."""
    scores: dict[str, tuple[float, float, bool]] = {}
    for delimiter in DELIMITERS:
        try:
            rows = [row for _, row in itertools.islice(_parsed(text, delimiter), SAMPLE_ROWS) if any(row)]
        except csv.Error:
            continue
        width, times = max(
            Counter(len(row) for row in rows if len(row) > 1).items(), key=lambda n: n[1], default=(0, 0)
        )
        cells = [cell for row in rows if len(row) == width for cell in row]
        others = set(DELIMITERS) - {delimiter, " "}
        whole = sum(is_numeral(cell) or not others & set(cell) for cell in cells)
        share = times / len(rows) if times else 0.0
        share = share if delimiter != " " or share == 1 else 0.0
        scores[delimiter] = (share, whole / len(cells) if cells else 0.0, delimiter == likely)
    best = max(scores, key=lambda delimiter: scores[delimiter], default=",")
    return best if scores and scores[best][0] > 0 else likely or ","


def _has_header(
    source: str, lines: Sequence[int], rows: Sequence[Sequence[str]], known: Collection[str], likely: bool | None
) -> bool:
    """Return whether the first row has names: it has text above numbers, and no value of the rows below.

    Raises:
        TaskError: both, or neither, seem to be true.
    """
    first, below = rows[0], [row for row in rows[1:HEADER_ROWS] if len(row) == len(rows[0])]
    if set(known) & set(first):
        return True
    if not below:
        return not any(map(is_numeral, first))
    named, value = "", ""
    numerals = [cell for cell in first if is_numeral(cell)]
    counting = len(numerals) > 1 and numerals == [str(_whole(numerals[0]) + n) for n in range(len(numerals))]
    if len(numerals) == len(first):  # numbers of columns, as pandas writes them for an array, or a row of data
        named, counting = ("0, 1, 2" if counting and numerals[:3] == ["0", "1", "2"] else ""), False
    for n, cell in enumerate(first):
        column = [row[n] for row in below if row[n] not in MISSING]
        numeric = bool(column) and all(map(is_numeral, column))
        if cell in MISSING or not column:
            continue
        if numeric and not is_numeral(cell):
            named = named or cell
        elif cell in column or (numeric and not counting):
            value = value or cell
    if named and value and likely is not None:
        return likely
    if named and value:
        raise TaskError(
            f"{source} line {lines[0]}: expected a header or a row of data, got {named!r} above numbers, as in a header, and "
            f"{value!r}, as in a row. Say which it is with task_options.header=true or false."
        )
    return not value


def _whole(cell: str) -> int:
    """Return an integer, or 0 for another number."""
    return int(cell) if cell.isdecimal() else 0


def _parquet(data: bytes, source: str) -> Table:
    require(("pandas", "pyarrow"), source)
    import pandas

    try:
        frame: object = pandas.read_parquet(io.BytesIO(data))
    except (OSError, ValueError) as error:
        raise TaskError(unreadable(source, error, expected="a Parquet file")) from error
    return table_of_frame(frame, source, "parquet")


def table_of_frame(frame: Any, source: str, encoding: str) -> Table:
    """Return a frame of pandas as a table; ``encoding`` is a key of `TYPED`: where the frame comes from."""
    columns = [_texts(frame.iloc[:, n]) for n in range(frame.shape[1])]
    rows = [list(row) for row in zip(*columns, strict=True)]
    form = Form(encoding=encoding, decimal=".", header=True)
    header = tuple(map(str, frame.columns))
    return Table(source=source, header=header, lines=range(1, len(rows) + 1), rows=rows, form=form)


def _texts(column: Any) -> list[str]:
    """Return the cells of a column of pandas as text, "" where there is none; whole numbers are written as integers.

    pandas makes integers floats where a column lacks a value.
    """
    absent = column.isna().tolist()
    texts = ["" if missing else str(cell).strip() for cell, missing in zip(column.tolist(), absent, strict=True)]
    if column.dtype.kind == "f" and all(
        missing or text.endswith(".0") for text, missing in zip(texts, absent, strict=True)
    ):
        texts = [text.removesuffix(".0") for text in texts]
    return [unicodedata.normalize("NFC", text) for text in texts]

"""Tables on a screen and as Markdown."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Column as RichColumn
from rich.table import Table as RichTable
from rich.text import Text

from peer.lab import grid
from peer.lab.cells import Cells, cells_of
from peer.lab.table import ResultTable


def sheets(table: ResultTable) -> list[tuple[str, Cells]]:
    """Return title and cells of a table; with settings, of several."""
    return grid.sheets(table) if all(row.setting for row in table.rows) else [(table.title, cells_of(table))]


def how(table: ResultTable) -> str:
    """Return a sentence on how the numbers were measured."""
    spent = "" if table.minutes is None else f"{table.minutes:.0f} min in all; "
    return (
        f"{table.note}{' ' * bool(table.note)}Scale: {table.scale}. N = {table.peers}, mean degree {table.mean_degree:.1f}, "
        f"{table.rounds} rounds; {', '.join(table.backends)} on {table.device}; {' to '.join(table.dates)}; {table.machine}; "
        f"{spent}{shortened(table.commands)}"
    )


def shortened(commands: Sequence[str]) -> str:
    """Return commands as text; of all but the first, only the words that differ from it."""
    first, *others = commands
    texts = [first]
    for other in others:
        words = shlex.split(other)
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(shlex.split(first), words, strict=False))
        same = len(list(equal))
        same -= same > 0 and words[same - 1].startswith("-")  # keep an option beside its value
        rest = words[same:]
        texts.append(f"... {shlex.join(rest)}" if same > 2 and rest else other)
    return ", ".join(f"`{command}`" for command in texts)


@dataclass(frozen=True)
class Fitting:
    """A table; its cases become columns where the terminal is too narrow otherwise and that form is the narrower one."""

    cells: Cells
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for the width at hand."""
        turned = list(zip(*self.cells, strict=True))
        fits = _width(self.cells) <= options.max_width or _width(self.cells) <= _width(turned)
        header, *rows = self.cells if fits else turned
        table = RichTable(*(RichColumn(escape(name), overflow="fold") for name in header), title=escape(self.title))
        for row in rows:
            table.add_row(*map(escape, row))
        yield table


def _width(cells: Cells) -> int:
    """Return the characters of the widest line of a table, its frame included."""
    return sum(max(map(len, column)) + 3 for column in zip(*cells, strict=True)) + 1


def rendered(tables: Sequence[ResultTable]) -> RenderableType:
    """Return tables for a terminal."""
    parts: list[RenderableType] = []
    for table in tables:
        parts += [
            *(Fitting(cells, title) for title, cells in sheets(table)),
            *map(Text, table.cautions),
            Text(how(table), style="dim"),
            Text(""),
        ]
    return Group(*parts)


def markdown(tables: Sequence[ResultTable]) -> str:
    """Return tables as Markdown, each below a heading."""
    return "\n".join(line for table in tables for line in (f"### {table.title}", "", *markdown_lines(table)))


def markdown_lines(table: ResultTable) -> list[str]:
    """Return the Markdown lines of one table: how it was measured, its cells, its cautions."""
    lines = [how(table), ""]
    for title, (header, *rows) in sheets(table):
        lines += [] if title == table.title else [title, ""]
        lines += [*(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)), ""]
    return [*lines, *([" ".join(table.cautions), ""] if table.cautions else [])]

"""Measured beside published numbers: the results of a folder as tables, on the screen or as markdown."""

from __future__ import annotations

import itertools
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from coordinator_free_bootstrap.errors import UsageError
from peer.core.metric import Metric
from peer.lab import grid
from peer.lab.comparison import cautions, data_of, difference, half_width
from peer.lab.grid import Sheet, shown, with_spread
from peer.lab.jobs import read_result

Result = dict[str, Any]
# Keys of a result that every table needs, with their types
REQUIRED = {
    **dict.fromkeys(("experiment", "title", "case", "backend", "device", "scale", "machine", "date", "command"), str),
    **dict.fromkeys(("algorithm", "measures"), str),
    **dict.fromkeys(("metric", "data"), dict),
    **dict.fromkeys(("place", "seed", "peers", "rounds"), int),
    **dict.fromkeys(("mean_degree", "run_seconds"), float),
}
HEADER = (  # METRIC: `Metric.column`
    "case",
    "paper, METRIC",
    "measured, METRIC",
    "to the best",
    "before final, METRIC",
    "worst peer, METRIC",
    "ARI",
    "clusters right",
    "mixture error",
    "samples right, %",
    "class explains, %",
    "truth explains, %",
    "links to renamed, first and last, %",
    "settled",
    "models sent",
    "MB sent a peer",
    "seeds",
)


@dataclass(frozen=True)
class Row:
    """One case: its results over seeds, at one scale; ``best`` are those of the best case on the same data."""

    case: str
    results: tuple[Result, ...]
    best: tuple[Result, ...] = ()

    @property
    def metric(self) -> Metric:
        """The metric of the case."""
        return metric_of(self.results[0])

    @property
    def setting(self) -> str | None:
        """The name of the case's setting, in an experiment with settings."""
        placed = self.results[0].get("setting")
        return None if placed is None else str(placed["setting"])

    def cells(self) -> tuple[str, ...]:
        """Return the text of each column of `HEADER`."""
        first = self.results[0]
        megabytes = self._mean("payload_bytes_sent", 1e-6 / first["peers"])
        return (
            self.case,
            with_spread(first.get("published"), first.get("published_std"), self.metric),
            with_spread(self.mean, half_width(self._values("measured")), self.metric),
            self._to_the_best(),
            self.metric.scaled_text(self._before_final()),
            self.metric.scaled_text(self._mean("accuracy_worst", self.metric.factor)),
            shown(self._mean("cluster_ari"), 2),
            self._right(),
            shown(self._mean("mix_err"), 3),
            shown(self._mean("sample_cluster_accuracy", 100.0)),
            shown(self._mean("class_explains", 100.0)),
            shown(self._mean("truth_explains", 100.0)),
            self._links(),
            shown(self._mean("settled_round"), 0),
            shown(self._mean("models_sent"), 0),
            shown(megabytes),
            str(len(self.results)),
        )

    def _links(self) -> str:
        """Return the share of the links of peers with true labels to peers with renamed ones, at first and at last."""
        first, last = (self._mean(f"links_to_renamed{when}", 100.0) for when in ("_first", ""))
        return "" if first is None or last is None else f"{first:.1f}, {last:.1f}"

    def _values(self, key: str) -> list[float]:
        return [float(result[key]) for result in self.results if result.get(key) is not None]

    def _mean(self, key: str, factor: float = 1.0) -> float | None:
        values = self._values(key)
        return factor * statistics.fmean(values) if values else None

    @property
    def mean(self) -> float | None:
        """The mean of the measured values, in the unit of the table."""
        return self._mean("measured")

    def _to_the_best(self) -> str:
        if not self.best:
            return ""
        if self.best == self.results:
            return "best"
        found = difference(self.results, self.best)
        return "no common seed" if found is None else _signed(*found, self.metric)

    def _before_final(self) -> float | None:
        """Return the metric before the final phase; None for an algorithm without one."""
        found = [result["accuracy_final_phase"] for result in self.results if result.get("accuracy_final_phase")]
        return self.metric.factor * statistics.fmean(phase["before"] for phase in found) if found else None

    def _right(self) -> str:
        """Return the number of runs in which every peer ended in its true cluster."""
        known = self._values("cluster_accuracy")
        return f"{sum(value == 1 for value in known)} of {len(known)}" if known else ""


@dataclass(frozen=True)
class Block:
    """One experiment at one scale: a title, a sentence on how it was measured, and its rows."""

    title: str
    how: str
    rows: tuple[Row, ...]
    cautions: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric:
        """The metric of all cases."""
        return metric_of(self.rows[0].results[0])

    def sheets(self) -> list[Sheet]:
        """Return the tables of the block: one, or with settings those of `grid.sheets`."""
        if not self._settings():
            return [Sheet(self.title, self.cells())]
        return grid.sheets(self.title, [row.results for row in self.rows], [row.best for row in self.rows], self.metric)

    def parts(self) -> list[Block]:
        """Return the block of each setting, for pictures; without settings the block itself."""
        return [
            replace(self, title=f"{self.title}: {name}", rows=tuple(row for row in self.rows if row.setting == name))
            for name in self._settings()
        ] or [self]

    def _settings(self) -> list[str]:
        """Return the names of the settings, or none if not all results have one."""
        names = list(dict.fromkeys(row.setting for row in self.rows))
        return [] if None in names else [name for name in names if name is not None]

    def cells(self) -> list[tuple[str, ...]]:
        """Return the header and the cells of each row, without the columns that are empty in all rows."""
        rows = [row.cells() for row in self.rows]
        used = [place for place in range(len(HEADER)) if any(row[place] for row in rows)]
        header = [name.replace("METRIC", self.metric.column) for name in HEADER]
        return [tuple(row[place] for place in used) for row in (header, *rows)]


def read_blocks(directory: Path) -> list[Block]:
    """Return all results below a folder, of one experiment or of several; one block for each experiment, scale and metric.

    Raises:
        UsageError: the folder has no results, or a file is not a result.
    """
    found: dict[tuple[str, str, str, str, str], dict[str, list[Result]]] = {}
    root = Path(directory)
    for path in sorted(root.glob("*/*/seed-*.json")) or sorted(root.glob("*/seed-*.json")):
        result = read_result(path)
        if result is None:
            continue
        _check(result, path)
        key = (result["experiment"], result["title"], result["scale"], result["device"], metric_of(result).name)
        found.setdefault(key, {}).setdefault(result["case"], []).append(result)
    if not found:
        raise UsageError(f"{directory}: no results found; make some with: peer experiment run FILE --out {directory}")
    return [_block(title, scale, cases) for (_, title, scale, *_), cases in sorted(found.items())]


def metric_of(result: Result) -> Metric:
    """Return a result's metric."""
    return Metric.from_json(result["metric"])


def _check(result: Result, path: Path) -> None:
    for key, kind in REQUIRED.items():
        if not isinstance(result.get(key), int | float if kind is float else kind):
            raise UsageError(
                f"{path}: not a result of peer experiment run: {key}: found {result.get(key)!r}; allowed: {kind.__name__}; "
                "remove the file, or name another DIRECTORY"
            )


def commands(results: Sequence[Result]) -> str:
    """Return the commands of the results, each once; of all but the first, only the words that differ from it."""
    first, *others = dict.fromkeys(result["command"] for result in results)
    shown = [first]
    for other in others:
        words = shlex.split(other)
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(shlex.split(first), words, strict=False))
        same = len(list(equal))
        same -= same > 0 and words[same - 1].startswith("-")  # keep an option beside its value
        rest = words[same:]
        shown.append(f"... {shlex.join(rest)}" if same > 2 and rest else other)
    return ", ".join(f"`{command}`" for command in shown)


def _block(title: str, scale: str, cases: dict[str, list[Result]]) -> Block:
    results = [result for rows in cases.values() for result in rows]
    first = results[0]
    backends = ", ".join(sorted({result["backend"] for result in results}))
    dates = sorted({result["date"] for result in results})
    how = (
        f"Scale: {scale}. N = {first['peers']}, mean degree {first['mean_degree']:.1f}, {first['rounds']} rounds; "
        f"{backends} on {first['device']}; {dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''}; {first['machine']}; "
        f"{sum(result['run_seconds'] for result in results) / 60:.0f} min in all; {commands(results)}"
    )
    rows = [Row(case, tuple(sorted(found, key=lambda r: int(r["seed"])))) for case, found in cases.items()]
    rows.sort(key=lambda row: int(row.results[0]["place"]))
    return Block(title, how, tuple(_beside_the_best(rows)), tuple(cautions({row.case: row.results for row in rows})))


def _beside_the_best(rows: list[Row]) -> list[Row]:
    """Give each row the best one on the same data; a row alone on its data has none."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(data_of(row.results[0]), []).append(row)
    sign = 1 if rows[0].metric.higher_is_better else -1
    best: dict[str, tuple[Result, ...]] = {}
    for data, group in groups.items():
        measured = [row for row in group if row.mean is not None]
        if len(measured) > 1:
            best[data] = max(measured, key=lambda row: sign * (row.mean or 0.0)).results
    return [replace(row, best=best.get(data_of(row.results[0]), ())) for row in rows]


@dataclass(frozen=True)
class Fitting:
    """A table; its cases become columns where the terminal is too narrow otherwise and that form is the narrower one."""

    cells: list[tuple[str, ...]]
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for the width at hand."""
        turned = list(zip(*self.cells, strict=True))
        fits = _width(self.cells) <= options.max_width or _width(self.cells) <= _width(turned)
        header, *rows = self.cells if fits else turned
        table = Table(*(Column(escape(name), overflow="fold") for name in header), title=escape(self.title))
        for row in rows:
            table.add_row(*map(escape, row))
        yield table


def _width(cells: list[tuple[str, ...]]) -> int:
    """Return the characters of the widest line of a table, its frame included."""
    return sum(max(map(len, column)) + 3 for column in zip(*cells, strict=True)) + 1


def rendered(blocks: Sequence[Block]) -> RenderableType:
    """Return the blocks for a terminal."""
    parts: list[RenderableType] = []
    for block in blocks:
        parts += [
            *(Fitting(sheet.cells, sheet.title) for sheet in block.sheets()),
            *map(Text, block.cautions),
            Text(block.how, style="dim"),
            Text(""),
        ]
    return Group(*parts)


def markdown(blocks: Sequence[Block]) -> str:
    """Return the blocks as markdown tables."""
    lines: list[str] = []
    for block in blocks:
        lines += [f"### {block.title}", "", block.how, ""]
        for sheet in block.sheets():
            header, *rows = sheet.cells
            table = [header, ["---"] * len(header), *rows]
            lines += [] if sheet.title == block.title else [sheet.title, ""]
            lines += [*(f"| {' | '.join(row)} |" for row in table), ""]
        lines += [" ".join(block.cautions), ""] if block.cautions else []
    return "\n".join(lines)


def _signed(value: float, spread: float | None, metric: Metric) -> str:
    text = f"{'+' if value >= 0 else '-'}{metric.scaled_text(abs(value), 2)}"
    return text if spread is None else f"{text} ± {metric.scaled_text(spread, 2)}"

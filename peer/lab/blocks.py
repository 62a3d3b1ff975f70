"""The results of `peer experiment run` in a folder, and the tables that come from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap.errors import UsageError
from peer.core.metric import Metric
from peer.lab.comparison import Result, cautions, data_of, difference, half_width
from peer.lab.jobs import read_result
from peer.lab.table import BEST, NO_COMMON_SEED, CaseRow, ResultTable, Spread, Total

# Keys of a result that every table needs, with their types
REQUIRED = {
    **dict.fromkeys(("experiment", "title", "case", "backend", "device", "scale", "machine", "date", "command"), str),
    **dict.fromkeys(("algorithm", "measures"), str),
    **dict.fromkeys(("metric", "data"), dict),
    **dict.fromkeys(("place", "seed", "peers", "rounds"), int),
    **dict.fromkeys(("mean_degree", "run_seconds"), float),
}


@dataclass(frozen=True)
class CaseResults:
    """One case: its results over seeds, at one scale; ``best`` are those of the best case on the same data."""

    name: str
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

    @property
    def mean(self) -> float | None:
        """The mean of the measured values, in the unit of the table."""
        return self._mean("measured")

    def row(self) -> CaseRow:
        """Return the numbers of the table, with six digits."""
        first, percent = self.results[0], 100.0
        known = self._values("cluster_accuracy")
        links = self._mean("links_to_renamed_first", percent), self._mean("links_to_renamed", percent)
        return CaseRow(
            case=self.name if self.setting is None else first["setting"]["case"],
            setting=self.setting,
            seeds=len(self.results),
            published=_spread(first.get("published"), first.get("published_std")),
            measured=_spread(self.mean, half_width(self._values("measured"))),
            to_best=to_best(self.results, self.best),
            before_final=self._before_final(),
            worst=self._worst(),
            worst_tenth=self._mean("metric_p10", self.metric.factor),
            ari=self._mean("cluster_ari"),
            clusters_right=(sum(value == 1 for value in known), len(known)) if known else None,
            mixture_error=self._mean("mix_err"),
            samples_right=self._mean("sample_cluster_accuracy", percent),
            class_explains=self._mean("class_explains", percent),
            truth_explains=self._mean("truth_explains", percent),
            links_to_renamed=None if links[0] is None or links[1] is None else (links[0], links[1]),
            settled=self._mean("settled_round"),
            models_sent=self._mean("models_sent"),
            megabytes_sent=self._mean("payload_bytes_sent", 1e-6 / first["peers"]),
            cpu_seconds=self._mean("cpu_seconds"),
            held_megabytes=self._mean("held_bytes", 1e-6),
            by_seed={r["seed"]: rounded(r["measured"]) for r in self.results if r.get("measured") is not None} or None,
        )

    def _values(self, key: str) -> list[float]:
        return [float(result[key]) for result in self.results if result.get(key) is not None]

    def _mean(self, key: str, factor: float = 1.0) -> float | None:
        return mean(self._values(key), factor)

    def _worst(self) -> Spread | None:
        values = [self.metric.factor * value for value in self._values("metric_worst")]
        return _spread(mean(values), half_width(values))

    def _before_final(self) -> float | None:
        """Return the metric before the final phase; None for an algorithm without one."""
        found = [result["metric_final_phase"] for result in self.results if result.get("metric_final_phase")]
        return mean([phase["before"] for phase in found], self.metric.factor)


@dataclass(frozen=True)
class Block:
    """The results of one experiment at one scale."""

    title: str
    cases: tuple[CaseResults, ...]

    @property
    def results(self) -> list[Result]:
        """The results of all cases and seeds."""
        return [result for case in self.cases for result in case.results]

    @property
    def metric(self) -> Metric:
        """The metric of all cases."""
        return metric_of(self.results[0])

    def parts(self) -> list[Block]:
        """Return the block of each setting, for pictures; without settings the block itself."""
        names = list(dict.fromkeys(case.setting for case in self.cases))
        if None in names:
            return [self]
        return [
            Block(f"{self.title}: {name}", tuple(case for case in self.cases if case.setting == name)) for name in names
        ]

    def table(self) -> ResultTable:
        """Return the numbers of the block."""
        results = self.results
        first = results[0]
        dates = sorted({result["date"] for result in results})
        return ResultTable(
            experiment=first["experiment"],
            title=self.title,
            metric=self.metric,
            scale=first["scale"],
            peers=first["peers"],
            mean_degree=rounded(first["mean_degree"]),
            rounds=first["rounds"],
            backends=tuple(sorted({result["backend"] for result in results})),
            device=first["device"],
            dates=tuple(dict.fromkeys((dates[0], dates[-1]))),
            machine=first["machine"],
            minutes=round(sum(result["run_seconds"] for result in results) / 60),
            commands=tuple(dict.fromkeys(result["command"] for result in results)),
            cautions=tuple(cautions({case.name: case.results for case in self.cases})),
            rows=tuple(case.row() for case in self.cases),
            totals=tuple(self._totals()),
        )

    def _totals(self) -> Iterable[Total]:
        """Yield what each case reached and cost over all settings; nothing without settings."""
        settings = {case.setting for case in self.cases}
        if None in settings:
            return
        named: dict[str, list[CaseResults]] = {}
        for case in self.cases:
            named.setdefault(case.results[0]["setting"]["case"], []).append(case)
        measured = {name: [case.mean for case in cases if case.mean is not None] for name, cases in named.items()}
        means = {name: statistics.fmean(found) for name, found in measured.items() if len(found) == len(settings)}
        better = max if self.metric.higher_is_better else min
        best = over_settings(named[better(means, key=means.__getitem__)]) if len(means) > 1 else ()
        for name, cases in named.items():
            results = [result for case in cases for result in case.results]
            yield Total(
                case=name,
                mean=rounded(means[name]) if name in means else None,
                to_best=to_best(over_settings(cases), best) if name in means else None,
                megabytes_sent=mean([result["payload_bytes_sent"] / result["peers"] for result in results], 1e-6),
                cpu_seconds=mean([r["cpu_seconds"] for r in results if r.get("cpu_seconds") is not None]),
                held_megabytes=mean([r["held_bytes"] for r in results if r.get("held_bytes") is not None], 1e-6),
                seeds=tuple(sorted({len(case.results) for case in cases})),
            )


def rounded(value: float) -> float:
    """Return a number with six significant digits, as tables keep it."""
    return float(f"{value:.6g}")


def mean(values: Sequence[float], factor: float = 1.0) -> float | None:
    """Return the mean of numbers, times a factor, as tables keep it; None without any."""
    return rounded(factor * statistics.fmean(values)) if values else None


def to_best(results: Sequence[Result], best: Sequence[Result]) -> Any:
    """Return the difference of a row to the best one as a table keeps it; None: there is no best one."""
    if not best:
        return None
    if best == results:
        return BEST
    found = difference(results, best)
    return NO_COMMON_SEED if found is None else _spread(*found)


def over_settings(cases: Sequence[CaseResults]) -> tuple[Result, ...]:
    """Return the mean over the settings of a case for each seed that it has in all of them, in the form of results."""
    values: dict[int, list[float]] = {}
    for result in (result for case in cases for result in case.results):
        if result.get("measured") is not None:
            values.setdefault(result["seed"], []).append(float(result["measured"]))
    return tuple(
        {"seed": seed, "measured": statistics.fmean(found)}
        for seed, found in sorted(values.items())
        if len(found) == len(cases)
    )


def _spread(value: float | None, spread: float | None) -> Spread | None:
    if value is None:
        return None
    return rounded(value) if spread is None else (rounded(value), rounded(spread))


def result_files(directory: Path) -> list[Path]:
    """Return the files of all results below a folder, of one experiment or of several."""
    return sorted(directory.glob("*/*/seed-*.json")) or sorted(directory.glob("*/seed-*.json"))


def read_blocks(directory: Path) -> list[Block]:
    """Return all results below a folder, of one experiment or of several; one block for each experiment, scale and metric.

    Raises:
        UsageError: the folder has no results, or a file is not a result.
    """
    found: dict[tuple[str, str, str, str, str], dict[str, list[Result]]] = {}
    for path in result_files(Path(directory)):
        result = read_result(path)
        if result is None:
            continue
        _check(result, path)
        key = (result["experiment"], result["title"], result["scale"], result["device"], metric_of(result).name)
        found.setdefault(key, {}).setdefault(result["case"], []).append(result)
    if not found:
        raise UsageError(f"{directory}: expected results, got none. Run: peer experiment run FILE --out {directory}")
    return [_block(cases) for _, cases in sorted(found.items())]


def metric_of(result: Result) -> Metric:
    """Return a result's metric."""
    return Metric.from_json(result["metric"])


def _check(result: Result, path: Path) -> None:
    for key, kind in REQUIRED.items():
        if not isinstance(result.get(key), int | float if kind is float else kind):
            raise UsageError(
                f"{path}: not a result of peer experiment run: {key}: expected {kind.__name__}, got "
                f"{result.get(key)!r}. Remove the file, or name another DIRECTORY."
            )


def _block(found: dict[str, list[Result]]) -> Block:
    cases = [CaseResults(name, tuple(sorted(results, key=lambda r: int(r["seed"])))) for name, results in found.items()]
    cases.sort(key=lambda case: int(case.results[0]["place"]))
    return Block(str(cases[0].results[0]["title"]), tuple(_beside_the_best(cases)))


def _beside_the_best(cases: list[CaseResults]) -> list[CaseResults]:
    """Give each case the best one on the same data; a case alone on its data has none."""
    groups: dict[str, list[CaseResults]] = {}
    for case in cases:
        groups.setdefault(data_of(case.results[0]), []).append(case)
    sign = 1 if cases[0].metric.higher_is_better else -1
    best: dict[str, tuple[Result, ...]] = {}
    for data, group in groups.items():
        measured = [case for case in group if case.mean is not None]
        if len(measured) > 1:
            best[data] = max(measured, key=lambda case: sign * (case.mean or 0.0)).results
    return [replace(case, best=best.get(data_of(case.results[0]), ())) for case in cases]

"""The cells of a table as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from peer.core.metric import Metric
from peer.lab.table import CaseRow, ResultTable, Spread, Total

Cells = list[tuple[str, ...]]  # the header first


def filled(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Cells:
    """Return header and rows without the columns that are empty in all rows."""
    found = list(rows)
    used = [index for index in range(len(header)) if any(row[index] for row in found)]
    return [tuple(row[index] for index in used) for row in (header, *found)]


def shown(value: float | None, digits: int = 1) -> str:
    """Return a number as text; nothing for None."""
    return "" if value is None else f"{value:.{digits}f}"


def with_spread(value: Spread | None, metric: Metric) -> str:
    """Return a mean and half of its interval as text."""
    if isinstance(value, tuple):
        return f"{metric.scaled_text(value[0])} ± {metric.scaled_text(value[1], 2)}"
    return metric.scaled_text(value)


def to_best(row: CaseRow | Total, metric: Metric) -> str:
    """Return the difference to the best row as text."""
    if row.to_best is None or isinstance(row.to_best, str):
        return row.to_best or ""
    value, spread = row.to_best if isinstance(row.to_best, tuple) else (row.to_best, None)
    text = f"{'+' if value >= 0 else '-'}{metric.scaled_text(abs(value), 2)}"
    return text if spread is None else f"{text} ± {metric.scaled_text(spread, 2)}"


def _links(row: CaseRow, metric: Metric) -> str:
    return "" if row.links_to_renamed is None else "{:.1f}, {:.1f}".format(*row.links_to_renamed)


def clusters_right(row: CaseRow, metric: Metric) -> str:
    """Return in how many runs every peer ended in its true cluster, as text."""
    return "" if row.clusters_right is None else "{} of {}".format(*row.clusters_right)


COLUMNS: tuple[tuple[str, Callable[[CaseRow, Metric], str]], ...] = (  # METRIC: `Metric.column`
    ("case", lambda row, metric: row.case),
    ("paper, METRIC", lambda row, metric: with_spread(row.published, metric)),
    ("measured, METRIC", lambda row, metric: with_spread(row.measured, metric)),
    ("to the best", to_best),
    ("before final, METRIC", lambda row, metric: metric.scaled_text(row.before_final)),
    ("worst peer, METRIC", lambda row, metric: with_spread(row.worst, metric)),
    ("ARI", lambda row, metric: shown(row.ari, 2)),
    ("clusters right", clusters_right),
    ("mixture error", lambda row, metric: shown(row.mixture_error, 3)),
    ("samples right, %", lambda row, metric: shown(row.samples_right)),
    ("class explains, %", lambda row, metric: shown(row.class_explains)),
    ("truth explains, %", lambda row, metric: shown(row.truth_explains)),
    ("links to renamed, first and last, %", _links),
    ("settled", lambda row, metric: shown(row.settled, 0)),
    ("models sent", lambda row, metric: shown(row.models_sent, 0)),
    ("MB sent a peer", lambda row, metric: shown(row.megabytes_sent)),
    ("seeds", lambda row, metric: str(row.seeds)),
)


def cells_of(table: ResultTable) -> Cells:
    """Return the header and the cells of each row, without the columns that are empty in all rows."""
    header = [name.replace("METRIC", table.metric.column) for name, _ in COLUMNS]
    return filled(header, ([text(row, table.metric) for _, text in COLUMNS] for row in table.rows))

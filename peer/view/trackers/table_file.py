"""A table of the history: one row per peer and round, as CSV or Parquet. The file is replaced as a whole."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from peer.store.files import storage_errors, write_atomic
from peer.view.report.report import Report
from peer.view.trackers.tracker import About, HistoryRow, Tracker


class TableFile(Tracker):
    """Keeps all rows and writes the file again when some are new.

    Args:
        place: the file; its folder is made.
    """

    def __init__(self, place: str) -> None:
        self._place = Path(place)
        self._rows: dict[tuple[int, int], HistoryRow] = {}
        with storage_errors("make", self._place.parent):
            self._place.parent.mkdir(parents=True, exist_ok=True)

    @override
    def begin(self, about: About) -> None:
        """Do nothing: a table has the rows only."""

    @override
    def take(self, rows: Sequence[HistoryRow], everyone: Sequence[HistoryRow]) -> None:
        """Add rows of peers; a later one of the same peer and round counts."""
        import pandas as pd

        if not rows:
            return
        self._rows |= {(row["peer_id"], row["round_index"]): row for row in rows}
        table = pd.DataFrame([row for _, row in sorted(self._rows.items())])
        write_atomic(self._place, self._encoded(table))

    @override
    def close(self, report: Report) -> None:
        """Do nothing: every `take` leaves a complete file."""

    @abstractmethod
    def _encoded(self, table: Any) -> bytes: ...


class Csv(TableFile):
    """Comma-separated values with a header line; ``folded`` and ``missing`` are ids of neighbors with spaces between."""

    @override
    def _encoded(self, table: Any) -> bytes:
        for name in table.columns:
            if table[name].dtype.kind == "O":
                table[name] = table[name].map(_cell)
        return bytes(table.to_csv(index=False, lineterminator="\n").encode())


def _cell(value: Any) -> Any:
    """Return a list as text without brackets: of arrivals, which are lists themselves, the sender."""
    if not isinstance(value, list | tuple):
        return value
    return " ".join(str(part[0] if isinstance(part, list | tuple) and part else part) for part in value)


class Parquet(TableFile):
    """Parquet, with nested columns such as ``folded`` as lists."""

    @override
    def _encoded(self, table: Any) -> bytes:
        file = io.BytesIO()
        table.to_parquet(file, index=False)
        return file.getvalue()

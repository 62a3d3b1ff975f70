"""A peer's history, kept in memory during a simulated run and written at its end: no disk in the rounds."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir


class Recording:
    """The lines that a real peer would have written as it went."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lines: list[tuple[str, dict[str, Any]]] = []

    def add(self, kind: str, fields: dict[str, Any]) -> None:
        """Note one line, stamped now."""
        stamp = {
            "t": round(time.monotonic() - self._began, 6),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        self._lines.append((kind, stamp | fields))

    def write(self, place: StateDir) -> None:
        """Write all lines to a state directory.

        Raises:
            StorageError: they cannot be written.
        """
        with HistoryWriter(place.history, incarnation=1) as history:
            for kind, fields in self._lines:
                history.write(kind, **fields)

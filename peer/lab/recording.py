"""The history of a simulated peer: kept in memory during the run, written to disk at its end."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir


class Recording:
    """The history lines of one peer, as a process would have written them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def add(self, kind: str, fields: dict[str, Any]) -> None:
        """Append one line with the current time."""
        stamp = {
            "t": round(time.monotonic() - self._began, 6),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        self.lines.append((kind, stamp | fields))

    def write(self, state_dir: StateDir, incarnation: int) -> None:
        """Append all lines to the history in a state directory.

        Raises:
            StorageError: they cannot be written.
        """
        with HistoryWriter(state_dir.history, incarnation=incarnation) as history:
            for kind, fields in self.lines:
                history.write(kind, **fields)

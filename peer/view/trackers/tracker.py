"""The interface of a tracker, and the trackers by the names that ``--export`` takes."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator_free_bootstrap.errors import Option, UsageError
from coordinator_free_bootstrap.extras import require
from peer.view.report.report import Report

HistoryRow = dict[str, Any]  # of one peer and round, with the columns of `peer.view.report.history_table`


@dataclass(frozen=True)
class About:
    """A run's name, unlike that of any other run, and its settings by their keys in the manifest."""

    name: str
    settings: dict[str, Any]


class Tracker(ABC):
    """Takes the rows of a run as they come, and its report at the end."""

    @abstractmethod
    def begin(self, about: About) -> None:
        """Take the name and the settings; called once, before all else."""

    @abstractmethod
    def take(self, rows: Sequence[HistoryRow], everyone: Sequence[HistoryRow]) -> None:
        """Take new rows of peers, and of all peers (`peer.view.trackers.curves.AllPeers`).

        A peer that resumed repeats a round, and its last row counts.
        """

    @abstractmethod
    def close(self, report: Report) -> None:
        """Take the report, write all, and close."""


@dataclass(frozen=True)
class _Kind:
    place: str  # what follows the colon
    module: str
    name: str
    needs: tuple[str, ...]  # modules


_HERE = "peer.view.trackers"
KINDS = {
    "tensorboard": _Kind("LOGDIR", f"{_HERE}.tensorboard_events", "TensorBoard", ("tensorboard",)),
    "mlflow": _Kind("URI", f"{_HERE}.mlflow_runs", "Mlflow", ("mlflow",)),
    "csv": _Kind("FILE", f"{_HERE}.table_file", "Csv", ("pandas",)),
    "parquet": _Kind("FILE", f"{_HERE}.table_file", "Parquet", ("pandas", "pyarrow")),
}
FORMS = ", ".join(f"{name}:{kind.place}" for name, kind in KINDS.items())


def check(exports: Iterable[str]) -> None:
    """Refuse a wrong value of ``--export`` before a run starts.

    Raises:
        UsageError: an unknown tracker, no destination, or a package that is not installed.
    """
    for export in exports:
        name, _, place = export.partition(":")
        if name not in KINDS or not place:
            raise UsageError(f"{Option('export')}: expected {FORMS}, got {export!r}")
        require(KINDS[name].needs, f"{Option('export')}: {export}")


def opened(export: str) -> Tracker:
    """Return the tracker of one checked value of ``--export``.

    Raises:
        StorageError: its destination cannot be written.
    """
    name, _, place = export.partition(":")
    tracker: Tracker = getattr(importlib.import_module(KINDS[name].module), KINDS[name].name)(place)
    return tracker

"""TensorBoard: a folder per run, in it a folder per peer with its rounds, and `all` with curves of all peers and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from typing_extensions import override

from peer.store.files import storage_errors
from peer.view.report.report import Report
from peer.view.trackers.curves import PeerCurves, curve_name, numbers
from peer.view.trackers.tracker import About, HistoryRow, Tracker

HPARAM_CHARACTERS_MAX = 500


class TensorBoard(Tracker):
    """Scalars report.values as the columns of the history, with a group; the step is the number of completed rounds.

    Args:
        place: log directory; each run gets a folder of its own in it.
    """

    def __init__(self, place: str) -> None:
        self._parent = Path(place)
        self._writers: dict[str, SummaryWriter] = {}
        self._curves: dict[int, PeerCurves] = {}

    @override
    def begin(self, about: About) -> None:
        """Make the folder of the run: a second one with the same name gets a number."""
        self._about, self._place, count = about, self._parent / about.name, 1
        with storage_errors("write events to", self._parent):
            self._parent.mkdir(parents=True, exist_ok=True)
            while self._place.exists():
                count += 1
                self._place = self._parent / f"{about.name}-{count}"
            self._place.mkdir()

    @override
    def take(self, rows: Sequence[HistoryRow], everyone: Sequence[HistoryRow]) -> None:
        """Write the numbers of each row."""
        for row in rows:
            writer = self._writer(f"peer-{row['peer_id']}")
            for name, value, at in self._curves.setdefault(row["peer_id"], PeerCurves()).points(row):
                _add(writer, name, value, at)
        for row in everyone:
            for name, value in numbers(row).items():
                _add(self._writer("all"), name, value, row)
        for each in self._writers.values():
            each.flush()

    @override
    def close(self, report: Report) -> None:
        """Write the settings as hyperparameters, beside the results, and the manifest as text."""
        writer = self._writer("all")
        settings = {key: _plain(value) for key, value in self._about.settings.items()}
        names = ("metric_mean", "metric_worst", "cluster_ari", "payload_bytes_sent")
        results = {
            f"result/{name}": float(report.values[name]) for name in names if report.values.get(name) is not None
        }
        if writer.file_writer is not None:
            for summary in hparams(settings, results):
                writer.file_writer.add_summary(summary)
        for name, value in results.items():
            writer.add_scalar(name, value, int(report.values["rounds"]))
        if report.run.manifest is not None:
            writer.add_text("manifest", f"```\n{report.run.manifest.model_dump_json(indent=4)}\n```")
        for each in self._writers.values():
            each.close()

    def _writer(self, name: str) -> SummaryWriter:
        if name not in self._writers:
            with storage_errors("write events to", self._place):
                self._writers[name] = SummaryWriter(str(self._place / name))
        return self._writers[name]


def _add(writer: SummaryWriter, name: str, value: float, row: HistoryRow) -> None:
    at = datetime.fromisoformat(row["time"]).timestamp()
    writer.add_scalar(curve_name(name), value, row["round_index"] + 1, walltime=at)


def _plain(value: object) -> bool | int | float | str:
    """Return a setting in a type that TensorBoard takes as a hyperparameter."""
    return value if isinstance(value, bool | int | float) else str(value)[:HPARAM_CHARACTERS_MAX]

"""TensorBoard: a folder per peer with the numbers of its rounds, and the folder ``all`` with the means over peers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from peer.observe.report import Report
from peer.observe.run_files import metric_curve
from peer.observe.trackers.tracker import Row, Tracker, numbers
from peer.store.files import storage_errors


class TensorBoard(Tracker):
    """Scalars named as the columns of the history; the step is the number of completed rounds.

    Args:
        place: log directory.
    """

    def __init__(self, place: str) -> None:
        self._place = Path(place)
        self._writers: dict[str, SummaryWriter] = {}

    def take(self, rows: Sequence[Row]) -> None:
        """Write the numbers of each row."""
        for row in rows:
            writer, at = self._writer(f"peer-{row['peer_id']}"), datetime.fromisoformat(row["time"]).timestamp()
            for name, value in numbers(row).items():
                writer.add_scalar(name, value, row["round_index"] + 1, walltime=at)
        for each in self._writers.values():
            each.flush()

    def close(self, report: Report) -> None:
        """Write mean, worst and best of the metric over peers, and the settings of the run as text."""
        curve, key = metric_curve(report.run), report.run.metric.key
        writer = self._writer("all")
        for name, values in (("mean", curve.mean), ("worst", curve.worst), ("best", curve.best)):
            for round_index, value in zip(curve.round_index, values, strict=True):
                writer.add_scalar(f"{key}_{name}", value, int(round_index) + 1)
        if report.run.manifest is not None:
            text = report.run.manifest.model_dump_json(indent=4)
            writer.add_text("manifest", f"```\n{text}\n```")
        for each in self._writers.values():
            each.close()

    def _writer(self, name: str) -> SummaryWriter:
        if name not in self._writers:
            with storage_errors("write events to", self._place):
                self._writers[name] = SummaryWriter(str(self._place / name))
        return self._writers[name]

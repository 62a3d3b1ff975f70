"""MLflow: a run for all peers with settings, curves and report, and below it a run per peer with its rounds and its model."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from typing_extensions import override

from peer.view.report.history_table import flat
from peer.view.report.report import Report
from peer.view.trackers.curves import PeerCurves, curve_name, numbers
from peer.view.trackers.tracker import About, HistoryRow, Tracker

EXPERIMENT = "coordinator-free"
TAGS = ("algorithm", "task", "seed", "rounds", "clusters")
PARAM_CHARACTERS_MAX, PARAMS_BATCH = 500, 100  # limits of MLflow's servers
BATCH = 1000  # metrics in one request, the limit of MLflow's servers
# MLflow's word for how a peer, or the run, ended; any other ending is FAILED
_ENDINGS = {"completed": "FINISHED", "complete": "FINISHED", "left": "KILLED", "stopped": "KILLED"}
_FOLDER_ALLOWED = "MLFLOW_ALLOW_FILE_STORE"


class Mlflow(Tracker):
    """Metrics named as the columns of the history, with a group; the step is the number of completed rounds.

    Args:
        place: tracking URI of a server, or a folder.
    """

    def __init__(self, place: str) -> None:
        if "://" not in place:
            os.environ.setdefault(_FOLDER_ALLOWED, "true")  # MLflow refuses folders unless one says so; the user has
        self._client = MlflowClient(tracking_uri=place)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        self._peers: dict[int, str] = {}
        self._curves: dict[int, PeerCurves] = {}

    @override
    def begin(self, about: About) -> None:
        """Start the run of all peers, with the settings as parameters, and those that one searches for as tags."""
        tags = {key: str(about.settings[f"run.{key}"]) for key in TAGS if f"run.{key}" in about.settings}
        self._name, self._all = about.name, self._run(about.name, tags | {"peers": str(about.settings["peers"])})
        params = [Param(key, str(value)[:PARAM_CHARACTERS_MAX]) for key, value in about.settings.items()]
        for first in range(0, len(params), PARAMS_BATCH):
            self._client.log_batch(self._all, params=params[first : first + PARAMS_BATCH])

    @override
    def take(self, rows: Sequence[HistoryRow], everyone: Sequence[HistoryRow]) -> None:
        """Log the numbers of each row."""
        by_peer: dict[int, list[Metric]] = {}
        for row in rows:
            curves = self._curves.setdefault(row["peer_id"], PeerCurves())
            points = by_peer.setdefault(row["peer_id"], [])
            points += [_point(name, value, at) for name, value, at in curves.points(row)]
        for peer_id, metrics in by_peer.items():
            if peer_id not in self._peers:
                self._peers[peer_id] = self._run(f"{self._name} peer-{peer_id}", {"mlflow.parentRunId": self._all})
            self._log(self._peers[peer_id], metrics)
        self._log(self._all, [_point(name, value, row) for row in everyone for name, value in numbers(row).items()])

    @override
    def close(self, report: Report) -> None:
        """Log the report's numbers and each peer's personalized model; end all runs."""
        run = report.run
        values = {key: value for key, value in flat(report.values) if not isinstance(value, bool)}
        now = round(time.time() * 1000)
        rounds = int(report.values["rounds"])
        self._log(
            self._all, [Metric(_key(f"result/{name}"), value, now, rounds) for name, value in numbers(values).items()]
        )
        for peer in run.peers:
            if (run_id := self._peers.get(peer.peer_id)) is None:
                continue
            if peer.state_dir.personalized_model.is_file():
                self._client.log_artifact(run_id, str(peer.state_dir.personalized_model), "models")
            self._client.set_terminated(run_id, _ENDINGS.get(peer.status, "FAILED"))
        self._client.set_terminated(self._all, _ENDINGS.get(report.values["state"], "FAILED"))

    def _run(self, name: str, tags: dict[str, str] | None = None) -> str:
        made: Any = self._client.create_run(self._experiment, run_name=name, tags=tags or {})
        return str(made.info.run_id)

    def _log(self, run_id: str, metrics: list[Metric]) -> None:
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(run_id, metrics=metrics[first : first + BATCH])


def _point(name: str, value: float, row: HistoryRow) -> Metric:
    at = round(datetime.fromisoformat(row["time"]).timestamp() * 1000)
    return Metric(_key(curve_name(name)), value, at, row["round_index"] + 1)


def _key(name: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return "".join(c if c.isalnum() or c in "_-./ :" else "_" for c in name)

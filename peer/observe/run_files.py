"""Read a run directory: ``graph.json`` and ``peer-<id>/`` of a finished, running or interrupted run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import StorageError, UsageError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.graph_file import load_graph
from peer.store.files import storage_error
from peer.store.history import read_history
from peer.store.identity_files import held_by
from peer.store.state_dir import StateDir

Record = dict[str, Any]


@dataclass(frozen=True)
class PeerRun:
    """The files of one peer.

    Attributes:
        history: all complete lines of all incarnations, in file order.
        summary: ``summary.json``; {} if there is none.
        held: whether a process has locked the state directory.
    """

    peer_id: int
    place: StateDir
    history: list[Record]
    summary: Record
    held: bool

    @classmethod
    def read(cls, directory: Path, peer_id: int) -> PeerRun:
        """Read peer `peer_id`'s files; a peer that never started has an empty history.

        Raises:
            StorageError: a file exists and cannot be read.
        """
        place = StateDir.of_peer(directory, peer_id)
        history = read_history(place.history)
        return cls(peer_id, place, history, _read_summary(place.summary), held_by(place.root) is not None)

    @cached_property
    def round_lines(self) -> list[Record]:
        """All round lines, including rounds that a resumed peer repeated."""
        return [line for line in self.history if line["kind"] == "round"]

    @cached_property
    def rounds(self) -> dict[int, Record]:
        """round_index -> its last line, which is the result of the round."""
        return {int(line["round_index"]): line for line in self.round_lines}

    @cached_property
    def last(self) -> Record:
        """The latest value of each field: from the summary, else the end line, the rounds, the start line."""
        last_round = self.round_lines[-1] if self.round_lines else {}
        evaluated = next((line for line in reversed(self.round_lines) if line.get("accuracy") is not None), {})
        found: Record = {}
        ended = (self._last_of("end"), self.summary) if self.status not in ("running", "cut") else ()
        for source in (
            self._last_of("start"),
            evaluated,
            last_round,
            *ended,
        ):  # without an end line that an earlier incarnation wrote
            found.update({key: value for key, value in source.items() if value is not None})
        return found

    @property
    def rounds_completed(self) -> int:
        """Completed rounds, including rounds skipped by catching up."""
        return int(self.last.get("rounds_completed", self.last.get("round_index", -1) + 1))

    @cached_property
    def status(self) -> str:
        """``missing``, ``running``, ``cut`` (no process and no end line), ``left``, ``completed``, or the summary's status."""
        if not self.history:
            return "running" if self.held else "missing"
        ends = [line["kind"] for line in self.history if line["kind"] in ("start", "leave", "end")]
        if ends and ends[-1] != "start":
            return str(self.summary.get("status") or {"end": "completed", "leave": "left"}[ends[-1]])
        return "running" if self.held else "cut"

    def total(self, key: str) -> float:
        """Return the sum of a counter over all round, end and leave lines."""
        counting = ("round", "end", "leave")
        return sum(line.get(key) or 0 for line in self.history if line["kind"] in counting)

    def series(self, key: str) -> list[tuple[int, float]]:
        """Return (round_index, value) of each round with a value, ascending."""
        return [(r, line[key]) for r, line in sorted(self.rounds.items()) if line.get(key) is not None]

    def _last_of(self, kind: str) -> Record:
        return next((line for line in reversed(self.history) if line["kind"] == kind), {})


@dataclass(frozen=True)
class Metric:
    """The task's metric, whose values are called ``accuracy`` in records."""

    name: str = "accuracy"
    higher_is_better: bool = True

    @property
    def is_accuracy(self) -> bool:
        """Whether the metric is a share in [0, 1]."""
        return self == Metric()

    def worst(self, values: np.ndarray) -> float:
        """Return the worst of the values."""
        return float(values.min() if self.higher_is_better else values.max())

    def best(self, values: np.ndarray) -> float:
        """Return the best of the values."""
        return float(values.max() if self.higher_is_better else values.min())

    def reaches(self, values: np.ndarray, target: float) -> np.ndarray:
        """Return which values are at least as good as a target, bool [n]."""
        return values >= target if self.higher_is_better else values <= target


@dataclass(frozen=True)
class Run:
    """A run directory: the graph and the files of each peer."""

    directory: Path
    graph: Graph
    peers: tuple[PeerRun, ...]

    @classmethod
    def read(cls, directory: Path) -> Run:
        """Read a run directory.

        Raises:
            UsageError: the directory is not that of a run.
            GraphError: the graph file is not valid.
            StorageError: a file exists and cannot be read.
        """
        directory = Path(directory)
        if not (directory / "graph.json").is_file():
            raise UsageError(f"{directory}: found no graph.json; name the --out directory of peer testbed")
        graph = load_graph(directory / "graph.json")
        return cls(directory, graph, tuple(PeerRun.read(directory, peer_id) for peer_id in graph.ids))

    @cached_property
    def metric(self) -> Metric:
        """The metric in the start lines of the peers; accuracy if they have none."""
        for peer in self.peers:
            known = peer.last.get("digests") or {}
            if "metric" in known:
                return Metric(str(known["metric"]), known.get("metric_better") != "lower")
        return Metric()

    def latest(self, key: str) -> list[Any]:
        """Return the latest value of a field of each peer with a value, by peer id."""
        return [peer.last[key] for peer in self.peers if peer.last.get(key) is not None]


@dataclass(frozen=True)
class Curve:
    """The metric over a run; all arrays are float64 [number of evaluated rounds].

    Attributes:
        round_index: rounds with at least one evaluation.
        mean, worst, best: over the peers that evaluated in the round.
        payload_bytes: payload bytes sent until the end of the round, mean over these peers.
        seconds: since the peer opened its history, mean over these peers.
    """

    round_index: np.ndarray
    mean: np.ndarray
    worst: np.ndarray
    best: np.ndarray
    payload_bytes: np.ndarray
    seconds: np.ndarray


def accuracy_curve(run: Run) -> Curve:
    """Return the metric of the peers over rounds, bytes and seconds."""
    points: dict[int, list[tuple[float, float, float]]] = {}
    for peer in run.peers:
        sent, at_round = 0.0, {}
        for line in peer.round_lines:
            sent += line.get("payload_bytes_sent") or 0
            at_round[int(line["round_index"])] = sent
        for round_index, accuracy in peer.series("accuracy"):
            seconds = peer.rounds[round_index].get("t") or 0.0
            points.setdefault(round_index, []).append((accuracy, at_round[round_index], seconds))
    rounds, metric = sorted(points), run.metric
    rows = [np.array(points[r], dtype=float) for r in rounds]  # each [peers, 3]
    statistics = [
        (row[:, 0].mean(), metric.worst(row[:, 0]), metric.best(row[:, 0]), row[:, 1].mean(), row[:, 2].mean())
        for row in rows
    ]
    table = np.array(statistics, dtype=float).reshape(len(rounds), 5)
    return Curve(np.array(rounds, dtype=float), *table.T)


def _read_summary(path: Path) -> Record:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error("read", path, error) from error
    except ValueError as error:
        raise StorageError(f"{path}: found no valid JSON ({error}); it was changed after the run; remove it") from error
    return value if isinstance(value, dict) else {}

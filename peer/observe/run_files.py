"""A run directory, read: ``graph.json`` and ``peer-<id>/...`` of a testbed that ended, still runs, or was cut."""

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
    """What one peer left on disk.

    Attributes:
        history: all complete lines, of all lives, in file order.
        summary: ``summary.json``; {} if the peer has not ended.
        held: whether a process uses the state directory now.
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
        """Every round line, also of rounds that a resumed peer repeated: what was really sent and spent."""
        return [line for line in self.history if line["kind"] == "round"]

    @cached_property
    def rounds(self) -> dict[int, Record]:
        """round_index -> its last line: what counts as the round's result."""
        return {int(line["round_index"]): line for line in self.round_lines}

    @cached_property
    def last(self) -> Record:
        """The latest known value of each field: of the summary, else the end, the rounds, the start."""
        last_round = self.round_lines[-1] if self.round_lines else {}
        evaluated = next((line for line in reversed(self.round_lines) if line.get("accuracy") is not None), {})
        found: Record = {}
        ended = (self._last_of("end"), self.summary) if self.status not in ("running", "cut") else ()
        for source in (self._last_of("start"), evaluated, last_round, *ended):  # an end before the last start is old
            found.update({key: value for key, value in source.items() if value is not None})
        return found

    @property
    def rounds_completed(self) -> int:
        """Rounds behind this peer, also those that it missed and caught up with."""
        return int(self.last.get("rounds_completed", self.last.get("round_index", -1) + 1))

    @cached_property
    def status(self) -> str:
        """``missing``, ``running``, ``cut`` (no process, no end), ``left``, ``completed``, or the summary's word."""
        if not self.history:
            return "running" if self.held else "missing"
        ends = [line["kind"] for line in self.history if line["kind"] in ("start", "leave", "end")]
        if ends and ends[-1] != "start":
            return str(self.summary.get("status") or {"end": "completed", "leave": "left"}[ends[-1]])
        return "running" if self.held else "cut"

    def total(self, key: str) -> float:
        """Return the sum of a counter over all rounds and lives, and over what came after the last round."""
        counting = ("round", "end", "leave")
        return sum(line.get(key) or 0 for line in self.history if line["kind"] in counting)

    def series(self, key: str) -> list[tuple[int, float]]:
        """Return (round_index, value) of every round that has a value, ascending."""
        return [(r, line[key]) for r, line in sorted(self.rounds.items()) if line.get(key) is not None]

    def _last_of(self, kind: str) -> Record:
        return next((line for line in reversed(self.history) if line["kind"] == kind), {})


@dataclass(frozen=True)
class Metric:
    """What the numbers called ``accuracy`` in records are: the task's metric."""

    name: str = "accuracy"
    higher_is_better: bool = True

    @property
    def is_accuracy(self) -> bool:
        """Whether it is a share in [0, 1]."""
        return self == Metric()

    def worst(self, values: np.ndarray) -> float:
        """Return the worst of the values."""
        return float(values.min() if self.higher_is_better else values.max())

    def best(self, values: np.ndarray) -> float:
        """Return the best of the values."""
        return float(values.max() if self.higher_is_better else values.min())

    def reaches(self, values: np.ndarray, target: float) -> np.ndarray:
        """Return which of the values are as good as a target, bool [n]."""
        return values >= target if self.higher_is_better else values <= target


@dataclass(frozen=True)
class Run:
    """A run directory: the graph, and what each peer left."""

    directory: Path
    graph: Graph
    peers: tuple[PeerRun, ...]

    @classmethod
    def read(cls, directory: Path) -> Run:
        """Read a run directory.

        Raises:
            UsageError: the directory is none of a run.
            GraphError: its graph file is not valid.
            StorageError: a file exists and cannot be read.
        """
        directory = Path(directory)
        if not (directory / "graph.json").is_file():
            raise UsageError(f"{directory}: no graph.json in it; give the --out directory of a peer testbed")
        graph = load_graph(directory / "graph.json")
        return cls(directory, graph, tuple(PeerRun.read(directory, peer_id) for peer_id in graph.ids))

    @cached_property
    def metric(self) -> Metric:
        """The metric that the peers have recorded at their start; accuracy where none has."""
        for peer in self.peers:
            known = peer.last.get("digests") or {}
            if "metric" in known:
                return Metric(str(known["metric"]), known.get("metric_better") != "lower")
        return Metric()

    def latest(self, key: str) -> list[Any]:
        """Return the latest value of a field of each peer that has one, in the order of peer ids."""
        return [peer.last[key] for peer in self.peers if peer.last.get(key) is not None]


@dataclass(frozen=True)
class Curve:
    """Accuracy, or the task's own metric, over a run; all arrays are float64 [number of evaluated rounds].

    Attributes:
        round_index: rounds in which at least one peer evaluated.
        mean, worst, best: of the metric over the peers that evaluated in the round.
        payload_bytes: cumulative payload bytes sent up to the end of the round, mean over these peers.
        seconds: seconds since a peer's start of writing, mean over these peers.
    """

    round_index: np.ndarray
    mean: np.ndarray
    worst: np.ndarray
    best: np.ndarray
    payload_bytes: np.ndarray
    seconds: np.ndarray


def accuracy_curve(run: Run) -> Curve:
    """Return the accuracy of the peers over rounds, bytes and seconds."""
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
        raise StorageError(f"{path} is no JSON ({error}); it was changed after the run, remove it") from error
    return value if isinstance(value, dict) else {}

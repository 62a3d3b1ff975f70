"""Read what a run left: a testbed's directory, one state directory, or several in a folder, with or without ``graph.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import numpy as np

from coordinator_free_bootstrap import Manifest, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, StorageError, UsageError
from coordinator_free_bootstrap.graph import Graph
from peer.core.metric import Metric
from peer.store.model_file import load_model
from peer.store.records import KINDS, NO_STATE, AlgorithmFields, HistoryLine, Latest, RoundLine, Summary
from peer.store.state_dir import StateDir
from peer.view.state.peer_state import PeerState
from peer.view.state.places import PLACES
from peer.view.state.reducer import EventLog
from peer.view.state.tail import PeerTail, RunTail
from peer.view.state.view import algorithm_of, metric_of

NumberField = Literal[  # of `Latest`
    "metric_value", "metric_shared", "metric_before_final", "metric_after_final", "cluster_index", "true_cluster"
]


@dataclass(frozen=True)
class PeerRun:
    """The files of one peer, and its state after the last of them.

    Attributes:
        history: all complete and valid lines of all incarnations, in file order.
        state: the fold of all its events; what is not an attribute here is one of the state.
        problems: a sentence about the lines that could not be read, and about a summary that is not used.
    """

    peer_id: int
    state_dir: StateDir
    history: list[HistoryLine]
    state: PeerState
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path, peer_id: int) -> PeerRun:
        """Read the files of `peer_id` in ``directory/peer-<id>``; see `of`."""
        return cls.of(peer_id, StateDir.of_peer(directory, peer_id))

    @classmethod
    def of(cls, peer_id: int, state_dir: StateDir) -> PeerRun:
        """Read a state directory; a peer that never started has an empty history.

        Raises:
            StorageError: a file exists and cannot be read.
        """
        tail, log = PeerTail(peer_id, state_dir), EventLog([peer_id])
        log.append(tail.read())
        return cls.from_log(log, tail)

    @classmethod
    def from_log(cls, log: EventLog, tail: PeerTail) -> PeerRun:
        """Return what a log has of one peer."""
        history = [cast(HistoryLine, event.data) for event in log.events(tail.peer_id) if event.kind in KINDS]
        return cls(tail.peer_id, tail.state_dir, history, log.newest(tail.peer_id).copy(), tuple(tail.problems))

    @cached_property
    def round_lines(self) -> list[RoundLine]:
        """All round lines, including rounds that a resumed peer repeated."""
        return [line for line in self.history if line["kind"] == "round"]

    @cached_property
    def rounds(self) -> dict[int, RoundLine]:
        """round_index -> its last line, which is the result of the round."""
        return {line["round_index"]: line for line in self.round_lines}

    @property
    def last(self) -> Latest:
        """The latest value of each field; see `PeerState.last`."""
        return self.state.last

    @property
    def algorithm_state(self) -> AlgorithmFields:
        """What it last wrote of the algorithm's state; {} without one."""
        return self.last.get("state") or NO_STATE

    @property
    def held(self) -> bool:
        """Whether a process has locked the state directory."""
        return bool(self.state.held)

    @property
    def summary(self) -> Summary:
        """``summary.json``; {} if there is none, or not a valid one."""
        return self.state.summary

    @cached_property
    def status(self) -> str:
        """See `PeerState.status`."""
        return self.state.status

    @property
    def rounds_completed(self) -> int:
        """Completed rounds, including rounds skipped by catching up."""
        return self.state.rounds_completed

    def series(self, key: Literal["metric_train", "cluster_index"]) -> list[tuple[int, float]]:
        """Return (round_index, value) of each round with a value, ascending."""
        values = ((r, line.get(key)) for r, line in sorted(self.rounds.items()))
        return [(r, value) for r, value in values if value is not None]


@dataclass(frozen=True)
class RunFiles:
    """What a run left: the graph and the files of each peer.

    Attributes:
        graph: None if there is no graph file.
        log: the events of all files; its `problems` say what could not be read.
        found: how the files were found, if it is not the directory of a testbed; and which of them are not used.
    """

    directory: Path
    graph: Graph | None
    peers: tuple[PeerRun, ...]
    log: EventLog
    found: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, directory: Path) -> RunFiles:
        """Read a folder with ``graph.json`` and state directories, with state directories alone, or one state directory.

        Raises:
            UsageError: there is no state directory; the message says where they were looked for.
            GraphError: the graph file is not valid.
            StorageError: a file exists and cannot be read.
        """
        tail = RunTail(directory)
        tail.refresh()
        return cls.of(tail)

    @classmethod
    def of(cls, tail: RunTail) -> RunFiles:
        """Return what was read so far; raises UsageError if there is no state directory."""
        directory, graph = tail.directory, tail.graph
        peers = tuple(PeerRun.from_log(tail.log, tail.peers[peer_id]) for peer_id in sorted(tail.peers))
        notes = [*tail.notes]
        looked = "history.jsonl and summary.json in it, in its folders and in theirs"
        if graph is None:
            if not peers:
                raise UsageError(f"{directory}: expected {PLACES}, got no graph.json and no state directory ({looked})")
            count = f"{len(peers)} state director{'y' if len(peers) == 1 else 'ies'}"
            notes.insert(0, f"{count} and no graph.json: peers without a state directory here are not known")
            return cls(directory, None, peers, tail.log, notes)
        if all(peer.status == "missing" for peer in peers):
            raise UsageError(
                f"{directory}: expected a state directory of one of the {len(peers)} peers in graph.json ({looked}), got none. "
                "Copy the state directories there, or wait until a peer has started."
            )
        others = [
            peer
            for peer in peers
            if peer.status != "missing" and peer.state_dir != StateDir.of_peer(directory, peer.peer_id)
        ]
        if others:
            notes.insert(
                0, f"{len(others)} state directories are known by their content, e.g. {others[0].state_dir.root}"
            )
        return cls(directory, graph, peers, tail.log, notes)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest in the graph file, else in a model file; None if there is neither."""
        if self.graph is not None:
            return self.graph.manifest
        for path in (path for peer in self.peers for path in sorted(peer.state_dir.models.glob("*.safetensors"))):
            try:
                return parse_manifest(json.loads(load_model(path)[1]["manifest"]), str(path))
            except (StorageError, ConfigError, KeyError, ValueError):
                continue
        return None

    @property
    def algorithm(self) -> str | None:
        """The name of the algorithm; None if no file has it."""
        if self.manifest is not None:
            return self.manifest.algorithm
        return algorithm_of(self.graph, (peer.state for peer in self.peers))

    @property
    def clusters(self) -> int:
        """The number of models of a peer: of the manifest, else as many as a peer has left."""
        if self.manifest:
            return self.manifest.clusters
        return max((len(list(peer.state_dir.models.glob("cluster-*.safetensors"))) for peer in self.peers), default=0)

    @cached_property
    def metric(self) -> Metric:
        """The metric in the start lines of the peers; accuracy if they have none."""
        return metric_of(peer.state for peer in self.peers)

    def latest(self, key: NumberField) -> list[float]:
        """Return the latest value of a field of each peer with a value, by peer id."""
        return [value for peer in self.peers if (value := peer.last.get(key)) is not None]


@dataclass(frozen=True)
class Curve:
    """The metric over a run; all arrays are float64 [number of evaluated rounds].

    Attributes:
        round_index: rounds with at least one evaluation.
        mean, worst, best: over the peers that evaluated in the round.
        payload_bytes: payload bytes sent until the end of the round, mean over these peers.
        seconds: since the peer opened its history, mean over these peers.
        peers: how many these are.
    """

    round_index: np.ndarray
    mean: np.ndarray
    worst: np.ndarray
    best: np.ndarray
    payload_bytes: np.ndarray
    seconds: np.ndarray
    peers: np.ndarray


def metric_curve(run: RunFiles) -> Curve:
    """Return the metric of the peers over rounds, bytes and seconds."""
    metric, evaluated = run.metric, {}
    for index, cells in sorted(run.log.rounds.items()):
        points = [(cell.metric, cell.payload_bytes, cell.seconds) for cell in cells.values() if cell.metric is not None]
        if points:
            evaluated[index] = np.array(points, dtype=float)  # [peers, 3]
    rounds, rows = list(evaluated), evaluated.values()
    statistics = [
        (
            row[:, 0].mean(),
            metric.worst(row[:, 0]),
            metric.best(row[:, 0]),
            row[:, 1].mean(),
            row[:, 2].mean(),
            len(row),
        )
        for row in rows
    ]
    table = np.array(statistics, dtype=float).reshape(len(rounds), 6)
    return Curve(np.array(rounds, dtype=float), *table.T)

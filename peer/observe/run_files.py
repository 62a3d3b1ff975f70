"""Read what a run left: a testbed's directory, one state directory, or several in a folder, with or without ``graph.json``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap import Manifest, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, StorageError, UsageError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.graph_file import load_graph
from coordinator_free_bootstrap.strict_json import printable
from peer.core.metric import Metric
from peer.observe.records import Record, Summary, problem_of, problem_of_line, usable
from peer.store.files import storage_error, storage_errors
from peer.store.history import parse_lines, read_history
from peer.store.identity_files import held_by
from peer.store.model_file import load_model
from peer.store.state_dir import StateDir

START_BYTES_MAX = 1 << 20  # of a history file, in which its start line is
_NAME = re.compile(r"peer-(\d{1,10})\Z")


@dataclass(frozen=True)
class PeerRun:
    """The files of one peer.

    Attributes:
        history: all complete and valid lines of all incarnations, in file order.
        summary: ``summary.json``; {} if there is none, or not a valid one.
        held: whether a process has locked the state directory.
        problems: a sentence for each line that is not used, and for a summary that is not.
    """

    peer_id: int
    place: StateDir
    history: list[Record]
    summary: Record
    held: bool
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path, peer_id: int) -> PeerRun:
        """Read the files of `peer_id` in ``directory/peer-<id>``; see `of`."""
        return cls.of(peer_id, StateDir.of_peer(directory, peer_id))

    @classmethod
    def of(cls, peer_id: int, place: StateDir) -> PeerRun:
        """Read a state directory; a peer that never started has an empty history.

        Raises:
            StorageError: a file exists and cannot be read.
        """
        problems: list[str] = []
        history = usable(str(place.history), read_history(place.history), problems)
        summary = _read_summary(place.summary, problems)
        return cls(peer_id, place, history, summary, held_by(place.root) is not None, tuple(problems))

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
        measured = {"accuracy": (self.summary.get("metric") or {}).get("value")}
        ended = (self._last_of("end"), measured, self.summary) if self.status not in ("running", "cut") else ()
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
        said = self.summary.get("status")
        if not self.history:
            return "running" if self.held else str(said or "missing")
        ends = [line["kind"] for line in self.history if line["kind"] in ("start", "leave", "end")]
        if ends and ends[-1] != "start":
            return str(said or {"end": "completed", "leave": "left"}[ends[-1]])
        if self.held:
            return "running"
        ended = said and self.summary.get("incarnation") == self._last_of("start").get("incarnation")
        return str(said) if ended else "cut"

    @cached_property
    def refusals(self) -> dict[str, int]:
        """Refused messages by code: from the summary, else from the history, which has a few lines a minute of each kind."""
        if self.summary.get("refusals") and self.status not in ("running", "cut"):
            return dict(self.summary["refusals"])
        return dict(Counter(line["code"] for line in self.history if line["kind"] == "refused"))

    @cached_property
    def met_neighbor(self) -> bool:
        """Whether a neighbor was ever alive."""
        return any(
            line.get("state") == "alive" if line["kind"] == "neighbor" else line.get("neighbors_alive")
            for line in self.history
            if line["kind"] in ("neighbor", "round")
        )

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
class Run:
    """What a run left: the graph and the files of each peer.

    Attributes:
        graph: None if there is no graph file.
        found: how the files were found, if it is not the directory of a testbed; and what is not used.
    """

    directory: Path
    graph: Graph | None
    peers: tuple[PeerRun, ...]
    found: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, directory: Path) -> Run:
        """Read a folder with ``graph.json`` and state directories, with state directories alone, or one state directory.

        Raises:
            UsageError: there is no state directory; the message says where they were looked for.
            GraphError: the graph file is not valid.
            StorageError: a file exists and cannot be read.
        """
        directory = Path(directory)
        allowed = "the --out of peer testbed, the --state-dir of peer run, or a folder with state directories"
        if not directory.is_dir():
            raise UsageError(f"{directory}: found no such directory; allowed: {allowed}")
        notes: list[str] = []
        places = state_directories(directory, notes)
        looked = "history.jsonl and summary.json in it, in its folders and in theirs"
        if not (directory / "graph.json").is_file():
            if not places:
                raise UsageError(
                    f"{directory}: found no graph.json and no state directory ({looked}); allowed: {allowed}"
                )
            count = f"{len(places)} state director{'y' if len(places) == 1 else 'ies'}"
            notes.insert(0, f"found {count} and no graph.json: peers without a state directory here are not known")
            return cls(directory, None, _read_peers(places, notes), notes)
        graph = load_graph(directory / "graph.json")
        if strangers := [peer_id for peer_id in places if peer_id not in graph.ids]:
            notes.append(f"peer {listed(strangers)}: not in graph.json; not used")
        used = {peer_id: places.get(peer_id) or StateDir.of_peer(directory, peer_id) for peer_id in graph.ids}
        peers = _read_peers(used, notes)
        if all(peer.status == "missing" for peer in peers):
            raise UsageError(
                f"{directory}: found graph.json and no state directory of its {len(peers)} peers ({looked}); copy the "
                "state directories there, or wait until a peer has started"
            )
        others = [
            peer for peer in peers if peer.peer_id in places and peer.place != StateDir.of_peer(directory, peer.peer_id)
        ]
        if others:
            notes.insert(0, f"found {len(others)} state directories by their content, e.g. {others[0].place.root}")
        return cls(directory, graph, peers, notes)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest in the graph file, else in a model file; None if there is neither."""
        if self.graph is not None:
            return self.graph.manifest
        for path in (path for peer in self.peers for path in sorted(peer.place.models.glob("*.safetensors"))):
            try:
                return parse_manifest(json.loads(load_model(path)[1]["manifest"]), str(path))
            except (StorageError, ConfigError, KeyError, ValueError):
                continue
        return None

    @property
    def algorithm(self) -> str | None:
        """The name of the algorithm; None if no file has it."""
        said = (peer.summary.get("algorithm") for peer in self.peers)
        return self.manifest.algorithm if self.manifest else next((str(name) for name in said if name), None)

    @property
    def clusters(self) -> int:
        """The number of models of a peer: of the manifest, else as many as a peer has left."""
        if self.manifest:
            return self.manifest.clusters
        return max((len(list(peer.place.models.glob("cluster-*.safetensors"))) for peer in self.peers), default=0)

    @cached_property
    def metric(self) -> Metric:
        """The metric in the start lines or summaries of the peers; accuracy if they have none."""
        known = (peer.last.get("metric") for peer in self.peers)
        return next((Metric.from_json(metric) for metric in known if metric), Metric())

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


def metric_curve(run: Run) -> Curve:
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


def state_directories(directory: Path, notes: list[str] | None = None) -> dict[int, StateDir]:
    """Return the state directories of peers in a directory, by peer id: the directory itself, its folders, or theirs.

    A state directory has a ``history.jsonl`` or a ``summary.json``. The id is in them, else in the name ``peer-<id>``.

    Args:
        directory: where to look.
        notes: gets a sentence for each state directory that is not used.
    """
    found: dict[int, StateDir] = {}
    for root in _state_roots(Path(directory)):
        place = StateDir(root)
        peer_id = _peer_id(place)
        if peer_id is None or peer_id in found:
            reason = "its peer id is not known" if peer_id is None else f"peer {peer_id} has {found[peer_id].root} too"
            if notes is not None:
                notes.append(f"{root}: not used: {reason}")
            continue
        found[peer_id] = place
    return dict(sorted(found.items()))


def listed(ids: list[int]) -> str:
    """Return peer ids as text, at most ten of them."""
    return ", ".join(map(str, ids[:10])) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")


def _state_roots(directory: Path, depth: int = 2) -> Iterator[Path]:
    if any((directory / name).is_file() for name in ("history.jsonl", "summary.json")):
        yield directory
    elif depth:
        with storage_errors("read", directory):
            folders = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
        for folder in sorted(folders, key=lambda path: _NAME.match(path.name) is None):  # peer-<id> first
            yield from _state_roots(folder, depth - 1)


def _peer_id(place: StateDir) -> int | None:
    if place.history.is_file():
        with storage_errors("read", place.history), open(place.history, "rb") as file:
            data = file.read(START_BYTES_MAX)
        for line in parse_lines(data):
            if line["kind"] == "start" and line.get("peer_id") is not None and not problem_of_line(line):
                return int(line["peer_id"])
    said = _read_summary(place.summary, []).get("peer_id")
    named = _NAME.match(place.root.resolve().name)
    return int(named[1]) if said is None and named else said


def _read_peers(places: dict[int, StateDir], notes: list[str]) -> tuple[PeerRun, ...]:
    peers = tuple(PeerRun.of(peer_id, place) for peer_id, place in places.items())
    notes += [problem for peer in peers for problem in peer.problems]
    return peers


def _read_summary(path: Path, problems: list[str]) -> Record:
    try:
        value = json.loads(path.read_bytes(), parse_constant=lambda _: None)  # a NaN of an earlier release is null
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{path}: found no valid JSON ({printable(str(error))}); it was changed after the run; remove it"
        ) from error
    if problem := problem_of(value, Summary):
        problems.append(f"{path}: not used: {problem}")
        return {}
    return dict(value)

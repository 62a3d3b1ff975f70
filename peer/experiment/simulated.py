"""The `simulated` backend: all peers of a run in one process, real engine, real training, no sockets.

In lockstep on a CPU it gives, bit for bit, the models of a testbed of processes, and it leaves the same run directory
behind, so that `peer report` reads it. Memory: the data set once, one model of working memory for all, k models a peer (those
that are still equal, once), and what is under way in a round.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap import Graph, canonical_json, digest, save_graph
from peer.algorithms.base import Bench
from peer.algorithms.registry import algorithm_named
from peer.assembly import device_named, majority, metric_of
from peer.core.averaging import Vector
from peer.core.engine import Engine
from peer.core.messages import WIRE_VERSION
from peer.core.model_store import ModelStore
from peer.experiment.network import SimulatedPeer, VirtualNetwork, perform_in_turn
from peer.experiment.recording import Recording
from peer.experiment.together import Together
from peer.learning.flat import FlatModule
from peer.learning.learner import Learner
from peer.results import write_results
from peer.store.state_dir import StateDir
from peer.tasks.loading import load_task
from peer.tasks.task import Task
from peer.wire.codec import payload_size

OnRound = Callable[[int, float | None], None]


@dataclass(frozen=True)
class SimulatedSettings:
    """Local choices of a simulated run.

    Attributes:
        data_root: where built-in data sets lie.
        device: of training and evaluation: "cpu", "cuda", or "auto".
        threads: PyTorch threads; more than one may change the last bits.
        stacked: train all peers' models of a round as one; None: on a GPU.
        fold_threads: receivers that fold at the same time; never changes a bit.
        models: whether the cluster models are written at the end.
    """

    data_root: Path | None = None
    device: str = "cpu"
    threads: int = 1
    stacked: bool | None = None
    fold_threads: int = 1
    models: bool = True


def simulate(
    graph: Graph,
    directory: Path | None,
    settings: SimulatedSettings | None = None,
    on_round: OnRound = lambda completed, accuracy: None,
) -> dict[int, SimulatedPeer]:
    """Run all peers of a graph to their end and return them.

    Args:
        graph: peers, edges and manifest.
        directory: where the run directory goes, replacing an earlier one; None writes nothing.
        settings: local choices.
        on_round: told, each time every peer has completed a round, how many and their mean accuracy.

    Raises:
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
        StorageError: the run directory cannot be written.
    """
    settings = settings or SimulatedSettings()
    peers = simulated_peers(graph, settings)
    stacked = settings.stacked if settings.stacked is not None else device_named(settings.device) != "cpu"
    watch = RoundWatch(len(peers), on_round)
    began = time.monotonic()
    network = VirtualNetwork(
        peers,
        perform_all=Together().perform if stacked else perform_in_turn,
        on_record=watch.record,
        fold_threads=settings.fold_threads,
    )
    network.run()
    if directory is not None:
        write_run(graph, directory, peers, time.monotonic() - began, models=settings.models)
    return peers


def simulated_peers(graph: Graph, settings: SimulatedSettings) -> dict[int, SimulatedPeer]:
    """Return the peers of a graph before their first round; those that start with equal models share the arrays."""
    import torch

    torch.set_num_threads(settings.threads)
    manifest = graph.manifest
    factory = algorithm_named(manifest.algorithm)
    task = load_task(manifest, len(graph.nodes), data_root=settings.data_root)
    model: FlatModule | None = None
    common: list[Vector] | None = None
    peers: dict[int, SimulatedPeer] = {}
    for peer_id in graph.ids:
        algorithm = factory(manifest, peer_id, graph)
        learner, truth = _learner(task, peer_id, device_named(settings.device), manifest.batch_size, model)
        model = learner.model
        if common is None:
            initial, is_common = algorithm.initial_models(learner)  # type: ignore[arg-type]
            common = initial if is_common else None
        else:
            initial, is_common = list(common), True
        models = ModelStore(initial, batch=manifest.aggregation == "batch", spare_max=0)
        if is_common:
            for slot in range(len(initial)):
                models.share(slot)
        bench = Bench(
            manifest=manifest,
            peer_id=peer_id,
            graph=graph,
            learner=learner,  # type: ignore[arg-type]
            models=models,
            facts={},
            true_cluster=truth,
        )
        bench.facts = algorithm.begin(bench)
        model_bytes = payload_size(learner.schema, manifest.encoding)
        engine = Engine(peer_id, graph, algorithm, 1, model_bytes=model_bytes, facts=dict(bench.facts))
        digests = {
            "wire_version": str(WIRE_VERSION),
            "manifest": digest(manifest),
            "graph": graph.digest,
            "schema": learner.schema.digest,
            **metric_of(task),
            "initial_models": _digest_of(initial) if is_common and not peers else "",
        }
        if is_common and peers:
            digests["initial_models"] = next(iter(peers.values())).digests["initial_models"]
        peers[peer_id] = SimulatedPeer(
            graph=graph,
            algorithm=algorithm,
            bench=bench,
            schema=learner.schema,
            engine=engine,
            digests=digests,
            manifest_json=canonical_json(manifest),
            recording=Recording(),
            true_cluster=majority(truth),
        )
        _record_start(peers[peer_id])
    return peers


def _learner(task: Task, peer_id: int, device: str, batch_size: int, model: FlatModule | None) -> tuple[Learner, Any]:
    learner = Learner(task, task.load_shard(peer_id), device=device, batch_size=batch_size, model=model)
    return learner, learner.shard.true_cluster


def _record_start(peer: SimulatedPeer) -> None:
    peer.recording.add(
        "start",
        {
            "peer_id": peer.engine.peer_id,
            "backend": "simulated",
            "notes": peer.algorithm.notes(peer.bench),
            "digests": peer.digests,
            "true_cluster": peer.true_cluster,
            "samples": peer.bench.learner.count(),
            "parameters": peer.schema.size,
        },
    )


class RoundWatch:
    """Counts the peers that have completed a round, and averages their accuracies."""

    def __init__(self, peers: int, on_round: OnRound) -> None:
        self._peers, self._on_round = peers, on_round
        self._seen: dict[int, list[float | None]] = {}

    def record(self, peer: SimulatedPeer, kind: str, fields: dict[str, Any]) -> None:
        """Take note of one history line."""
        if kind != "round":
            return
        seen = self._seen.setdefault(int(fields["round_index"]), [])
        seen.append(fields.get("accuracy"))
        if len(seen) == self._peers:
            known = [accuracy for accuracy in seen if accuracy is not None]
            self._on_round(int(fields["round_index"]) + 1, float(np.mean(known)) if known else None)
            del self._seen[int(fields["round_index"])]


def write_run(graph: Graph, directory: Path, peers: dict[int, SimulatedPeer], seconds: float, *, models: bool) -> None:
    """Write the run directory of ended peers, as a testbed would have left it.

    Raises:
        StorageError: a file cannot be written.
    """
    for old in directory.glob("peer-*"):
        shutil.rmtree(old)
    directory.mkdir(parents=True, exist_ok=True)
    save_graph(graph, directory / "graph.json")
    for peer_id, peer in peers.items():
        peer.state_dir = StateDir.of_peer(directory, peer_id)
        peer.state_dir.create()
        peer.recording.write(peer.state_dir)
        write_results(peer, peer.status, peer.last_round, seconds, models=models)


def _digest_of(models: list[Vector]) -> str:
    state = hashlib.sha256()
    for model in models:
        state.update(model.data.cast("B"))
    return state.hexdigest()

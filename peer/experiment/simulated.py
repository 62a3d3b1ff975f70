"""The `simulated` backend: all peers of a run in one process, real engine, real training, no sockets.

In lockstep on a CPU it gives, bit for bit, the models of a testbed of processes, and it leaves the same run directory
behind, so that `peer report` reads it. Memory: the data set once, one model of working memory for all, k models a peer (those
that are still equal, once), and what is under way in a round.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap import Graph, save_graph
from coordinator_free_bootstrap.errors import ShardError, UsageError
from coordinator_free_bootstrap.meaning import first_refusal
from peer.algorithms.registry import algorithm_named
from peer.experiment.network import SimulatedPeer, VirtualNetwork, perform_in_turn
from peer.experiment.together import Together
from peer.host import InitialModels, build_host
from peer.learning.check import try_learner
from peer.learning.device import check_amp, device_named
from peer.learning.flat import FlatModule
from peer.learning.learner import Learner
from peer.runtime.results import start_fields, write_results
from peer.store.files import storage_errors
from peer.store.state_dir import StateDir
from peer.tasks.datasets import DATASETS
from peer.tasks.effect import used_data_root
from peer.tasks.loading import load_task
from peer.tasks.task import Task
from peer.tasks.training_shard import training_shard

OnRound = Callable[[int, float | None], None]


@dataclass(frozen=True)
class SimulatedSettings:
    """Local choices of a simulated run.

    Attributes:
        data_root: where built-in data sets lie.
        device: of training and evaluation: "cpu", "cuda", or "auto".
        amp: "bf16" for mixed precision, else None.
        threads: PyTorch threads; more than one may change the last bits.
        stacked: train all peers' models of a round as one; None: on a GPU.
        fold_threads: receivers that fold at the same time; never changes a bit.
        models: whether the cluster models are written at the end.
        task: an object to use in place of the task that the manifest names.
    """

    data_root: Path | None = None
    device: str = "cpu"
    amp: str | None = None
    threads: int = 1
    stacked: bool | None = None
    fold_threads: int = 1
    models: bool = True
    task: Task | None = None


def simulate(
    graph: Graph,
    directory: Path | None,
    settings: SimulatedSettings | None = None,
    on_round: OnRound = lambda completed, metric: None,
) -> dict[int, SimulatedPeer]:
    """Run all peers of a graph to their end and return them.

    Args:
        graph: peers, edges and manifest.
        directory: where the run directory goes, replacing an earlier one; None writes nothing.
        settings: local choices.
        on_round: told, each time every peer has completed a round, how many and the mean of their metric.

    Raises:
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
        StorageError: the run directory cannot be written.
        UsageError: it has checkpoints of peers that are processes.
    """
    settings = settings or SimulatedSettings()
    _refuse_state_of_peers(directory)
    if directory is not None:
        directory = directory.absolute()  # the task may change the working directory
        with storage_errors("make", directory):
            directory.mkdir(parents=True, exist_ok=True)
    stacked = settings.stacked if settings.stacked is not None else device_named(settings.device) != "cpu"
    watch = RoundWatch(len(graph.nodes), on_round)
    network = VirtualNetwork(
        perform_all=Together().perform if stacked else perform_in_turn,
        on_record=watch.record,
        fold_threads=settings.fold_threads,
    )
    peers = simulated_peers(graph, settings, network)
    began = time.monotonic()
    network.run()
    if directory is not None:
        write_run(graph, directory, peers, time.monotonic() - began, models=settings.models)
    return peers


def _refuse_state_of_peers(directory: Path | None) -> None:
    """Refuse to replace what processes have learned: a simulation leaves no checkpoints."""
    found = next(directory.glob("peer-*/checkpoints/checkpoint-*"), None) if directory is not None else None
    if found is not None:
        raise UsageError(
            f"out {directory}: found the checkpoints of running or ended peers ({found.parent}), which a simulation would "
            "delete; name another folder, or delete this one"
        )


def simulated_peers(graph: Graph, settings: SimulatedSettings, network: VirtualNetwork) -> dict[int, SimulatedPeer]:
    """Connect the peers of a graph to a network; those that start with equal models share the arrays.

    Raises:
        ShardError: two neighbors' data have another meaning; the handshake of processes would refuse them.
    """
    import torch

    torch.set_num_threads(settings.threads)
    manifest = graph.manifest
    task = settings.task or load_task(
        manifest, len(graph.nodes), data_root=used_data_root(manifest, settings.data_root)
    )
    device = device_named(settings.device)
    check_amp(settings.amp, device)
    memory: FlatModule | None = None
    common: InitialModels | None = None
    for peer_id in graph.ids:
        shard = training_shard(task, peer_id, manifest)
        learner = Learner(
            task, shard, device=device, batch_size=manifest.batch_size, model=memory, amp=settings.amp is not None
        )
        if memory is None and manifest.task not in DATASETS:
            try_learner(learner, manifest.learning_rate, full_batch=manifest.local_unit == "fullbatch_step")
        memory = learner.model
        algorithm = algorithm_named(manifest.algorithm)(manifest, peer_id, graph)
        initial = common or InitialModels.of(algorithm, learner)
        common = initial if initial.digest else None
        host = build_host(
            peer_id,
            graph,
            learner,
            1,
            clock=time.perf_counter,
            initial=initial,
            spare_buffers=0,
        )
        peer = network.add(host)
        peer.recording.add("start", start_fields(host, task) | {"backend": "simulated"})
    if unlike := first_refusal({peer_id: peer.host.meaning for peer_id, peer in network.peers.items()}, graph.edges):
        raise ShardError(f"peers cannot train together: {unlike}")
    return network.peers


class RoundWatch:
    """Counts the peers that have completed a round, and averages their metric."""

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
        place = StateDir.of_peer(directory, peer_id)
        place.create()
        peer.recording.write(place, peer.host.metric)
        write_results(peer.host, place, peer.status, seconds, algorithm=graph.manifest.algorithm, models=models)

"""The `simulated` backend: all peers of a run in one process, real engine, real training, no sockets.

In lockstep on a CPU it gives, bit for bit, the models of a testbed of processes, and it leaves the same run directory
behind, so that `peer report` reads it. Memory: the data set once, one model of working memory for all, k models a peer (those
that are still equal, once), and what is under way in a round.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coordinator_free_bootstrap import Graph, save_graph
from coordinator_free_bootstrap.errors import ConfigProblem, ShardError
from coordinator_free_bootstrap.meaning import first_refusal, goal
from peer.algorithms.registry import algorithm_for
from peer.core import effects as do
from peer.core.sum_parts import SumParts
from peer.host import InitialModels, build_host
from peer.lab.interrupts import Interrupts
from peer.lab.network import SimulatedPeer, VirtualNetwork, perform_in_turn
from peer.lab.revisions import ChangedPeers, require_revisions, run_revisions
from peer.lab.saved_peers import GOES_ON, LEFT, RESUMING, SavedPeers, has_checkpoints, refuse_state_of_peers
from peer.lab.together import Together
from peer.learning.check import try_learner
from peer.learning.device import check_amp, device_named
from peer.learning.flat import FlatModule
from peer.learning.learner import TorchLearner
from peer.runtime.first_models import choose_first_models
from peer.runtime.results import outcome_of, start_fields, write_results
from peer.store.files import storage_errors
from peer.store.state_dir import StateDir
from peer.tasks.effect import used_data_root
from peer.tasks.loading import load_task
from peer.tasks.sources import source_named
from peer.tasks.task import Task
from peer.tasks.training_data import training_data

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
        fold_threads: receivers that fold at the same time; never changes a bit. None: ``threads``.
        start_from: model file or run from which the first models come.
        models: whether the cluster models are written at the end.
        task: an object to use in place of the task that the manifest names.
        tell: called with a sentence on what an interrupted or failed run has left, and that the next one resumes it; None: such a
            run leaves nothing.
    """

    data_root: Path | None = None
    device: str = "cpu"
    amp: Literal["bf16"] | None = None
    threads: int = 1
    stacked: bool | None = None
    fold_threads: int | None = None
    start_from: Path | None = None
    models: bool = True
    task: Task | None = None
    tell: Callable[[str], None] | None = None


def simulate(
    graph: Graph,
    directory: Path | None,
    settings: SimulatedSettings | None = None,
    on_round: OnRound = lambda completed, metric: None,
    on_start: Callable[[str], None] = lambda goal: None,
    revisions: Sequence[Graph] = (),
) -> dict[int, SimulatedPeer]:
    """Run all peers of a graph to their end and return them.

    Args:
        graph: peers, edges and manifest.
        directory: where the run directory goes, replacing an earlier one; None writes nothing.
        settings: local choices.
        on_round: called each time every peer has completed a round, with their number and the mean metric.
        on_start: called before the first round with how the run interprets its targets, and its metric.
        revisions: the graph files after it, each with the round with which all peers change to it; such a run cannot be
            interrupted and resumed.

    Raises:
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
        StorageError: the run directory cannot be written.
        UsageError: it has checkpoints of peers that are processes.
        CheckpointCorrupt: it has checkpoints of another simulation, which was interrupted.
        KeyboardInterrupt: after Ctrl-C; with ``settings.tell`` the run directory is written before.
    """
    settings = settings or SimulatedSettings()
    if directory is not None:
        directory = directory.absolute()  # the task may change the working directory
        refuse_state_of_peers(directory)
        with storage_errors("make", directory):
            directory.mkdir(parents=True, exist_ok=True)
    stacked = settings.stacked if settings.stacked is not None else device_named(settings.device) != "cpu"
    watch = RoundWatch(len(graph.nodes), on_round)
    resumable = directory is not None and settings.tell is not None and not revisions

    def network_of() -> VirtualNetwork:
        return VirtualNetwork(
            perform_all=Together().perform if stacked else perform_in_turn,
            on_record=watch.record,
            fold_threads=settings.fold_threads or settings.threads,
            keeps_checkpoints=resumable or bool(revisions),
        )

    def peers_of(present: Graph, network: VirtualNetwork, carried: ChangedPeers | None) -> dict[int, SimulatedPeer]:
        peers = simulated_peers(present, settings, network, carried)
        if carried is None:
            on_start(goal(peers[graph.ids[0]].host.compared.meaning))
        watch.peers = len(peers)
        return peers

    if directory is not None and settings.tell is not None and resumable:
        return _resumable(graph, directory, settings, network_of(), settings.tell, on_start)
    require_revisions(graph, revisions)
    began = time.monotonic()
    peers = run_revisions(graph, revisions, network_of, peers_of)
    if directory is not None:
        last = (graph, *revisions)[-1]
        write_run(last, directory, peers, time.monotonic() - began, models=settings.models)
    return peers


def _resumable(
    graph: Graph,
    directory: Path,
    settings: SimulatedSettings,
    network: VirtualNetwork,
    tell: Callable[[str], None],
    on_start: Callable[[str], None],
) -> dict[int, SimulatedPeer]:
    """Run peers from the checkpoints in a directory, if there are any; write the run directory however the run ends."""
    saved = SavedPeers(graph, directory)
    peers = simulated_peers(graph, settings, network, saved)
    on_start(goal(peers[graph.ids[0]].host.compared.meaning))
    if saved.resumes:
        tell(RESUMING.format(directory=directory, rounds=_rounds(peers), total=graph.manifest.rounds))
    began = time.monotonic()
    with Interrupts(network.leave) as interrupts:
        try:
            network.run()
        except BaseException as error:
            interrupts.held = True
            _write_interrupted(graph, directory, peers, time.monotonic() - began, settings, saved, error)
            tell(_left(directory, peers, graph, "stopped" if isinstance(error, KeyboardInterrupt) else "failed"))
            raise
        interrupts.held = True
        seconds = time.monotonic() - began
        if all(peer.status in ("completed", "alone") for peer in peers.values()):
            write_run(graph, directory, peers, seconds, models=settings.models, saved=saved)
        else:
            _write_interrupted(graph, directory, peers, seconds, settings, saved, None)
            tell(_left(directory, peers, graph, "stopped"))
    if interrupts.seen:  # also where the last round was over before: a program may have more runs to stop
        raise KeyboardInterrupt
    return peers


def _rounds(peers: dict[int, SimulatedPeer]) -> int:
    return min(peer.host.state.round.index for peer in peers.values())


def _left(directory: Path, peers: dict[int, SimulatedPeer], graph: Graph, ended: str) -> str:
    """Return the sentence about a run that ended early: when, and what the same call does next."""
    following = GOES_ON if has_checkpoints(directory) else "begins anew"
    return LEFT.format(
        directory=directory, ended=ended, rounds=_rounds(peers), total=graph.manifest.rounds, next=following
    )


def simulated_peers(
    graph: Graph,
    settings: SimulatedSettings,
    network: VirtualNetwork,
    saved: SavedPeers | ChangedPeers | None = None,
) -> dict[int, SimulatedPeer]:
    """Connect the peers of a graph to a network, in their saved state; those that start with equal models share the arrays.

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
        data = training_data(task, peer_id, manifest)
        learner = TorchLearner(
            task,
            data,
            device=device,
            batch_size=manifest.batch_size,
            unit=manifest.local_unit,
            model=memory,
            amp=settings.amp is not None,
        )
        if memory is None and source_named(manifest.task) is None:
            try_learner(learner, manifest.learning_rate)
        memory = learner.model
        algorithm = algorithm_for(graph, peer_id)
        choose_first_models(algorithm, learner, settings.start_from)
        initial = common or InitialModels.of(algorithm, learner)
        common = initial if initial.digest else None
        incarnation, checkpoint = saved.load(peer_id, learner) if saved else (1, None)
        host = build_host(
            peer_id,
            graph,
            learner,
            incarnation,
            checkpoint,
            clock=time.perf_counter,
            initial=initial,
            spare_buffers=0,
            scaling=learner.scaling,
            sums=sums_of(peer_id, graph),
        )
        peer = network.add(host)
        host.workspace.should_stop = peer.should_stop
        resumed = {"resumed_from": checkpoint.round_index} if checkpoint else {}
        peer.recording.add("start", start_fields(host, task) | {"backend": "simulated"} | resumed)
    if unlike := first_refusal(
        {peer_id: peer.host.compared.meaning for peer_id, peer in network.peers.items()}, graph.edges
    ):
        raise ShardError(ConfigProblem("shards", "data of one meaning at all peers", unlike.reason))
    return network.peers


def sums_of(peer_id: int, graph: Graph) -> SumParts | None:
    """Return the secrets of a peer for secure sums; None in a run without. One process has nobody to sign for."""
    if graph.manifest.secure_sum is None:
        return None
    from peer.secure_sum.keys import Unsigned  # here: other simulations need no cryptography
    from peer.secure_sum.sums import SecureSums

    return SecureSums(peer_id, graph, Unsigned(), os.urandom)


def clients_of_a_server(graph: Graph, settings: SimulatedSettings) -> dict[int, SimulatedPeer]:
    """Return the peers of a graph without any exchange between them; with shared scaling they know the numbers of all sites."""
    peers = simulated_peers(graph, settings, VirtualNetwork())
    own = {i: peer.host.scaling.numbers for i, peer in peers.items() if peer.host.scaling is not None}
    for peer in peers.values():
        if peer.host.scaling is not None:
            peer.host.execute([do.Agree(tuple(sorted(own.items())))])
            peer.host.scaling.apply()
    return peers


class RoundWatch:
    """Counts the peers that have completed a round, and averages their metric."""

    def __init__(self, peers: int, on_round: OnRound) -> None:
        self.peers, self._on_round = peers, on_round
        self._seen: dict[int, list[float | None]] = {}

    def record(self, peer: SimulatedPeer, kind: str, fields: dict[str, Any]) -> None:
        """Take note of one history line."""
        if kind != "round":
            return
        seen = self._seen.setdefault(int(fields["round_index"]), [])
        seen.append(fields.get("metric_value"))
        if len(seen) == self.peers:
            known = [value for value in seen if value is not None]
            self._on_round(int(fields["round_index"]) + 1, float(np.mean(known)) if known else None)
            del self._seen[int(fields["round_index"])]


def write_run(
    graph: Graph,
    directory: Path,
    peers: dict[int, SimulatedPeer],
    seconds: float,
    *,
    models: bool,
    saved: SavedPeers | None = None,
) -> None:
    """Write the run directory of ended peers, as a testbed would have left it.

    Args:
        graph: of the run.
        directory: of the run; other files of peers in it are deleted, unless the peers have resumed from them.
        peers: that have ended.
        seconds: that the run took.
        models: whether the cluster models are written.
        saved: the state that the peers have resumed from; its checkpoints are deleted.

    Raises:
        StorageError: a file cannot be written.
    """
    _clear(graph, directory, saved)
    for peer in peers.values():
        place = _write_history(peer, directory)
        write_results(peer.host, place, peer.status, seconds, algorithm=graph.manifest.algorithm, models=models)
        if saved is not None:
            saved.remove(peer)


def _write_interrupted(
    graph: Graph,
    directory: Path,
    peers: dict[int, SimulatedPeer],
    seconds: float,
    settings: SimulatedSettings,
    saved: SavedPeers,
    error: BaseException | None,
) -> None:
    """Write what peers leave that have not all completed the run, with checkpoints; ``error`` ended it, if not a request."""
    _clear(graph, directory, saved)
    ended = "left" if error is None or isinstance(error, KeyboardInterrupt) else outcome_of(error)
    for peer in peers.values():
        place = _write_history(peer, directory)
        # an error may have come in the middle of a change
        failed = error if not peer.status and ended != "left" else None
        models = settings.models and bool(peer.status)
        write_results(peer.host, place, peer.status or ended, seconds, models=models, error=failed)
        saved.save(peer, peer.host.workspace.unguarded)  # type: ignore[arg-type]


def _clear(graph: Graph, directory: Path, saved: SavedPeers | None) -> None:
    """Delete the peers of an earlier run, unless they are resumed, and write the graph."""
    for old in directory.glob("peer-*") if saved is None or not saved.resumes else ():
        shutil.rmtree(old)
    directory.mkdir(parents=True, exist_ok=True)
    save_graph(graph, directory / "graph.json")


def _write_history(peer: SimulatedPeer, directory: Path) -> StateDir:
    place = StateDir.of_peer(directory, peer.peer_id)
    place.create()
    peer.recording.write(place, peer.host.state.incarnation)
    return place

"""Open a state directory and build the host of one peer from it; everything here may block and runs before the event loop."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.meaning import goal
from coordinator_free_bootstrap.rates import check_limits, problems_of
from peer.algorithms.registry import algorithm_for
from peer.host import PeerHost, build_host
from peer.learning.check import try_learner
from peer.learning.device import check_amp, device_named
from peer.learning.learner import Learner
from peer.runtime.resources import disk_note, require_memory
from peer.runtime.saved_state import notes_of, saved_state, state_files
from peer.store.checkpoint import CheckpointStore
from peer.store.identity_files import IncarnationFile, StateLock
from peer.store.state_dir import StateDir
from peer.tasks.loading import load_task
from peer.tasks.task import Task
from peer.tasks.training_shard import training_shard
from peer.wire.proxy import HttpProxy

if TYPE_CHECKING:
    from peer.observe.metrics_page import MetricsPage

log = logging.getLogger("peer")


@dataclass(frozen=True)
class LocalSettings:
    """What each device decides for itself; nothing here changes what a run computes, up to rounding.

    Paths are made absolute: the task may change the working directory while the peer runs.
    """

    state_dir: Path
    listen: str | None = None  # default: the port of the own address in the graph file, on its host
    data_root: Path | None = None
    shard: Path | None = None
    device: str = "auto"
    amp: str | None = None  # "bf16": mixed precision
    threads: int = 1
    cert: Path | None = None  # own certificate; default: peer-<id>.pem in certs or <state_dir>/identity
    key: Path | None = None  # own private key; default: beside the own certificate, with the ending .key
    certs: Path | None = None  # neighbors' certificates, for graph files that carry only pins
    ca: Path | None = None  # certificate authorities, for those who have one
    insecure: bool = False  # plaintext on loopback
    insecure_anywhere: bool = False  # plaintext on any address
    upload_limit: int | None = None  # bytes per second; default: as in the graph file
    download_limit: int | None = None
    proxy: HttpProxy | None = None  # to dial neighbors; default: directly
    metrics: MetricsPage | None = None  # where /metrics is served
    require_own_address: bool = False  # stop if the own address in the graph leads elsewhere
    tell_clusters: bool = False  # observers may know mixtures and collaborators, which say how the data are distributed
    download: bool = False
    check_task: bool = False  # train one step and evaluate before the start; a testbed does so once for all peers
    discard_state: bool = False  # move state of another run aside in place of refusing it
    traceback: bool = False  # log the whole trace of an error
    task: Task | None = None  # an object to use in place of the task that the manifest names

    def __post_init__(self) -> None:
        """Make the paths absolute."""
        for each in fields(self):
            if isinstance(value := getattr(self, each.name), Path):
                object.__setattr__(self, each.name, value.absolute())


@dataclass
class Assembled:
    """One peer and its files, ready to run."""

    host: PeerHost
    task: Task
    settings: LocalSettings
    state_dir: StateDir
    lock: StateLock
    checkpoints: CheckpointStore
    incarnations: IncarnationFile
    resumed_from: int | None = None
    notes: list[str] = field(default_factory=list)


def assemble(peer_id: int, graph: Graph, settings: LocalSettings) -> Assembled:
    """Return a peer in its last persisted state, or a new one.

    Raises:
        GraphError: the graph has no such peer.
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
        StorageError: the state directory cannot be used, or another process uses it.
        CheckpointCorrupt: the state directory has the state of another run.
    """
    import torch

    manifest = graph.manifest
    graph.node(peer_id)
    check_limits(graph, peer_id, settings.upload_limit, settings.download_limit)
    torch.set_num_threads(settings.threads)
    task = settings.task or load_task(
        manifest,
        len(graph.nodes),
        data_root=settings.data_root,
        shard_path=settings.shard,
        download=settings.download,
    )
    device = device_named(settings.device)
    check_amp(settings.amp, device)
    shard = training_shard(task, peer_id, manifest)
    preprocessing = shard.preprocessing or task.preprocessing
    if preprocessing is not None and preprocessing.reading is not None:
        log.info("data read as %s", preprocessing.reading)
    learner = Learner(task, shard, device=device, batch_size=manifest.batch_size, amp=settings.amp is not None)
    log.info("learns %s", goal(learner.meaning))
    if settings.check_task:
        try_learner(learner, manifest.learning_rate, full_batch=manifest.local_unit == "fullbatch_step")
    directory = StateDir(settings.state_dir)
    directory.create()
    lock = StateLock(settings.state_dir)
    lock.acquire()
    try:
        return _with_state(peer_id, graph, settings, task, learner, directory, lock)
    except BaseException:
        lock.release()
        raise


def _with_state(
    peer_id: int,
    graph: Graph,
    settings: LocalSettings,
    task: Task,
    learner: Learner,
    directory: StateDir,
    lock: StateLock,
) -> Assembled:
    """Return a peer in the state of its directory, which is locked."""
    checkpoints, run = state_files(directory, peer_id, graph, learner)
    algorithm = algorithm_for(graph, peer_id)
    saved = saved_state(directory, checkpoints, run, algorithm, learner.schema, discard=settings.discard_state)
    incarnations = IncarnationFile(settings.state_dir)
    incarnation = incarnations.claim(above=int(saved.state["incarnation"]) if saved else 0)
    require_memory(algorithm.held, learner.schema.size)
    host = build_host(peer_id, graph, learner, incarnation, saved, clock=time.monotonic)
    notes = list(problems_of(graph, peer_id, host.state.model_bytes, settings.upload_limit, settings.download_limit))
    notes += notes_of(checkpoints, run, incarnations)
    if full := disk_note(directory.root, 4 * learner.schema.size * len(host.workspace.models)):
        notes.append(full)
    return Assembled(
        host=host,
        task=task,
        settings=settings,
        state_dir=directory,
        lock=lock,
        checkpoints=checkpoints,
        incarnations=incarnations,
        resumed_from=host.engine.round_index if saved else None,
        notes=notes,
    )

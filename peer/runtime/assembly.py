"""Open a state directory and build the host of one peer from it; everything here may block and runs before the event loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import Option
from coordinator_free_bootstrap.meaning import goal
from coordinator_free_bootstrap.rates import check_limits, parse_rate, problems_of
from peer.algorithms.registry import algorithm_for
from peer.core.sum_parts import SumParts
from peer.host import PeerHost, build_host
from peer.learning.check import try_learner
from peer.learning.device import check_amp, device_named
from peer.learning.learner import TorchLearner
from peer.runtime.admission import of_host
from peer.runtime.first_models import choose_first_models
from peer.runtime.local_options import LocalOptions, complete_options, limits_form
from peer.runtime.policy import enforced
from peer.runtime.resources import disk_note, require_memory
from peer.runtime.results import write_best
from peer.runtime.saved_state import notes_of, saved_state, state_files
from peer.store.checkpoint import CheckpointStore
from peer.store.delivered_file import DeliveredFile
from peer.store.identity_files import IncarnationFile, StateLock
from peer.store.origin import Origin
from peer.store.state_dir import StateDir
from peer.tasks.loading import load_task
from peer.tasks.task import Task
from peer.tasks.training_data import training_data
from peer.wire.proxy import HttpProxy

if TYPE_CHECKING:
    from peer.observe.metrics_page import MetricsPage

log = logging.getLogger("peer")


@dataclass
class LocalSettings:
    """What each device decides for itself, and what the program adds to it.

    Paths are absolute: the task may change the working directory while the peer runs.

    Args:
        options: of the peer, complete.
        metrics: page of /metrics, where it is served.
        alerts: makes what is told of events (`peer.ops.alerts`), where the options name somebody to tell.
        check_task: train one step and evaluate before the start; a testbed does so once for all peers.
        traceback: log the whole trace of an error.
        task: an object to use in place of the task that the manifest names.

    Raises:
        ConfigError: a limit or the policy cannot be read, or the environment names no proxy.
    """

    options: LocalOptions
    metrics: MetricsPage | None = None
    alerts: Callable[..., Any] | None = None
    check_task: bool = False
    traceback: bool = False
    task: Task | None = None

    def __post_init__(self) -> None:
        self.state_dir = Path(self.options["state_dir"] or "")
        limits = limits_form(self.options["limit"]) if self.options["limit"] else (None, None)
        self.upload_limit, self.download_limit = map(_rate, limits)
        self.proxy = HttpProxy.chosen(self.options["proxy"])
        self.policy = enforced(self.path("policy"))

    @classmethod
    def at(cls, state_dir: Path, /, **options: Unpack[LocalOptions]) -> LocalSettings:
        """Return the settings of a peer with a state directory, and the defaults of the options that are missing.

        Raises:
            UsageError: an option is unknown, out of range or without effect.
        """
        return cls(complete_options(0, {**options, "state_dir": state_dir}))

    def path(self, name: Literal["data_root", "shard", "certs", "ca", "start_from", "policy"]) -> Path | None:
        """Return the value of an option that is a path."""
        value = self.options[name]
        return None if value is None else Path(value)


def _rate(text: str | None) -> int | None:
    return None if text is None else parse_rate(text, str(Option("limit")))


@dataclass
class Assembled:
    """One peer and its files, ready to run."""

    host: PeerHost
    task: Task
    settings: LocalSettings
    state_dir: StateDir
    lock: StateLock
    checkpoints: CheckpointStore
    origin: Origin
    incarnations: IncarnationFile
    resumed_from: int | None = None
    notes: list[str] = field(default_factory=list)


def assemble(peer_id: int, graph: Graph, settings: LocalSettings, sums: SumParts | None = None) -> Assembled:
    """Return a peer in its last persisted state, or a new one.

    Args:
        peer_id: a node of the graph.
        graph: of the run.
        settings: of this device.
        sums: the secrets of secure sums, where the run has them.

    Raises:
        GraphError: the graph has no such peer.
        PolicyError: the owner's policy refuses the run.
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
        StorageError: the state directory cannot be used, or another process uses it.
        CheckpointCorrupt: the state directory has the state of another run.
    """
    import torch

    manifest = graph.manifest
    graph.node(peer_id)
    check_limits(graph, peer_id, settings.upload_limit, settings.download_limit)
    torch.set_num_threads(settings.options["threads"])
    task = settings.task or load_task(
        manifest,
        len(graph.nodes),
        data_root=settings.path("data_root"),
        shard_path=settings.path("shard"),
        download=settings.options["download"],
    )
    device = device_named(settings.options["device"])
    check_amp(settings.options["amp"], device)
    data = training_data(task, peer_id, manifest)
    preprocessing = getattr(data, "preprocessing", None) or task.preprocessing
    if preprocessing is not None and preprocessing.reading is not None:
        log.info("data read as %s", preprocessing.reading)
    learner = TorchLearner(
        task,
        data,
        device=device,
        batch_size=manifest.batch_size,
        unit=manifest.local_unit,
        amp=settings.options["amp"] is not None,
    )
    log.info("learns %s", goal(learner.meaning))
    if settings.check_task:
        try_learner(learner, manifest.learning_rate)
    directory = StateDir(settings.state_dir)
    directory.create()
    lock = StateLock(settings.state_dir)
    lock.acquire()
    try:
        return _with_state(peer_id, graph, settings, task, learner, directory, lock, sums)
    except BaseException:
        lock.release()
        raise


def _with_state(
    peer_id: int,
    graph: Graph,
    settings: LocalSettings,
    task: Task,
    learner: TorchLearner,
    directory: StateDir,
    lock: StateLock,
    sums: SumParts | None,
) -> Assembled:
    """Return a peer in the state of its directory, which is locked."""
    checkpoints, run = state_files(directory, peer_id, graph, learner)
    algorithm = algorithm_for(graph, peer_id)
    discard = settings.options["discard_state"]
    saved = saved_state(directory, checkpoints, run, algorithm, learner.schema, discard=discard)
    start = choose_first_models(algorithm, learner, settings.path("start_from"), directory.start)
    if start is not None and saved is None:
        start.keep(directory.start)
        log.info("%s", start.sentence(learner.schema))
    incarnations = IncarnationFile(settings.state_dir)
    incarnation = incarnations.claim(above=int(saved.state["incarnation"]) if saved else 0)
    kept = algorithm.held + bool(learner.count("validation"))  # the model of the best round beside them
    require_memory(kept, learner.schema.size)
    host = build_host(
        peer_id, graph, learner, incarnation, saved, clock=time.monotonic, scaling=learner.scaling, sums=sums
    )
    write_best(host, directory, host.workspace.best)  # of the checkpoint; rounds after it are undone
    if settings.policy is not None:
        settings.policy.admit(of_host(settings.policy, host))
    host.workspace.delivered = DeliveredFile(directory.root)
    notes = list(problems_of(graph, peer_id, host.state.model_bytes, settings.upload_limit, settings.download_limit))
    notes += notes_of(checkpoints, run, incarnations)
    if full := disk_note(directory.root, 4 * learner.schema.size * kept):
        notes.append(full)
    return Assembled(
        host=host,
        task=task,
        settings=settings,
        state_dir=directory,
        lock=lock,
        checkpoints=checkpoints,
        origin=run,
        incarnations=incarnations,
        resumed_from=host.engine.round_index if saved else None,
        notes=notes,
    )

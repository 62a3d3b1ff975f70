"""Put one peer together from its graph file and its state directory: task, learner, algorithm, models, engine, stores.

Everything here may block; it runs before the event loop starts.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap import Graph, canonical_json, digest
from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms.base import Algorithm, Bench
from peer.algorithms.registry import algorithm_named
from peer.core.engine import Engine
from peer.core.messages import WIRE_VERSION
from peer.core.model_store import ModelStore
from peer.core.schema import Schema
from peer.learning.learner import Learner
from peer.store.checkpoint import Checkpoint, CheckpointStore
from peer.store.identity_files import IncarnationFile, StateLock
from peer.store.state_dir import StateDir
from peer.tasks.loading import load_task
from peer.tasks.task import Task
from peer.wire.codec import payload_size


@dataclass(frozen=True)
class LocalSettings:
    """What each device decides for itself; nothing here changes what a run computes."""

    state_dir: Path
    listen: str | None = None  # default: the port of the own address in the graph file, on its host
    data_root: Path | None = None
    shard: Path | None = None
    device: str = "auto"
    threads: int = 1
    cert: Path | None = None  # own certificate; default: peer-<id>.pem in certs or <state_dir>/identity
    key: Path | None = None  # own private key; likewise, peer-<id>.key
    certs: Path | None = None  # neighbors' certificates, for graph files that carry only pins
    ca: Path | None = None  # certificate authorities, for those who have one
    insecure: bool = False  # plaintext on loopback
    insecure_anywhere: bool = False  # plaintext on any address
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    require_own_address: bool = False  # stop if the own address in the graph leads elsewhere
    download: bool = False


@dataclass
class Assembled:
    """The parts of one peer, ready to run."""

    graph: Graph
    settings: LocalSettings
    state_dir: StateDir
    lock: StateLock
    checkpoints: CheckpointStore
    incarnations: IncarnationFile
    algorithm: Algorithm
    bench: Bench
    schema: Schema
    engine: Engine
    digests: dict[str, str]  # what neighbors compare, and the metric that the numbers of this run are of
    manifest_json: str
    resumed_from: int | None = None
    notes: list[str] = field(default_factory=list)
    true_cluster: int | None = None


def assemble(peer_id: int, graph: Graph, settings: LocalSettings) -> Assembled:
    """Return a peer in its last persisted state, or a new one.

    Raises:
        GraphError: the graph has no such peer.
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
        StorageError: the state directory cannot be used, or another process uses it.
    """
    import torch

    manifest = graph.manifest
    graph.node(peer_id)
    torch.set_num_threads(settings.threads)
    algorithm = algorithm_named(manifest.algorithm)(manifest, peer_id, graph)
    task = load_task(
        manifest,
        len(graph.nodes),
        data_root=settings.data_root,
        shard_path=settings.shard,
        download=settings.download,
    )
    learner = Learner(
        task, task.load_shard(peer_id), device=device_named(settings.device), batch_size=manifest.batch_size
    )
    schema = learner.schema
    model_bytes = payload_size(schema, manifest.encoding)
    if model_bytes > manifest.limits.model_bytes_max:
        raise ConfigError(
            f"run.limits.model_bytes_max: {manifest.limits.model_bytes_max}, but one model of task '{manifest.task}' takes "
            f"{model_bytes} bytes; raise the limit or take a smaller model"
        )
    directory = StateDir(settings.state_dir)
    directory.create()
    lock = StateLock(settings.state_dir)
    lock.acquire()
    digests = {
        "wire_version": str(WIRE_VERSION),
        "manifest": digest(manifest),
        "graph": graph.digest,
        "schema": schema.digest,
        **metric_of(task),
    }
    checkpoints = CheckpointStore(
        directory.checkpoints,
        peer_id=peer_id,
        manifest_digest=digests["manifest"],
        graph_digest=digests["graph"],
        schema_digest=digests["schema"],
    )
    checkpoint = checkpoints.load_latest()
    incarnations = IncarnationFile(settings.state_dir)
    former = int(checkpoint.state.get("incarnation", 0)) if checkpoint else 0
    incarnation = incarnations.claim(above=former)
    initial, common = algorithm.initial_models(learner)  # type: ignore[arg-type]
    digests["initial_models"] = _digest_of(initial) if common else ""
    models = _models_of(checkpoint, len(initial)) if checkpoint else initial
    bench = Bench(
        manifest=manifest,
        peer_id=peer_id,
        graph=graph,
        learner=learner,  # type: ignore[arg-type]
        models=ModelStore(models, batch=manifest.aggregation == "batch", trim=manifest.screening.trimmed_mean),
        facts={},
        true_cluster=learner.shard.true_cluster,
    )
    if checkpoint:
        bench.arrays = {n[len("array/") :]: a for n, a in checkpoint.arrays.items() if n.startswith("array/")}
        bench.facts = dict(checkpoint.state["facts"])
    else:
        bench.facts = algorithm.begin(bench)
    engine = Engine(
        peer_id,
        graph,
        algorithm,
        incarnation,
        model_bytes=model_bytes,
        facts=dict(bench.facts),
        resume=checkpoint.state if checkpoint else None,
    )
    notes = algorithm.notes(bench)
    notes += [f"checkpoint {path.name} was not used: {reason}" for path, reason in checkpoints.rejected]
    if incarnations.problem:
        notes.append(incarnations.problem)
    return Assembled(
        graph=graph,
        settings=settings,
        state_dir=directory,
        lock=lock,
        checkpoints=checkpoints,
        incarnations=incarnations,
        algorithm=algorithm,
        bench=bench,
        schema=schema,
        engine=engine,
        digests=digests,
        manifest_json=canonical_json(manifest),
        resumed_from=engine.round_index if checkpoint else None,
        notes=notes,
        true_cluster=majority(learner.shard.true_cluster),
    )


def metric_of(task: Task) -> dict[str, str]:
    """Return what a run's records say of its metric, for reports."""
    return {"metric": task.metric_name, "metric_better": "higher" if task.higher_is_better else "lower"}


def checkpoint_arrays(bench: Bench) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a checkpoint keeps of the tensors: shared slots (never mutated afterwards) and per-sample arrays."""
    arrays: dict[str, np.ndarray[Any, Any]] = {
        f"slot/{slot}": bench.models.share(slot) for slot in range(len(bench.models))
    }
    return arrays | {f"array/{name}": array.copy() for name, array in bench.arrays.items()}


def _models_of(checkpoint: Checkpoint, slots: int) -> list[Any]:
    return [np.array(checkpoint.arrays[f"slot/{slot}"], dtype=np.float32) for slot in range(slots)]


def device_named(name: str) -> str:
    """Return the device that ``--device`` means on this machine: cpu, cuda or cuda:N.

    Raises:
        ConfigError: there is no such device.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise ConfigError(f"--device: found {name!r}; allowed: auto, cpu, cuda, cuda:N")
    if name == "cpu":
        return name
    if not torch.cuda.is_available():
        raise ConfigError(f"--device {name}: this machine's torch sees no CUDA device; use --device cpu or auto")
    if (count := torch.cuda.device_count()) <= int(name.partition(":")[2] or 0):
        raise ConfigError(f"--device {name}: this machine's torch sees {count} CUDA devices, counted from 0")
    return name


def _digest_of(models: list[Any]) -> str:
    state = hashlib.sha256()
    for model in models:
        state.update(memoryview(model).cast("B"))
    return state.hexdigest()


def majority(true_cluster: Any) -> int | None:
    """Return the most frequent of the true clusters, int64 [n]; None where they are not known."""
    if true_cluster is None or len(true_cluster) == 0:
        return None
    return int(np.bincount(true_cluster).argmax())

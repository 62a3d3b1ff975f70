"""What a peer leaves when it ends: its models as safetensors files and `summary.json`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coordinator_free_bootstrap.errors import (
    AloneError,
    BehindError,
    ConfigError,
    DivergedError,
    LocalProtocolError,
    PeerError,
    RemovedError,
)
from peer.algorithms.final_phase import final_predictor
from peer.algorithms.model_tests import FIRST_STEP
from peer.algorithms.predictor import PERSONALIZED, Best, Predictor
from peer.core.schema import Schema
from peer.host import PeerHost
from peer.learning.model_about import BEST, CLUSTER, SENT, model_metadata, together
from peer.store.files import storage_errors, write_json
from peer.store.model_file import save_model
from peer.store.records import StartFields, Summary
from peer.store.state_dir import StateDir
from peer.tasks.task import Task

_EXIT_CODES = {
    "completed": 0,
    "left": 0,
    "refused": ConfigError.exit_code,
    "removed": RemovedError.exit_code,
    "behind": BehindError.exit_code,
    "diverged": DivergedError.exit_code,
    "alone": AloneError.exit_code,
}


def outcome_of(error: BaseException) -> str:
    """Return how a peer ended that an error ended: ``diverged`` or ``failed``."""
    return "diverged" if isinstance(error, DivergedError) else "failed"


def exit_code_of(ending: str | BaseException) -> int:
    """Return the exit code of a peer that ended in one of the ways that summaries name, or by an error."""
    if isinstance(ending, str):
        return _EXIT_CODES[ending]
    return ending.exit_code if isinstance(ending, PeerError) else LocalProtocolError.exit_code


def write_results(
    host: PeerHost,
    state_dir: StateDir,
    status: str,
    seconds: float,
    *,
    algorithm: str | None = None,
    models: bool = True,
    error: BaseException | None = None,
) -> None:
    """Write what travels of each slot, what predicts, the personalized model (of a completed run) and the summary.

    Args:
        host: the peer.
        state_dir: of the peer.
        status: how the run ended.
        seconds: that it took.
        algorithm: its name, if it is not the manifest's.
        models: false writes the summary alone.
        error: that ended the run.

    Raises:
        StorageError: a file cannot be written.
    """
    run, manifest, workspace = host.state, host.manifest, host.workspace
    name = algorithm or manifest.algorithm
    metadata = {
        **_metadata(host, name),
        "rounds_completed": str(run.round.index),
        "predictor": str(host.last_round.get("predictor", PERSONALIZED)),
    }
    for slot in range(host.algorithm.slots if models else 0):
        part = workspace.models.part.of(workspace.models.model(slot))
        about = metadata | _private_tensors(host) | {"role": f"{CLUSTER} {slot}"}
        save_model(state_dir.cluster_model(slot), part, host.format.schema, about)
    if models:
        last = run.round.index - 1
        write_sent(host, state_dir, last, workspace.models.snapshots(last, FIRST_STEP))
    if models and workspace.personalized is not None:
        found = final_predictor(host.algorithm, workspace, metadata["predictor"]).kept()
        _save(state_dir.personalized_model, found, workspace.learner.schema, metadata | {"role": PERSONALIZED})
    if models and workspace.personalized is not None:
        write_best(host, state_dir, workspace.best)
    summary: Summary = {
        "peer_id": run.peer_id,
        "status": status,
        "exit_code": exit_code_of(error or status),
        "incarnation": run.incarnation,
        "rounds_completed": run.round.index,
        "rounds_total": manifest.rounds,
        "algorithm": name,
        "cluster_index": run.algorithm_state.cluster_index,
        "true_cluster": main_cluster(workspace.true_cluster),
        "metric": host.measured(),
        "loss": host.last_round.get("loss"),
        "totals": run.totals.as_json(),
        "refusals": {str(code): count for code, count in run.refusals.items()},
        "storage_error": run.disk.error,
        "run_seconds": seconds,
        "digests": host.compared.digests(),
        "ended_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if "metrics" in host.last_round:
        summary["metrics"] = host.last_round["metrics"]
    if run.budget is not None:
        summary["epsilon"] = run.budget.spent
    if workspace.best is not None:
        summary |= {"best_round": workspace.best.round_index, "metric_best": workspace.best.value}
    if "model_tests" in host.last_round:
        summary["model_tests"] = host.last_round["model_tests"]
    write_json(state_dir.summary, summary)


def write_sent(host: PeerHost, state_dir: StateDir, round_index: int, models: Mapping[int, np.ndarray]) -> None:
    """Write what a peer has offered to its neighbors in a round, by slot, before it is encoded; `peer privacy leak` reads it.

    Raises:
        StorageError: a file cannot be written.
    """
    about = {**_metadata(host), **_private_tensors(host), "round_index": str(round_index)}
    for slot, model in models.items():
        with storage_errors("create", state_dir.sent):
            state_dir.sent.mkdir(exist_ok=True)
        save_model(
            state_dir.sent_model(round_index, slot), model, host.format.schema, about | {"role": f"{SENT} {slot}"}
        )


def write_best(host: PeerHost, state_dir: StateDir, best: Best | None) -> None:
    """Write the model of the best round, atomically, if there is one; else remove that of rounds that are undone.

    Raises:
        StorageError: it cannot be written or removed.
    """
    if best is None:
        with storage_errors("remove", state_dir.best_model):
            state_dir.best_model.unlink(missing_ok=True)
        return
    about = {
        **_metadata(host),
        "role": BEST,
        "best_round": str(best.round_index),
        "metric_validation": json.dumps(best.value),
        "rounds_completed": str(min(best.round_index + 1, host.manifest.rounds)),
        "predictor": best.predictor.how,
    }
    _save(state_dir.best_model, best.predictor, host.workspace.learner.schema, about)


def _save(path: Path, predictor: Predictor, schema: Schema, about: dict[str, str]) -> None:
    """Write one model, or all models that predict together with their weights."""
    vector = predictor.models[0]
    if predictor.weights:
        vector, schema = together(predictor.models, schema)
        about = about | {"weights": json.dumps(list(predictor.weights))}
    save_model(path, vector, schema, about)


def _metadata(host: PeerHost, algorithm: str | None = None) -> dict[str, str]:
    """Return what all model files of a peer say."""
    run, manifest, learner = host.state, host.manifest, host.workspace.unguarded
    return {
        **model_metadata(learner, manifest, len(run.graph.nodes)),  # type: ignore[arg-type]
        "algorithm": algorithm or manifest.algorithm,
        "peer_id": str(run.peer_id),
        **({} if learner.started_from is None else {"start_from": json.dumps(learner.started_from)}),
        **({} if run.budget is None else {"epsilon": json.dumps(run.budget.spent)}),
    }


def _private_tensors(host: PeerHost) -> dict[str, str]:
    """Return which tensors of the model a file of what travels lacks; {} where it lacks none."""
    sent = {spec.name for spec in host.format.schema.tensors}
    private = [spec.name for spec in host.workspace.learner.schema.tensors if spec.name not in sent]
    return {"private": json.dumps(private)} if private else {}


def start_fields(host: PeerHost, task: Task) -> StartFields:
    """Return the fields of the history's first line that every backend writes."""
    host.workspace.metric, host.more_metrics = task.reported(), task.more_metrics
    fields: StartFields = {
        "peer_id": host.peer_id,
        "notes": host.notes,
        "digests": host.compared.digests(),
        "metric": host.metric.as_json(),
        "true_cluster": main_cluster(host.workspace.true_cluster),
        "samples": host.workspace.learner.count(),
        "parameters": host.workspace.learner.schema.size,
    }
    if host.workspace.learner.started_from is not None:
        fields["start_from"] = host.workspace.learner.started_from
    if host.more_metrics:
        fields["more_metrics"] = [metric.as_json() for metric in host.more_metrics]
    return fields


def main_cluster(true_cluster: np.ndarray | None) -> int | None:
    """Return the most frequent of the samples' true clusters, int64 [n]; None where they are not known."""
    if true_cluster is None or len(true_cluster) == 0:
        return None
    return int(np.bincount(true_cluster).argmax())

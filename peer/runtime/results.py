"""What a peer leaves when it ends: its models as safetensors files and `summary.json`."""

from __future__ import annotations

import json
import time

import numpy as np

from coordinator_free_bootstrap.errors import AloneError, ConfigError, DivergedError, LocalProtocolError, PeerError
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.schema import Schema
from peer.host import PeerHost
from peer.learning.combined import CONFIDENT, PREDICTORS
from peer.learning.model_about import CLUSTER, PERSONALIZED, model_metadata, together
from peer.store.files import write_json
from peer.store.model_file import save_model
from peer.store.records import StartFields, Summary
from peer.store.state_dir import StateDir
from peer.tasks.task import Task

_EXIT_CODES = {
    "completed": 0,
    "left": 0,
    "refused": ConfigError.exit_code,
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
    """Write all models that travel or predict, the personalized one (of a completed run) and the summary.

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
        **model_metadata(workspace.learner, manifest, len(run.graph.nodes)),  # type: ignore[arg-type]
        "algorithm": name,
        "peer_id": str(run.peer_id),
        "rounds_completed": str(run.round.index),
        "predictor": str(host.last_round.get("predictor", PERSONALIZED)),
    }
    for slot in range(host.algorithm.slots if models else 0):
        about = metadata | {"role": f"{CLUSTER} {slot}"}
        save_model(state_dir.cluster_model(slot), workspace.models.model(slot), host.format.schema, about)
    if models and workspace.personalized is not None:
        vector, schema, weights = predictor_of(workspace, metadata["predictor"])
        about = metadata | {"role": PERSONALIZED} | ({"weights": json.dumps(weights)} if weights else {})
        save_model(state_dir.personalized_model, vector, schema, about)
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
    if "model_tests" in host.last_round:
        summary["model_tests"] = host.last_round["model_tests"]
    write_json(state_dir.summary, summary)


def predictor_of(workspace: Workspace, predictor: str) -> tuple[Vector, Schema, list[float]]:
    """Return what the run's final metric was measured with: one model, or all models that predict together, and their weights.

    Models of weight 0 do not count in a mixture, and are left out.
    """
    schema, personalized = workspace.learner.schema, workspace.personalized
    assert personalized is not None  # of a completed run
    if predictor not in PREDICTORS:
        return personalized, schema, []
    mixture = workspace.state.mixture
    slots = [slot for slot, weight in enumerate(mixture) if weight > 0 or predictor == CONFIDENT]
    vector, names = together([workspace.models.model(slot) for slot in slots], schema)
    return vector, names, [mixture[slot] for slot in slots]


def start_fields(host: PeerHost, task: Task) -> StartFields:
    """Return the fields of the history's first line that every backend writes."""
    host.metric, host.more_metrics = task.reported(), task.more_metrics
    fields: StartFields = {
        "peer_id": host.peer_id,
        "notes": host.algorithm.notes(host.workspace),
        "digests": host.compared.digests(),
        "metric": host.metric.as_json(),
        "true_cluster": main_cluster(host.workspace.true_cluster),
        "samples": host.workspace.learner.count(),
        "parameters": host.workspace.learner.schema.size,
    }
    if host.more_metrics:
        fields["more_metrics"] = [metric.as_json() for metric in host.more_metrics]
    return fields


def main_cluster(true_cluster: np.ndarray | None) -> int | None:
    """Return the most frequent of the samples' true clusters, int64 [n]; None where they are not known."""
    if true_cluster is None or len(true_cluster) == 0:
        return None
    return int(np.bincount(true_cluster).argmax())

"""What a peer leaves behind when it ends: its models as safetensors files and `summary.json`."""

from __future__ import annotations

import time
from typing import Any, Protocol

from coordinator_free_bootstrap import Graph
from peer.algorithms.base import Bench
from peer.core.engine import Engine
from peer.core.schema import Schema
from peer.learning.saved import model_metadata
from peer.store.files import write_json
from peer.store.model_file import save_model
from peer.store.state_dir import StateDir


class Ended(Protocol):
    """What the results of a peer are made of: `Assembled` in a process, or a simulated peer."""

    graph: Graph
    bench: Bench
    engine: Engine
    schema: Schema
    state_dir: StateDir
    digests: dict[str, str]
    manifest_json: str
    true_cluster: int | None


def write_results(
    parts: Ended, status: str, last_round: dict[str, Any], seconds: float, *, models: bool = True
) -> dict[str, Any]:
    """Write all cluster models, the personalized model (of a completed run) and the summary; return the summary.

    Args:
        parts: the peer.
        status: how it ended.
        last_round: fields of its last history line.
        seconds: that its run took.
        models: false writes the summary alone.

    Raises:
        StorageError: a file cannot be written.
    """
    engine, manifest, bench = parts.engine, parts.graph.manifest, parts.bench
    metadata = {
        **model_metadata(bench.learner, manifest, len(parts.graph.nodes)),  # type: ignore[arg-type]
        "algorithm": manifest.algorithm,
        "peer_id": str(engine.peer_id),
        "rounds_completed": str(engine.round_index),
    }
    place = parts.state_dir
    for slot in range(len(bench.models) if models else 0):
        save_model(place.cluster_model(slot), bench.models.model(slot), parts.schema, metadata)
    if models and bench.personalized is not None:
        save_model(place.personalized_model, bench.personalized, parts.schema, metadata)
    summary = {
        "peer_id": engine.peer_id,
        "status": status,
        "incarnation": engine.incarnation,
        "rounds_completed": engine.round_index,
        "algorithm": manifest.algorithm,
        "cluster_index": engine.facts.get("cluster_index"),
        "true_cluster": parts.true_cluster,
        "accuracy": last_round.get("accuracy"),
        "loss": last_round.get("loss"),
        "totals": dict(engine.totals),
        "refusals": {str(code): count for code, count in engine.refusals.items()},
        "storage_error": engine.storage_error,
        "run_seconds": seconds,
        "digests": parts.digests,
        "ended_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_json(place.summary, summary)
    return summary

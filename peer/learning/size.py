"""The size of a run's model, in memory and on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coordinator_free_bootstrap import Graph
from peer.algorithms.registry import algorithm_named
from peer.core.encoding import payload_size
from peer.learning.learner import TorchLearner
from peer.tasks.loading import load_task
from peer.tasks.user_code import data_of


@dataclass(frozen=True)
class ModelSize:
    """The encoded bytes of one model: of what travels, and of all of it; and the names of its private tensors."""

    sent_bytes: int
    whole_bytes: int
    private: tuple[str, ...]


def model_size(
    graph: Graph, peer_id: int | None = None, *, data_root: Path | None = None, shard: Path | None = None
) -> ModelSize:
    """Return the size of one model.

    Args:
        graph: of the run.
        peer_id: the peer whose data shape the model; default: the first.
        data_root: of the data set.
        shard: file of the peer's own data.

    Raises:
        ConfigError: run.private_parameters does not fit the model.
        TaskError, ShardError: the task or its data cannot be loaded here.
    """
    manifest, peer_id = graph.manifest, graph.ids[0] if peer_id is None else peer_id
    task = load_task(manifest, len(graph.nodes), data_root=data_root, shard_path=shard)
    whole = TorchLearner(task, data_of(task, peer_id), batch_size=manifest.batch_size).schema
    part = algorithm_named(manifest.algorithm).travelling(manifest, whole)
    sent, of_all = (payload_size(schema, manifest.encoding) for schema in (part, whole))
    return ModelSize(sent, of_all, tuple(spec.name for spec in whole.tensors if spec not in part.tensors))

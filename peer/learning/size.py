"""The size of a run's model on the wire."""

from __future__ import annotations

from pathlib import Path

from coordinator_free_bootstrap import Graph
from peer.core.encoding import payload_size
from peer.learning.learner import TorchLearner
from peer.tasks.loading import load_task
from peer.tasks.user_code import data_of


def model_bytes(
    graph: Graph, peer_id: int | None = None, *, data_root: Path | None = None, shard: Path | None = None
) -> int:
    """Return the bytes of one encoded model.

    Args:
        graph: of the run.
        peer_id: the peer whose data shape the model; default: the first.
        data_root: of the data set.
        shard: file of the peer's own data.

    Raises:
        TaskError, ShardError: the task or its data cannot be loaded here.
    """
    manifest, peer_id = graph.manifest, graph.ids[0] if peer_id is None else peer_id
    task = load_task(manifest, len(graph.nodes), data_root=data_root, shard_path=shard)
    learner = TorchLearner(task, data_of(task, peer_id), batch_size=manifest.batch_size)
    return payload_size(learner.schema, manifest.encoding)

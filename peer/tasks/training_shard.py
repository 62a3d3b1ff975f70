"""The shard that a peer trains on: that of its task, with validation data if its algorithm needs some."""

from __future__ import annotations

from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import derive_seed
from peer.algorithms.registry import algorithm_named
from peer.tasks.shard import Shard
from peer.tasks.task import Task
from peer.tasks.user_code import shard_of


def training_shard(task: Task, peer_id: int, manifest: Manifest) -> Shard:
    """Return a peer's shard; if the algorithm needs validation data and there are none, some training samples are held out.

    Raises:
        TaskError, ShardError: the task or its data cannot be used.
        ConfigError: the manifest's algorithm does not exist.
    """
    shard, share = shard_of(task, peer_id), algorithm_named(manifest.algorithm).validation_share
    if not share:
        return shard
    seed = derive_seed(manifest.data_seed, "validation", peer_id)
    return shard.checked(task.kind, task.classes).holding_out(share, seed)

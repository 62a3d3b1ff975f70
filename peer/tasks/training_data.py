"""The data that a peer trains on: those of its task, with validation data if its algorithm needs some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import derive_seed
from peer.algorithms.registry import algorithm_named
from peer.tasks.shard import Shard
from peer.tasks.task import Task
from peer.tasks.user_code import data_of


def training_data(task: Task, peer_id: int, manifest: Manifest) -> Any:
    """Return a peer's data; if the algorithm needs validation data and a shard has none, some training samples are held out.

    Raises:
        TaskError, ShardError: the task or its data cannot be used.
        ConfigError: the manifest's algorithm does not exist.
    """
    data, share = data_of(task, peer_id), algorithm_named(manifest.algorithm).validation_share
    if not share or not isinstance(data, Shard):
        return data
    if task.preprocessing is not None and task.preprocessing.is_pending:
        data = replace(data, preprocessing=data.preprocessing or task.preprocessing)  # raw float64 stays float64
    seed = derive_seed(manifest.data_seed, "validation", peer_id)
    return data.checked(task.kind, task.classes).holding_out(share, seed)

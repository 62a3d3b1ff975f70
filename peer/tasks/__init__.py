"""Learning problems: data, model, loss and metric. A user's file implements `Task` and returns a `Shard`."""

from peer.tasks.shard import Shard
from peer.tasks.task import Task

__all__ = ["Shard", "Task"]

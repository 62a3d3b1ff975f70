"""Learning problems: data, model, loss, metric. A user's own file implements `Task` and returns a `Shard`."""

from peer.tasks.shard import Shard
from peer.tasks.task import Task

__all__ = ["Shard", "Task"]

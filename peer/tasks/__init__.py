"""Learning problems: data, model, loss and metric. A user's file implements `Task` and returns a `Shard`."""

from peer.core.metric import Metric
from peer.tasks.budget import Budget, Trained
from peer.tasks.preprocessing import Preprocessing, read_picture
from peer.tasks.shard import Shard
from peer.tasks.task import Task

__all__ = ["Budget", "Metric", "Preprocessing", "Shard", "Task", "Trained", "read_picture"]

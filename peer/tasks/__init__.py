"""Learning problems: data, model, loss and metric. A user's file implements `Task` and returns a `Shard`."""

from peer.core.metric import Metric
from peer.tasks.preprocessing import Preprocessing, read_picture
from peer.tasks.shard import Shard
from peer.tasks.task import Task
from peer.zoo.tasks.own_data import Data

__all__ = ["Data", "Metric", "Preprocessing", "Shard", "Task", "read_picture"]

"""A LightningModule as a task, ``peer.lightning.task``; the extra ``lightning`` installs what it needs."""

from peer.lightning.adapter import LightningTask, task

__all__ = ["LightningTask", "task"]

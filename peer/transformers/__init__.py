"""A `Trainer` of Hugging Face as a task, ``peer.transformers.task``; the extra ``hf`` installs what it needs."""

from peer.transformers.adapter import TransformersTask, task

__all__ = ["TransformersTask", "task"]

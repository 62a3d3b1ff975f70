"""What training and evaluation share: task, samples and a model on one device, and one call of the model."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator_free_bootstrap.errors import ShardError
from peer.algorithms.learner import BatchSize
from peer.core.averaging import Vector
from peer.core.schema import Schema
from peer.learning.flat import FlatModule, seeded
from peer.learning.form import check_form
from peer.learning.samples import Batch, Samples, call
from peer.tasks.arrays import each
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import PARTS, Part, Shard
from peer.tasks.task import Task
from peer.tasks.user_code import user_code

EVALUATION_BATCH = {"cpu": 256, "cuda": 4096}  # samples; limits the activations of a CNN to tens of MB on a CPU


class Bench:
    """One task, one shard and working memory for one model.

    Args:
        task: makes the model, the loss and the metric.
        shard: the data of this peer; checked here.
        device: device of models and data.
        batch_size: default for training: samples of a step.
        amp: whether the model computes in bfloat16 where torch.autocast says.

    Raises:
        ShardError: the shard has wrong values.
    """

    model: FlatModule

    def __init__(self, task: Task, shard: Shard, device: str, batch_size: BatchSize, *, amp: bool) -> None:
        self.task = task
        self.device = torch.device(device)
        self.batch_size, self.amp = batch_size, amp
        self.evaluation_batch = EVALUATION_BATCH.get(self.device.type, 256)
        self.use(shard)

    @property
    def schema(self) -> Schema:
        """Names, shapes and roles of a model vector."""
        return self.model.schema

    def count(self, part: Part = "train") -> int:
        """Return the number of samples in a part."""
        return len(self._samples[part])

    def labels(self, part: Part = "train") -> NDArray[np.int64] | None:
        """Return the class of each sample, int64 [n]; None where a sample has no class of its own."""
        targets = self.shard.part(part)[1]
        if self.task.kind != "classification" or len(targets.shape) > 1:
            return None
        return np.asarray(targets, dtype=np.int64)

    def samples(self, part: Part = "train") -> Samples:
        """Return the samples of a part as batches."""
        return self._samples[part]

    @property
    def input_dtype(self) -> str:
        """The dtype of what the model gets, ``float32`` or ``int64``; of several inputs as JSON, by name."""
        inputs = self.samples().inputs(slice(0, 1))
        dtypes = each(lambda tensor: str(tensor.dtype).removeprefix("torch."), inputs)
        return json.dumps(dtypes) if isinstance(dtypes, dict) else str(dtypes)

    @property
    def batch_samples(self) -> int:
        """How many samples a step of the run has."""
        return self.count() if self.batch_size == "all" else min(self.batch_size, self.count())

    def another_model(self) -> FlatModule:
        """Return a new module with the same schema."""
        return self._fresh(self.model.moved)

    def _needed(self, part: Part) -> Samples:
        samples = self._samples[part]
        if not len(samples):
            raise ShardError(f"shard: expected {part} samples, got none. Add them to the shard or the split.")
        return samples

    def _ready(self, theta: Vector) -> None:
        self.model.load(theta)
        self.model.module.eval()

    def _draws(self) -> AbstractContextManager[None]:
        """Return a context in which a model that draws random numbers in evaluation, too, draws the same in every call."""
        return seeded(0, self.device) if self.model.draws else nullcontext()

    def _call(self, inputs: Batch) -> Tensor:
        if not self.amp:
            outputs = call(self.model.module, inputs)
        else:
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                outputs = call(self.model.module, inputs)
            outputs = outputs.float() if isinstance(outputs, Tensor) else outputs
        check_form(self.model.module, inputs, outputs)
        tensor: Tensor = outputs
        return tensor

    def use(self, shard: Shard) -> None:
        """Take a shard of the same form in place of the present one."""
        self.shard = shard.checked(self.task.kind, self.task.classes)
        self._samples = {part: self._part(part) for part in PARTS}

    @property
    def _scaling(self) -> Preprocessing | None:
        return self.shard.preprocessing or self.task.preprocessing

    def _part(self, part: Part) -> Samples:
        x, y = self.shard.part(part)
        kind, classes = self.task.kind, self.task.classes
        return Samples(part, x, y, self.device, scaling=self._scaling, kind=kind, classes=classes)

    def _fresh(self, moved: frozenset[str] = frozenset()) -> FlatModule:
        with user_code("make_model"), seeded(0, self.device):  # the values of the working memory have no meaning
            return FlatModule(self.task.make_model(), self.device, moved)

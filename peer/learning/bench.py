"""What training and evaluation share: task, samples and a model on one device, and one call of the model."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from coordinator_free_bootstrap.errors import ShardError, TaskError
from coordinator_free_bootstrap.manifest import BatchSize, step_and_part
from coordinator_free_bootstrap.strict_json import of_type
from peer.core.averaging import Vector
from peer.core.schema import Schema
from peer.learning.datasets import DatasetSamples, parts_of
from peer.learning.flat import FlatModule, seeded
from peer.learning.form import check_form
from peer.learning.samples import Batch, Samples, call
from peer.tasks.arrays import each, sample_shape
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import PARTS, Part, Shard
from peer.tasks.task import Task
from peer.tasks.user_code import libraries_seeded, user_code

EVALUATION_BATCH = {"cpu": 256, "cuda": 4096}  # samples; limits the activations of a CNN to tens of MB on a CPU


class Bench:
    """One task, the data of one peer and working memory for one model.

    Args:
        task: makes the model, the loss and the metric.
        data: a shard, checked here; or what an own `load_data` returned.
        device: device of models and data.
        batch_size: as ``run.batch_size``: samples of a step, the default for training, and how many the model gets at a time.
        amp: whether the model computes in bfloat16 where torch.autocast says.

    Raises:
        ShardError: the shard has wrong values.
    """

    model: FlatModule

    def __init__(self, task: Task, data: Any, device: str, batch_size: BatchSize, *, amp: bool) -> None:
        self.task = task
        self.device = torch.device(device)
        self.batch_size, self.at_a_time = step_and_part(batch_size)
        self.amp = amp
        self.evaluation_batch = EVALUATION_BATCH.get(self.device.type, 256)
        self.use(data)

    @property
    def shard(self) -> Shard | None:
        """The data, where they are a shard."""
        return self.data if isinstance(self.data, Shard) else None

    @property
    def schema(self) -> Schema:
        """Names, shapes and roles of a model vector."""
        return self.model.schema

    def count(self, part: Part = "train") -> int:
        """Return the number of samples in a part."""
        if part in self._samples or part != "train":
            return len(self._samples.get(part, ()))
        return self._counted

    @cached_property
    def _counted(self) -> int:
        if "count" not in self.task.own:
            dataset: Any = self.data.dataset if isinstance(self.data, DataLoader) else self.data
            if isinstance(dataset, Dataset) and hasattr(dataset, "__len__"):
                return len(dataset)
            raise TaskError(
                f"count: expected an own one, since load_data returned {of_type(self.data)}. Let Task.count(data) return the "
                "number of training samples."
            )
        with user_code("count"):
            found: object = self.task.count(self.data)
        if not isinstance(found, int) or found < 1:
            raise TaskError(f"count: expected the number of training samples, 1 or more, got {found!r}")
        return found

    def labels(self, part: Part = "train") -> NDArray[np.int64] | None:
        """Return the class of each sample, int64 [n]; None where a sample has no class of its own."""
        if self.shard is None:
            return None
        targets = self.shard.part(part)[1]
        if self.task.kind != "classification" or len(targets.shape) > 1:
            return None
        return np.asarray(targets, dtype=np.int64)

    def samples(self, part: Part = "train") -> Samples | DatasetSamples:
        """Return the samples of a part as batches; only where there are `samples` at all."""
        return self._samples[part]

    @property
    def input_dtype(self) -> str:
        """The dtype of what the model gets, ``float32`` or ``int64``; of several inputs as JSON, by name."""
        if not self._samples:
            return ""
        inputs = self.samples().inputs(slice(0, 1))
        dtypes = each(lambda tensor: str(tensor.dtype).removeprefix("torch."), inputs)
        return json.dumps(dtypes) if isinstance(dtypes, dict) else str(dtypes)

    @property
    def sample_shape(self) -> Any:
        """The shape of one input, a list; of several inputs a dict of them by name; None where it is not known."""
        if self.shard is not None:
            return sample_shape(self.shard.train_x)
        return sample_shape(self.samples().inputs(slice(0, 1))) if self._samples else None

    @property
    def batch_samples(self) -> int:
        """How many samples a step of the run has."""
        return self.count() if self.batch_size == "all" else min(self.batch_size, self.count())

    def another_model(self) -> FlatModule:
        """Return a new module with the same schema."""
        return self._fresh(self.model.moved)

    def _needed(self, part: Part) -> Samples | DatasetSamples:
        samples = self._samples.get(part, ())
        if not isinstance(samples, Samples | DatasetSamples) or not len(samples):
            raise ShardError(f"shard: expected {part} samples, got none. Add them to the shard or the split.")
        return samples

    def _ready(self, theta: Vector) -> None:
        self.model.load(theta)
        self.model.module.eval()

    def _draws(self) -> AbstractContextManager[None]:
        """Return a context in which a model or data set that draws random numbers in evaluation draws the same in every call."""
        if self.shard is None:
            return libraries_seeded(0)
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

    def use(self, data: Any) -> None:
        """Take data of one form in place of the present ones; raises ShardError as the constructor does."""
        self.data = data.checked(self.task.kind, self.task.classes) if isinstance(data, Shard) else data
        self._samples: dict[Part, Samples | DatasetSamples] = (
            {part: self._part(part) for part in PARTS}
            if isinstance(self.data, Shard)
            else {part: DatasetSamples(part, source, self.device) for part, source in parts_of(self.data).items()}
        )

    @property
    def _scaling(self) -> Preprocessing | None:
        return (self.shard.preprocessing if self.shard else None) or self.task.preprocessing

    def _part(self, part: Part) -> Samples:
        assert self.shard is not None
        x, y = self.shard.part(part)
        kind, classes = self.task.kind, self.task.classes
        return Samples(part, x, y, self.device, scaling=self._scaling, kind=kind, classes=classes)

    def _fresh(self, moved: frozenset[str] = frozenset()) -> FlatModule:
        with user_code("make_model"), seeded(0, self.device):  # the values of the working memory have no meaning
            return FlatModule(self.task.make_model(), self.device, moved)

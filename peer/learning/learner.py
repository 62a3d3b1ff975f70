"""Local training and evaluation of one peer: functions of a flat model vector, float32 [d], and the peer's data.

A learner keeps working memory between calls, but no model. The result of `train` depends only on its arguments and the
shard, bit for bit on one thread, also after a fork or a restart. Only one thread at a time may use a learner.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator_free_bootstrap.errors import PeerError, TaskError
from coordinator_free_bootstrap.manifest import BatchSize
from coordinator_free_bootstrap.seeds import derive_seed
from coordinator_free_bootstrap.strict_json import of_type
from coordinator_free_bootstrap.user_file import USER_ERRORS, described
from peer.algorithms.learner import Ability, TrainingPlan
from peer.core.averaging import Vector
from peer.learning.evaluating import Evaluating
from peer.learning.flat import FlatModule, generators_of, seeded
from peer.learning.form import check_pairs
from peer.learning.private_gradient import check_private
from peer.learning.site_scaling import SiteScaling
from peer.learning.start import WarmStart
from peer.learning.training import Training
from peer.tasks.arrays import sample_shape
from peer.tasks.meaning import meaning_of
from peer.tasks.process_settings import users_settings
from peer.tasks.shard import PARTS
from peer.tasks.task import Task
from peer.tasks.user_code import user_code

SOME = 8  # samples of a first look at a model: enough for the statistics of a batch


class TorchLearner(Training, Evaluating):
    """Training and evaluation of model vectors of one task on one shard.

    Args:
        task: makes the model, the loss and the metric.
        data: of this peer: a shard, which the constructor checks, or what an own `load_data` returned.
        device: device of models and data, such as "cpu" or "cuda".
        batch_size: as ``run.batch_size``: samples of a step, the default for training, and how many the model gets at a time.
        unit: what the run counts, ``run.local_unit``; a trial of an own loop gets a budget of the same kind.
        amp: whether the model computes in bfloat16 where torch.autocast says; parameters, losses and updates are float32.
        model: working memory to share with other learners of the same task on the same device and thread.

    Attributes:
        start: where first models come from; None: from a seed.
        scaling: the part of this peer in shared scaling; None where mean and deviation are not pending.

    Raises:
        ShardError: the shard has wrong values.
        TaskError: model, loss or metric fail on this shard; the message says which and why.
    """

    def __init__(
        self,
        task: Task,
        data: Any,
        *,
        device: str = "cpu",
        batch_size: BatchSize = 100,
        unit: Literal["epoch", "step"] = "epoch",
        model: FlatModule | None = None,
        amp: bool = False,
    ) -> None:
        self.start: WarmStart | None = None
        self.unit = unit
        self.scaling = SiteScaling.of(task, data, self.use)
        super().__init__(task, data if self.scaling is None else self.scaling.provisional, device, batch_size, amp=amp)
        self._check_methods()
        self.model = model or self._made()
        self.frozen_digest = self.model.frozen_digest  # before the first call of the model
        if model is None:
            self.model.watch()
        if self._samples:
            self._probe()

    @property
    def started_from(self) -> dict[str, Any] | None:
        """Where the first models come from, see `WarmStart.about`; None: from a seed."""
        return None if self.start is None else self.start.about(self.schema)

    @cached_property
    def abilities(self) -> frozenset[Ability]:
        """What algorithms may ask for beyond training, evaluation and counts."""
        own, found = self.task.own, set[Ability]()
        if "train" not in own:
            found |= {"batches", "subset"}
        if self._samples or "subset" in own:
            found.add("subset")
        if self._samples or "losses" in own:
            found.add("losses")
        if self._samples:
            found.add("outputs")
        return frozenset(found)

    def _check_methods(self) -> None:
        """Check that a task with other data than arrays has the methods that these need.

        Raises:
            TaskError: one is missing.
        """
        own, what = self.task.own, of_type(self.data)
        if self.shard is None and "train" not in own:
            raise TaskError(
                f"train: expected an own one, since load_data returned {what}. Or return a Shard from load_shard."
            )
        if not self._samples and "evaluate" not in own:
            raise TaskError(
                f"evaluate: expected an own one, since load_data returned {what}. Or return data sets or loaders by part, "
                "{'train': ..., 'test': ...}."
            )

    @cached_property  # the user may change the task file while the peer runs
    def meaning(self) -> str:
        """What the numbers of a model mean for this task and shard, as neighbors compare it."""
        text = meaning_of(self.task, self.shard, self.schema, self.input_dtype, self.sample_shape).text()
        return sys.intern(text)  # equal at all peers of a process

    @property
    def true_cluster(self) -> NDArray[np.int64] | None:
        """The cluster that each training sample was drawn from, int64 [n], where known."""
        return None if self.shard is None else self.shard.true_cluster

    @property
    def test_cluster(self) -> NDArray[np.int64] | None:
        """The cluster that each test sample was drawn from, int64 [m], where known."""
        return None if self.shard is None else self.shard.test_cluster

    def initial_model(self, seed: int, slot: int = 0) -> Vector:
        """Return initial values, float32 [d], a function of the seed, or those of ``start``.

        Args:
            seed: of the values that are drawn; the state of torch's generator is restored.
            slot: of the model, where ``start`` has several.
        """
        cpu = torch.device("cpu")
        with user_code("make_model"), seeded(derive_seed(seed, "initial_model"), cpu):
            fresh = FlatModule(self.task.make_model(), cpu, self.model.moved)
        if fresh.schema != self.schema:
            raise TaskError("make_model: expected the same names and shapes in every call, got others in a second call")
        drawn = fresh.store()
        return drawn if self.start is None else self.start.into(drawn, self.schema, slot)

    def check_private(self) -> None:
        """Check that trainings can be private.

        Raises:
            TaskError: the task has its own loop, or model or loss do not allow it.
        """
        if "train" in self.task.own or self.amp:
            what = (
                "bfloat16 (amp)" if self.amp else "an own training loop, whose batches and gradients it chooses itself"
            )
            raise TaskError(
                f"train: expected the built-in loop in float32 with run.privacy, which draws the batches and clips each sample's "
                f"gradient, got {what}. Return a Shard from load_shard, without an own train, or set run.privacy.clip_norm to "
                "null."
            )
        if self._scaling is not None and self._scaling.of_samples:
            raise TaskError(
                "preprocessing: expected mean and deviation from no training sample with run.privacy, since each input would "
                "tell of all samples, got those of this peer's data. Give the task numbers that are known without the data, or "
                "set run.task_options.standardize=false."
            )
        self.model.load(self.initial_model(0))
        check_private(self)

    def _made(self) -> FlatModule:
        """Make the model; where forward may move tensors outside of its vector, look in two steps of training which it moves."""
        trial = self._fresh()
        if not (trial.constants and self.task.can_try):
            return trial
        before = trial.digests()
        self.model, some = trial, np.arange(min(SOME, self.count()))
        try:
            built_in = TrainingPlan(2, 0, 0.01, indices=some, unit="step")
            plan = built_in if "batches" in self.abilities else TrainingPlan(1, 0, 0.01, trial=2)
            self.train(trial.store(), plan)
        except PeerError:  # of the task; the probe or the first training says it better
            return self._fresh()
        now = trial.digests()
        return self._fresh(frozenset(name for name in before if now[name] != before[name]))

    def _probe(self) -> None:
        """Call model, loss and metric with two samples, so that a wrong shape is reported before the run."""
        with user_code("shard"):
            x, y = self._samples["train"].batch(torch.arange(2, device=self.device))
        shape = sample_shape(x)
        self.model.module.eval()
        with users_settings(), torch.no_grad(), seeded(0, self.device):
            generators = generators_of(self.device)
            before = [generator.get_state() for generator in generators]
            try:
                outputs = self._call(x)
            except PeerError:
                raise
            except USER_ERRORS as error:
                raise TaskError(
                    f"model: expected one that accepts samples of shape {shape}, got {described(error)}{self._hint()}"
                ) from error
            now = [generator.get_state() for generator in generators]
            self.model.draws |= not all(map(torch.equal, before, now))
            self._check_outputs(outputs, y)
            axis = self.task.class_axis if self.task.kind == "classification" else -1
            self.outputs = 1 if outputs.dim() == 1 else outputs.shape[axis]
            try:
                losses, metric = self.task.loss(outputs, y), self.task.metric(outputs.cpu(), y.cpu())
                self.task.measured_more(outputs.cpu(), y.cpu())
            except PeerError:
                raise
            except USER_ERRORS as error:
                raise TaskError(
                    f"loss or metric: {described(error)} for outputs {list(outputs.shape)}. Correct the task."
                ) from error
        if not isinstance(losses, Tensor) or losses.shape != y.shape[:1]:
            actual = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise TaskError(f"loss: expected one value per sample, here [2], got {actual}. Use reduction='none'.")
        if not isinstance(metric, float | int):
            raise TaskError(f"metric: expected a number, got {type(metric).__name__}. Use float(...).")
        with torch.no_grad():
            check_pairs(self.task, outputs, y)

    def _hint(self) -> str:
        """Return what to do where a model gets integers that it may not be made for."""
        x = None if self.shard is None else self.shard.train_x
        if (
            x is None
            or isinstance(x, Mapping)
            or not np.issubdtype(x.dtype, np.integer)
            or ((s := self._scaling) and s.changes_values)
        ):
            return ""
        return (
            ". Integers are passed as int64, for models that embed tokens. If they are raw values, such as bytes of "
            "pictures, set preprocessing, as in Preprocessing(divisor=255)."
        )

    def _check_outputs(self, outputs: Tensor, targets: Tensor) -> None:
        """Compare the form of a classifier's outputs with classes and labels."""
        if self.task.kind != "classification":
            return
        axis, actual = self.task.class_axis, list(outputs.shape)
        if outputs.dim() < 2:
            raise TaskError(f"model: expected outputs [samples, classes, ...], got shape {actual}")
        if self.task.classes not in (None, outputs.shape[axis]):
            raise TaskError(
                f"model: expected {self.task.classes} outputs, one for each class of the task, got {outputs.shape[axis]}"
            )
        for part in PARTS:
            if part in self._samples:
                self._samples[part].check_labels(outputs.shape[axis])
        elements = list(outputs.movedim(axis, -1).shape[:-1])
        if targets.dim() > 1 and elements != list(targets.shape):
            raise TaskError(
                f"model: expected one row of classes for each label, got outputs of shape {actual} with classes on "
                f"axis {axis} for labels {list(targets.shape)}. Set class_axis in the task, 1 for [samples, classes, "
                "...], -1 for [samples, ..., classes]."
            )

"""Local training and evaluation of one peer: functions of a flat model vector, float32 [d], and the peer's shard.

A learner keeps working memory between calls, but no model. The result of `train` depends only on its arguments and the
shard, bit for bit on one thread, also after a fork or a restart. Only one thread at a time may use a learner.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator_free_bootstrap.errors import PeerError, ShardError, TaskError
from coordinator_free_bootstrap.seeds import derive_seed, generator
from coordinator_free_bootstrap.user_file import USER_ERRORS, described
from peer.core.schema import Schema
from peer.learning.flat import FlatModule, Vector, generators_of, seeded
from peer.learning.form import check_form, check_pairs
from peer.learning.optimizer_state import restore, state_of
from peer.learning.samples import Batch, Samples, call
from peer.learning.sgd import SGD, Optimizer
from peer.tasks.arrays import Inputs, each, sample_shape
from peer.tasks.meaning import meaning_of
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.process_settings import users_settings
from peer.tasks.shard import PARTS, Part, Shard
from peer.tasks.task import Task
from peer.tasks.user_code import user_code

Unit = Literal["epoch", "fullbatch_step", "step"]
Batches = Iterator[Tensor | None]  # indices int64 [b] into the training set; None: all of it
SOME = 8  # samples of a first look at a model: enough for the statistics of a batch
EVALUATION_BATCH = {"cpu": 256, "cuda": 4096}  # samples; limits the activations of a CNN to tens of MB on a CPU


@dataclass(frozen=True, slots=True)
class TrainStats:
    """Statistics of one local training."""

    loss: float  # mean over all used samples, before each step, without the proximal term; NaN if none
    samples: int  # used, with repetitions
    steps: int
    stopped: bool = False  # whether should_stop ended it
    optimizer_state: dict[str, Vector] | None = None  # if asked for: each value flat, for all trained parameters
    metric: float | None = None  # mean score of the same outputs; None if the task needs all at once


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metric and loss of a model on one part of the shard."""

    metric: float  # accuracy in [0, 1], or the metric of the task
    loss: float
    samples: int
    metric_name: str = "accuracy"
    more: Mapping[str, float] = field(default_factory=dict)  # the task's other metrics, by name


class Learner:
    """Training and evaluation of model vectors of one task on one shard.

    Args:
        task: makes the model, the loss and the metric.
        shard: the data of this peer; the constructor checks it.
        device: device of models and data, such as "cpu" or "cuda".
        batch_size: default for training.
        amp: whether the model computes in bfloat16 where torch.autocast says; parameters, losses and updates are float32.
        model: working memory to share with other learners of the same task on the same device and thread.

    Raises:
        ShardError: the shard has wrong values.
        TaskError: model, loss or metric fail on this shard; the message says which and why.
    """

    def __init__(
        self,
        task: Task,
        shard: Shard,
        *,
        device: str = "cpu",
        batch_size: int = 100,
        model: FlatModule | None = None,
        amp: bool = False,
    ) -> None:
        self.task = task
        self.shard = shard.checked(task.kind, task.classes)
        self.device = torch.device(device)
        self.batch_size, self.amp = batch_size, amp
        self._samples = {part: self._part(part) for part in PARTS}
        self.model = model or self._made()
        self.frozen_digest = self.model.frozen_digest  # before the first call of the model
        if model is None:
            self.model.watch()
        self.evaluation_batch = EVALUATION_BATCH.get(self.device.type, 256)
        self._probe()

    @property
    def schema(self) -> Schema:
        """Names, shapes and roles of a model vector."""
        return self.model.schema

    @cached_property  # the user may change the task file while the peer runs
    def meaning(self) -> str:
        """What the numbers of a model mean for this task and shard, as neighbors compare it."""
        text = meaning_of(self.task, self.shard, self.schema, self.input_dtype).text()
        return sys.intern(text)  # equal at all peers of a process

    @property
    def true_cluster(self) -> NDArray[np.int64] | None:
        """The cluster that each training sample was drawn from, int64 [n], where known."""
        return self.shard.true_cluster

    @property
    def test_cluster(self) -> NDArray[np.int64] | None:
        """The cluster that each test sample was drawn from, int64 [m], where known."""
        return self.shard.test_cluster

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

    def initial_model(self, seed: int) -> Vector:
        """Return initial values, float32 [d], a function of the seed; the state of torch's generator is restored."""
        cpu = torch.device("cpu")
        with user_code("make_model"), seeded(derive_seed(seed, "initial_model"), cpu):
            fresh = FlatModule(self.task.make_model(), cpu, self.model.moved)
        if fresh.schema != self.schema:
            raise TaskError("make_model: found other names or shapes in a second call; allowed: the same in every call")
        return fresh.store()

    def train(
        self,
        theta: Vector,
        *,
        epochs: int,
        seed: int,
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        indices: NDArray[np.int64] | None = None,
        sample_weights: NDArray[np.float32] | None = None,
        proximal: tuple[Vector, float] | None = None,
        unit: Unit = "epoch",
        optimizer: Literal["sgd", "adam"] = "sgd",
        batch_size: int | None = None,
        gradient_clip: float | None = None,
        only: frozenset[str] | None = None,
        optimizer_state: dict[str, Vector] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[Vector, TrainStats]:
        """Train a copy of ``theta`` on the training set.

        Args:
            theta: float32 [d], read only.
            epochs: passes over the samples; or steps, by ``unit``.
            seed: of shuffling and dropout.
            learning_rate: constant during the call.
            momentum: of SGD, with dampening 0; the buffer starts at 0, unless ``optimizer_state`` has one.
            weight_decay: added to the gradient, as in torch.
            indices: int64 [m], the samples to train on; default all.
            sample_weights: float32 [n], of all training samples; the objective is sum(w * loss) / batch size
                (FedEM, Marfoq et al. 2021, arXiv:2108.10252).
            proximal: (center float32 [d], strength): adds strength * (theta - center) to the gradient of parameters.
            unit: "epoch", "step" (mini-batches), or "fullbatch_step" (one gradient over all samples, as
                the code of IFCA, arXiv:2006.04088).
            optimizer: used if the task has none.
            batch_size: default: of the learner. A last batch of one sample is dropped if the model has BatchNorm.
            gradient_clip: a step's gradient with a larger norm is scaled down to it.
            only: names of the parameters to train; the others do not change. Buffers change always.
            optimizer_state: of an earlier call, {} for none; given, the statistics have that of this call's end. None: a fresh
                optimizer, whose state is not kept.
            should_stop: called before each step; true ends the training with the steps done.

        Returns:
            The trained vector, a new float32 [d], and its statistics.
        """
        model = self.model
        model.load(theta)
        model.reset_integers()
        model.module.train()
        step = _Step(self, model, sample_weights, proximal)
        step.clip = gradient_clip
        trained = model.restrict(only)
        batches = self._batches(indices, unit, epochs, batch_size or self.batch_size, generator(seed, "shuffle"))
        stopped = False
        with users_settings(), seeded(derive_seed(seed, "dropout"), self.device):
            step.optimizer = self._optimizer(trained, optimizer, learning_rate, momentum, weight_decay)
            if optimizer_state:
                restore(step.optimizer, trained, optimizer_state)
            for batch in batches:
                if should_stop is not None and should_stop():
                    stopped = True
                    break
                with user_code("training"):
                    step(batch)
        model.restrict(None)
        model.check_constants()
        for parameter in model.parameters:
            parameter.grad = None  # as large as the model, not needed before the next training
        loss = float(step.loss_sum) / step.samples if step.samples else float("nan")
        kept = None if optimizer_state is None else state_of(step.optimizer, trained)
        metric = float(step.score_sum) / step.samples if step.samples and step.score is not None else None
        return model.store(), TrainStats(loss, step.samples, step.steps, stopped, kept, metric)

    def sample_losses(self, theta: Vector, part: Part = "train") -> NDArray[np.float32]:
        """Return each sample's loss, float32 [n], in evaluation mode; infinity where the loss is not a number."""
        return _numbers(self._measured(theta, part, lambda outputs, targets: (self.task.loss(outputs, targets),))[0])

    def mean_loss(self, theta: Vector, part: Part = "train") -> float:
        """Return the mean loss in evaluation mode: the client loss of DFCA (arXiv:2510.15300), Eq. 1."""
        return float(self.sample_losses(theta, part).mean(dtype=np.float64))

    def evaluate(self, theta: Vector, part: Part = "test") -> Evaluation:
        """Return metric and mean loss on one part, in evaluation mode."""
        if self.task.needs_all_outputs:
            outputs, targets = self._measured(theta, part, lambda outputs, targets: (outputs, targets))
            return self._evaluation(outputs, outputs, targets)
        losses, scores = self._measured(
            theta, part, lambda outputs, targets: (self.task.loss(outputs, targets), self.task.score(outputs, targets))
        )
        metric = float(scores.double().mean())
        return Evaluation(metric, float(losses.double().mean()), len(losses), self.task.metric_name)

    def sample_scores(self, theta: Vector, part: Part = "test") -> NDArray[np.float32]:
        """Return for each sample the share of its labels that are predicted (1 or 0 of one label); in regression its loss."""
        if self.task.kind == "regression":
            return self.sample_losses(theta, part)
        return self._measured(theta, part, lambda outputs, targets: (self.task.score(outputs, targets),))[0].numpy()

    def predict(self, theta: Vector, inputs: Inputs) -> NDArray[np.float32]:
        """Return the outputs of the model, float32 [n, ...], for ``inputs`` [n, ...] of the kind in the shard."""
        samples = Samples("input", inputs, None, self.device, scaling=self._scaling)
        self._ready(theta)
        with user_code("model"), torch.no_grad(), self._draws():
            parts = [self._call(samples.inputs(rows)) for rows in samples.slices(self.evaluation_batch)]
            return torch.cat(parts).cpu().numpy()

    def outputs_of(self, theta: Vector, rows: slice, part: Part = "train") -> Tensor:
        """Return the outputs of a model for some samples, in one batch, on the CPU."""
        self._ready(theta)
        with user_code("model"), torch.no_grad(), self._draws():
            return self._call(self._needed(part).inputs(rows)).cpu()

    def try_last(self, theta: Vector, part: Part, rows: int) -> None:
        """Call model, loss and score with the last samples of a part.

        Raises:
            TaskError: one fails.
        """
        last = slice(self.count(part) - rows, self.count(part))
        outputs, targets = self.outputs_of(theta, last, part), self._needed(part).targets(last).cpu()
        with user_code("loss or metric"), torch.no_grad():
            self.task.loss(outputs, targets)
            if not self.task.needs_all_outputs:
                self.task.score(outputs, targets)

    def another_model(self) -> FlatModule:
        """Return a new module with the same schema."""
        return self._fresh(self.model.moved)

    @property
    def input_dtype(self) -> str:
        """The dtype of what the model gets, ``float32`` or ``int64``; of several inputs as JSON, by name."""
        inputs = self.samples().inputs(slice(0, 1))
        found = each(lambda tensor: str(tensor.dtype).removeprefix("torch."), inputs)
        return json.dumps(found) if isinstance(found, dict) else str(found)

    def predict_proba(self, theta: Vector, part: Part = "test") -> NDArray[np.float32]:
        """Return probabilities, float32, of the form of the outputs, [n, classes]; in regression the outputs."""
        return self._measured(theta, part, lambda outputs, _: (self.task.probabilities(outputs),))[0].numpy()

    def evaluate_predictions(self, predictions: NDArray[np.float32], part: Part = "test") -> Evaluation:
        """Evaluate a mixture of `predict_proba` of several models (FedEM mixes predictions, not parameters)."""
        targets = self._needed(part).targets(slice(None)).cpu()
        mixed = torch.from_numpy(np.ascontiguousarray(predictions))
        scores = self.task.outputs_for(mixed)
        return self._evaluation(mixed if self.task.kind == "classification" else scores, scores, targets)

    def prediction_losses(
        self, predictions: NDArray[np.float32], part: Part, indices: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the loss of each of the samples ``indices``, int64 [m], of a part, given its prediction; float32 [m].

        It is infinity where the loss is not a number.

        Args:
            predictions: float32 [m, ...], of the form that `predict_proba` gives.
            part: of the shard.
            indices: of samples in it.
        """
        targets = self._needed(part).targets(torch.from_numpy(indices).to(self.device)).cpu()
        with user_code("loss"), torch.no_grad():
            return _numbers(self.task.loss(self.task.outputs_for(torch.from_numpy(predictions)), targets))

    def _evaluation(self, outputs: Tensor, scores: Tensor, targets: Tensor) -> Evaluation:
        with user_code("loss or metric"), torch.no_grad():
            loss = float(self.task.loss(scores, targets).double().mean())
            more = self.task.measured_more(outputs, targets)
            return Evaluation(
                float(self.task.metric(outputs, targets)), loss, len(targets), self.task.metric_name, more
            )

    def _needed(self, part: Part) -> Samples:
        samples = self._samples[part]
        if not len(samples):
            raise ShardError(f"shard: found no {part} samples; they are needed; add them to the shard or the split")
        return samples

    def _measured(
        self, theta: Vector, part: Part, measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Return what is measured of the outputs of each batch, [n, ...] on the CPU; nothing else of a batch is kept."""
        samples = self._needed(part)
        self._ready(theta)
        kept: list[Tensor] = []
        with user_code("model, loss or metric"), torch.no_grad(), self._draws():
            for rows in samples.slices(self.evaluation_batch):
                inputs, targets = samples.batch(rows)
                found = measure(self._call(inputs), targets)
                # Allocated once: small tensors that stay, between the large ones of each batch, would fragment the heap.
                kept = kept or [torch.empty(len(samples), *t.shape[1:], dtype=t.dtype) for t in found]
                for whole, values in zip(kept, found, strict=True):
                    whole[rows] = values
        return tuple(kept)

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
        found: Tensor = outputs
        return found

    def _batches(
        self, indices: NDArray[np.int64] | None, unit: Unit, epochs: int, batch_size: int, shuffle: np.random.Generator
    ) -> Batches:
        """Yield the samples of each step; every epoch has a new order, a function of the seed."""
        count = self.count() if indices is None else len(indices)
        if count == 0:
            return
        if unit == "fullbatch_step":
            if self.samples().stored:
                raise TaskError(
                    "run.local_unit: found fullbatch_step with samples on disk, of which a step would load all; allowed: "
                    "epoch or step; or give samples in memory"
                )
            whole = None if indices is None else self._index(np.asarray(indices))
            yield from (whole for _ in range(epochs))
            return
        drop_single = self.model.has_batch_norm
        if drop_single and batch_size == 1:
            raise TaskError("run.batch_size: found 1 with a model that has BatchNorm; allowed: 2 or more")
        if epochs == 0 or (drop_single and count == 1):
            return
        steps = 0
        for _ in itertools.count() if unit == "step" else range(epochs):
            order = shuffle.permutation(count)
            chosen = self._index(order if indices is None else indices[order])
            for batch in torch.split(chosen, batch_size):
                if drop_single and len(batch) == 1:
                    continue
                yield batch
                steps += 1
                if unit == "step" and steps == epochs:
                    return

    def _optimizer(
        self, parameters: list[Tensor], name: str, rate: float, momentum: float, weight_decay: float
    ) -> Optimizer:
        with user_code("make_optimizer"):
            own = self.task.make_optimizer(parameters, rate)  # type: ignore[arg-type]
        if own is not None:
            return own
        if name == "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=weight_decay, fused=True)
        return SGD(parameters, rate, momentum, weight_decay)

    def _index(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.int64)).to(self.device)

    @property
    def _scaling(self) -> Preprocessing | None:
        return self.shard.preprocessing or self.task.preprocessing

    def _part(self, part: Part) -> Samples:
        x, y = self.shard.part(part)
        kind, classes = self.task.kind, self.task.classes
        return Samples(part, x, y, self.device, scaling=self._scaling, kind=kind, classes=classes)

    def _made(self) -> FlatModule:
        """Make the model; where forward may move tensors outside of its vector, look in two steps of training which it moves."""
        trial = self._fresh()
        if not trial.constants:
            return trial
        before = trial.digests()
        self.model, some = trial, np.arange(min(SOME, self.count()))
        try:
            self.train(trial.store(), epochs=2, seed=0, learning_rate=0.01, indices=some, unit="step")
        except PeerError:  # of the task; the probe or the first training says it better
            return self._fresh()
        now = trial.digests()
        return self._fresh(frozenset(name for name in before if now[name] != before[name]))

    def _fresh(self, moved: frozenset[str] = frozenset()) -> FlatModule:
        with user_code("make_model"), seeded(0, self.device):  # the values of the working memory have no meaning
            return FlatModule(self.task.make_model(), self.device, moved)

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
                    f"model: found {described(error)} for samples of shape {shape}; it must accept them{self._hint()}"
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
                    f"loss or metric: found {described(error)} for outputs {list(outputs.shape)}; correct the task"
                ) from error
        if not isinstance(losses, Tensor) or losses.shape != y.shape[:1]:
            found = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise TaskError(f"loss: found {found}; allowed: one value per sample, here [2]; use reduction='none'")
        if not isinstance(metric, float | int):
            raise TaskError(f"metric: found {type(metric).__name__}; allowed: a number; use float(...)")
        with torch.no_grad():
            check_pairs(self.task, outputs, y)

    def _hint(self) -> str:
        """Return what to do where a model gets integers that it may not be made for."""
        x = self.shard.train_x
        if (
            isinstance(x, Mapping)
            or not np.issubdtype(x.dtype, np.integer)
            or ((s := self._scaling) and s.changes_values)
        ):
            return ""
        return (
            "; integers are passed as int64, for models that embed tokens: where they are raw values, such as bytes of "
            "pictures, set preprocessing, as in Preprocessing(divisor=255)"
        )

    def _check_outputs(self, outputs: Tensor, targets: Tensor) -> None:
        """Compare the form of a classifier's outputs with classes and labels."""
        if self.task.kind != "classification":
            return
        axis, found = self.task.class_axis, list(outputs.shape)
        if outputs.dim() < 2:
            raise TaskError(f"model: found outputs of shape {found}; allowed: [samples, classes, ...]")
        if self.task.classes not in (None, outputs.shape[axis]):
            raise TaskError(f"model: found {outputs.shape[axis]} outputs; the task has {self.task.classes} classes")
        for part in PARTS:
            self._samples[part].check_labels(outputs.shape[axis])
        elements = list(outputs.movedim(axis, -1).shape[:-1])
        if targets.dim() > 1 and elements != list(targets.shape):
            raise TaskError(
                f"model: found outputs of shape {found} with classes on axis {axis} for labels {list(targets.shape)}; "
                "allowed: one row of classes for each label; set class_axis in the task, 1 for [samples, classes, ...], "
                "-1 for [samples, ..., classes]"
            )


class _Step:
    """One optimizer step, and the sums for `TrainStats`."""

    optimizer: Optimizer
    clip: float | None = None

    def __init__(
        self,
        learner: Learner,
        model: FlatModule,
        sample_weights: NDArray[np.float32] | None,
        proximal: tuple[Vector, float] | None,
    ) -> None:
        self.data, self.forward = learner.samples(), learner._call
        self.loss, self.parameters = learner.task.loss, model.parameters
        self.score = None if learner.task.needs_all_outputs else learner.task.score
        self.weights = None
        if sample_weights is not None:
            if sample_weights.shape != (len(self.data),):
                raise TaskError(f"sample_weights: found shape {sample_weights.shape}; allowed: ({len(self.data)},)")
            self.weights = torch.from_numpy(np.array(sample_weights, dtype=np.float32)).to(learner.device)
        self.center = None if proximal is None else model.views(proximal[0])
        self.strength = 0.0 if proximal is None else proximal[1]
        self.loss_sum, self.score_sum = torch.zeros(2, device=learner.device)
        self.samples = self.steps = 0

    def __call__(self, batch: Tensor | None) -> None:
        """Take one step on the samples ``batch``, int64 [b], or on all of them."""
        self.optimizer.zero_grad(set_to_none=True)  # before the forward pass, which reuses the memory
        x, y = self.data.batch(slice(None) if batch is None else batch)
        outputs = self.forward(x)
        losses = self.loss(outputs, y)  # (b,)
        if self.score is not None:
            self.score_sum += self.score(outputs.detach(), y).sum()
        objective = losses
        if self.weights is not None:
            objective = losses * (self.weights if batch is None else self.weights.index_select(0, batch))
        objective.mean().backward()  # type: ignore[no-untyped-call]
        if self.clip is not None or self.center is not None or isinstance(self.optimizer, torch.optim.Adam):
            self._densify()
        if self.center is not None:
            self._pull()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        self.loss_sum += losses.detach().sum()
        self.samples += len(y)
        self.steps += 1

    def _densify(self) -> None:
        """Make sparse gradients (of embeddings) dense: norms, pulls and Adam are not made for them in torch."""
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()

    def _pull(self) -> None:
        """Add strength * (theta - center) to the gradients (FedSoft, arXiv:2112.06053, Eq. 5 with its centers averaged)."""
        with torch.no_grad():
            for parameter, center in zip(self.parameters, self.center or (), strict=True):
                if not parameter.requires_grad:
                    continue
                pull = (parameter - center).mul_(self.strength)
                parameter.grad = pull if parameter.grad is None else parameter.grad.add_(pull)


def _numbers(losses: Tensor) -> NDArray[np.float32]:
    """Return losses with infinity in place of NaN: of several models, the one of lowest loss is then never a diverged one."""
    found: NDArray[np.float32] = losses.masked_fill(losses.isnan(), torch.inf).numpy()
    return found

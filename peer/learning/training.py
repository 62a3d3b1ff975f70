"""Training of a model vector: the steps that a `TrainingPlan` names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.algorithms.learner import StepSamples, TrainingPlan, TrainStats
from peer.core.averaging import Vector
from peer.learning.bench import Bench
from peer.learning.datasets import subset_of
from peer.learning.flat import seeded
from peer.learning.inside import Inside
from peer.learning.optimizer_state import restore, state_of
from peer.learning.own_loop import OwnLoop
from peer.learning.private_gradient import PrivateGradient, poisson_batches
from peer.learning.pull import pull
from peer.learning.sgd import SGD, Optimizer
from peer.tasks.process_settings import users_settings
from peer.tasks.user_code import user_code

Batches = Iterator[Tensor | None]  # indices int64 [b] into the training set; None: all of it


class Training(Bench):
    """A bench that trains."""

    def train(self, theta: Vector, plan: TrainingPlan) -> tuple[Vector, TrainStats]:
        """Train a copy of ``theta``, float32 [d], on the training set; return it, a new float32 [d], and its statistics."""
        if "train" in self.task.own:
            loop = OwnLoop(self.task, self.model, amp=self.amp)
            return loop.train(theta, plan, *self._chosen(plan))
        model = self.model
        model.load(theta)
        model.reset_integers()
        model.module.train()
        trained = model.restrict(plan.only)
        step = _Step(self, plan)
        stopped = False
        with users_settings(), seeded(derive_seed(plan.seed, "dropout"), self.device):
            step.optimizer = self._optimizer(trained, plan)
            if plan.optimizer_state:
                restore(step.optimizer, trained, plan.optimizer_state)
            inside = None
            if plan.partial is not None:
                inside = Inside(plan.partial, self.model, step, self.steps_of(plan))
            for batch in self._remaining(plan, step.steps):
                stopped = plan.should_stop is not None and plan.should_stop()
                if inside is not None:
                    inside.before_step(stopped)
                if stopped:
                    break
                with user_code("training"):
                    step(batch)
        model.restrict(None)
        model.check_constants()
        for parameter in model.parameters:
            parameter.grad = None  # as large as the model, not needed before the next training
        known = step.samples and plan.private is None
        loss = float(step.loss_sum) / step.samples if known else float("nan")
        kept = None if plan.optimizer_state is None else state_of(step.optimizer, trained)
        metric = float(step.score_sum) / step.samples if known and step.score is not None else None
        return model.store(), TrainStats(loss, step.samples, step.steps, stopped, kept, metric)

    def _chosen(self, plan: TrainingPlan) -> tuple[Any, int]:
        """Return the data for an own loop, and their number of samples.

        Weights of samples become a draw with replacement by these weights, so that a step's gradient is that of the weighted
        losses in expectation, up to a factor for which `OwnLoop` scales it.
        """
        indices = plan.indices
        if plan.sample_weights is not None:
            indices = drawn_by(plan.sample_weights, generator(plan.seed, "resample"))
        if indices is None:
            return self.data, self.count()
        if "subset" in self.task.own:
            with user_code("subset"):
                return self.task.subset(self.data, indices), len(indices)
        if self.shard is not None:
            return self.shard.training_on(indices), len(indices)
        data: Any = self.data
        return {**data, "train": subset_of(data["train"], indices)}, len(indices)

    def _remaining(self, plan: TrainingPlan, done: int) -> Batches:
        """Yield the samples of each step after those that are done."""
        if plan.private is None:
            return itertools.islice(self.batches(plan), done, None)
        indices = np.arange(self.count()) if plan.indices is None else plan.indices
        return (self._index(batch) for batch in poisson_batches(indices, plan.private, done))

    def batches(self, plan: TrainingPlan) -> Batches:
        """Yield the samples of each step; every epoch has a new order, a function of the seed."""
        indices, batch_size = plan.indices, self.batch_size if plan.batch_size is None else plan.batch_size
        count = self.count() if indices is None else len(indices)
        if count == 0:
            return
        if batch_size == "all":
            self.check_batch_size("all" if indices is None else self.batch_size)
            whole = None if indices is None else self._index(np.asarray(indices))
            yield from (whole for _ in range(plan.epochs))
            return
        self.check_batch_size(batch_size)
        if plan.epochs == 0 or (self.model.has_batch_norm and count == 1):
            return
        batches = self._mini_batches(indices, count, batch_size, generator(plan.seed, "shuffle"))
        if plan.unit == "step":
            epochs = itertools.chain.from_iterable(batches)
            yield from itertools.islice(epochs, plan.epochs)
        else:
            yield from itertools.chain.from_iterable(itertools.islice(batches, plan.epochs))

    def steps_of(self, plan: TrainingPlan) -> int:
        """Return how many steps a training has."""
        if plan.private is not None:
            return plan.private.steps
        batch_size = self.batch_size if plan.batch_size is None else plan.batch_size
        if plan.unit == "step" or batch_size == "all":
            return plan.epochs
        count = self.count() if plan.indices is None else len(plan.indices)
        whole, rest = divmod(count, batch_size)
        return plan.epochs * (whole + (rest >= (2 if self.model.has_batch_norm else 1)))

    def check_batch_size(self, batch_size: StepSamples) -> None:
        """Refuse steps on all samples of a shard that is on disk, and single samples of a model with BatchNorm.

        Raises:
            TaskError: a step would load all samples; or batch statistics would be those of one sample.
        """
        if batch_size == "all" and self.samples().stored and self.at_a_time is None:
            raise TaskError(
                "run.batch_size: expected a number with samples on disk, got all, and a step would load all of them. "
                'Or give samples in memory, or set ["all", 100] to load 100 at a time.'
            )
        if self.model.has_batch_norm and 1 in (batch_size, self.at_a_time):
            whole = "" if self.at_a_time is None else " at a time"
            raise TaskError(f"run.batch_size: expected 2 or more{whole} with a model that has BatchNorm, got 1")

    def parts(self, size: int) -> list[slice]:
        """Return the parts in which a model gets a step of ``size`` samples: no more than ``run.batch_size`` says at a time.

        A last part of one sample joins the part before it if the model has BatchNorm.
        """
        most = self.at_a_time or size
        ends = [*range(most, size, most), size]
        if len(ends) > 1 and self.model.has_batch_norm and ends[-1] - ends[-2] == 1:
            del ends[-2]
        return [slice(start, end) for start, end in itertools.pairwise([0, *ends])]

    def _mini_batches(
        self, indices: NDArray[np.int64] | None, count: int, batch_size: int, shuffle: np.random.Generator
    ) -> Iterator[list[Tensor]]:
        """Yield the mini-batches of one epoch after the other; of a model with BatchNorm none has one sample."""
        while True:
            order = shuffle.permutation(count)
            chosen = self._index(order if indices is None else indices[order])
            least = 2 if self.model.has_batch_norm else 1
            yield [batch for batch in torch.split(chosen, batch_size) if len(batch) >= least]

    def _optimizer(self, parameters: list[Tensor], plan: TrainingPlan) -> Optimizer:
        with user_code("make_optimizer"):
            own = self.task.make_optimizer(parameters, plan.learning_rate)  # type: ignore[arg-type]
        if own is not None:
            return own
        if plan.optimizer != "sgd":
            kind = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
            return kind(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=True)
        return SGD(parameters, plan.learning_rate, plan.momentum, plan.weight_decay)

    def _index(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.int64)).to(self.device)


class _Step:
    """One optimizer step, and the sums for `TrainStats`."""

    optimizer: Optimizer

    def __init__(self, bench: Training, plan: TrainingPlan) -> None:
        self.data, self.forward, self.clip = bench.samples(), bench._call, plan.gradient_clip
        self.parts = bench.parts
        self.loss, self.parameters = bench.task.loss, bench.model.parameters
        self.score = None if bench.task.needs_all_outputs else bench.task.score
        self.weights = None
        if (sample_weights := plan.sample_weights) is not None:
            if sample_weights.shape != (len(self.data),):
                raise TaskError(f"sample_weights: expected shape ({len(self.data)},), got {sample_weights.shape}")
            self.weights = torch.from_numpy(np.array(sample_weights, dtype=np.float32)).to(bench.device)
        self.private = None
        if plan.private is not None:
            samples = len(self.data) if plan.indices is None else len(plan.indices)
            self.private = PrivateGradient(bench, plan.private, samples, self.weights)
        self.center = None if plan.proximal is None else bench.model.views(plan.proximal[0])
        self.strength = 0.0 if plan.proximal is None else plan.proximal[1]
        self.loss_sum, self.score_sum = torch.zeros(2, device=bench.device)
        self.samples = self.steps = 0

    def __call__(self, batch: Tensor | None) -> None:
        """Take one step on the samples ``batch``, int64 [b], or on all of them."""
        self.optimizer.zero_grad(set_to_none=True)  # before the forward pass, which reuses the memory
        size = len(self.data) if batch is None else len(batch)
        if self.private is not None and batch is not None:
            self.private(batch)
        else:
            self._backward(batch, size)
        if self.clip is not None or isinstance(self.optimizer, torch.optim.Adam | torch.optim.AdamW):
            self._densify()
        if self.center is not None:
            pull(self.parameters, self.center, self.strength)
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        self.samples += size
        self.steps += 1

    def _backward(self, batch: Tensor | None, size: int) -> None:
        """Compute the gradient of the mean over the samples of the step, in parts."""
        parts = self.parts(size)
        for part in parts:
            losses, objective = self._forward(part if batch is None else batch[part])
            # the gradients of the parts add up to that of the mean over the step
            torch.autograd.backward(objective.mean() if len(parts) == 1 else objective.sum() / size)
            self.loss_sum += losses.detach().sum()
            del losses, objective  # so that a part is freed before the next one

    def _forward(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the losses of the samples ``rows``, [b], and their weighted losses, [b]."""
        x, y = self.data.batch(rows)
        outputs = self.forward(x)
        losses = self.loss(outputs, y)
        if self.score is not None:
            self.score_sum += self.score(outputs.detach(), y).sum()
        return losses, losses if self.weights is None else losses * self.weights[rows]

    def _densify(self) -> None:
        """Make sparse gradients (of embeddings) dense: norms and Adam are not made for them in torch."""
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()


def drawn_by(weights: NDArray[np.float32], draw: np.random.Generator) -> NDArray[np.int64]:
    """Return indices, int64 [n], drawn with replacement in proportion to weights, float32 [n], with the least variance.

    Systematic resampling: index i is drawn floor or ceil of n w_i / sum(w) times.
    """
    total = np.cumsum(weights, dtype=np.float64)
    points = (np.arange(len(weights)) + draw.random()) * (total[-1] / len(weights))
    drawn: NDArray[np.int64] = np.minimum(np.searchsorted(total, points, side="right"), len(weights) - 1)
    return drawn.astype(np.int64)

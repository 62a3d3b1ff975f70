"""Local training of many models at once: stacked along a new first axis, with one vmapped forward pass.

A linear layer becomes a batched matrix product, a convolution a grouped one. Losses are summed over the models, so one
backward pass gives each model its gradient. Each model gets the same batches as in `TorchLearner.train`. Models with another
optimizer than SGD, steps in parts, and models or losses that vmap refuses, are trained one by one. Results equal those of
`TorchLearner.train` up to rounding; dropout has other masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pad_sequence

from coordinator_free_bootstrap.seeds import derive_seed
from peer.algorithms.learner import TrainingPlan, TrainStats
from peer.core.averaging import Vector
from peer.learning.flat import seeded
from peer.learning.learner import TorchLearner

StackTrained = tuple[Vector, TrainStats]
CACHED_MAX = 2  # stacked data sets in the cache: usually all peers, or the active ones


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """One call of `TorchLearner.train`."""

    learner: TorchLearner
    theta: Vector
    plan: TrainingPlan

    def alone(self) -> StackTrained:
        """Train with `TorchLearner.train`."""
        return self.learner.train(self.theta, self.plan)

    def kind(self) -> tuple[Any, ...]:
        """Return the settings that are equal within one stack."""
        p = self.plan
        numbers = (p.learning_rate, p.momentum, p.weight_decay)
        return (self.learner.schema.digest, *numbers, p.sample_weights is None, p.proximal is None)

    def can_stack(self) -> bool:
        """Return whether one tensor in memory has all samples, and the optimizer is a fresh SGD without clipping, in whole steps.

        Forward may change statistics of normalizing layers only: other changes would be lost in a stack.
        """
        learner = self.learner
        if "batches" not in learner.abilities or learner.amp or not learner.model.only_norm_statistics:
            return False
        if not learner.samples().stackable or learner.at_a_time is not None:
            return False
        plan = self.plan
        if any(setting is not None for setting in (plan.gradient_clip, plan.only, plan.optimizer_state)):
            return False
        own = self.learner.task.make_optimizer(self.learner.model.parameters, plan.learning_rate)
        return own is None and plan.optimizer == "sgd"

    def batches(self) -> list[Tensor]:
        """Return the sample indices of each step, int64 [b] on the CPU."""
        everything = torch.arange(self.learner.count())
        return [everything if batch is None else batch.cpu() for batch in self.learner.batches(self.plan)]


@dataclass
class StackedTrainer:
    """Training of requests in stacks, with a cache of stacked data."""

    _data: dict[tuple[int, ...], tuple[list[TorchLearner], Tensor, Tensor]] = field(default_factory=dict)

    def train(self, requests: Sequence[TrainRequest]) -> list[StackTrained]:
        """Return the results of all requests, in order."""
        results: list[StackTrained | None] = [None] * len(requests)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, request in enumerate(requests):
            if request.can_stack():
                groups.setdefault(request.kind(), []).append(place)
        for places in groups.values():
            chosen = [requests[place] for place in places]
            for place, trained in zip(places, self._group(chosen), strict=True):
                results[place] = trained
        return [done or request.alone() for done, request in zip(results, requests, strict=True)]

    def _group(self, requests: Sequence[TrainRequest]) -> Sequence[StackTrained | None]:
        if len(requests) < 2:
            return [None] * len(requests)
        x, y = self._stacked([request.learner for request in requests])
        try:
            return _Stack(requests, x, y).run()
        except (RuntimeError, ValueError) as error:
            if "vmap" not in str(error):
                raise
            return [None] * len(requests)  # model or loss has an operation that vmap does not support

    def _stacked(self, learners: list[TorchLearner]) -> tuple[Tensor, Tensor]:
        """Return all training sets, [models, largest n, ...], shorter ones padded with zeros."""
        key = tuple(id(learner) for learner in learners)
        if key not in self._data:
            while len(self._data) >= CACHED_MAX:
                del self._data[next(iter(self._data))]
            parts = [learner.samples().whole() for learner in learners]
            x, y = (pad_sequence([part[which] for part in parts], batch_first=True) for which in (0, 1))
            self._data[key] = (learners, x, y)
        return self._data[key][1:]


class _Stack:
    """Models that train together: SGD with momentum, weight decay, sample weights and a proximal term."""

    def __init__(self, requests: Sequence[TrainRequest], x: Tensor, y: Tensor) -> None:
        first = requests[0]
        self.requests, self.x, self.y = requests, x, y
        self.model, self.task, self.device = first.learner.model, first.learner.task, first.learner.device
        self.rate, self.momentum, self.decay = first.plan.learning_rate, first.plan.momentum, first.plan.weight_decay
        flat = self._to_device(np.stack([request.theta for request in requests]))  # (models, d)
        for where in self.model.variances:
            flat[:, where].clamp_(min=0)
        self.tensors: dict[str, Tensor] = {}
        self.trained: dict[str, Tensor] = {}
        for spec, place in self.model.schema.slices():
            tensor = flat[:, place].reshape(len(requests), *spec.shape).clone()
            self.tensors[spec.name] = tensor
            if spec.role == "parameter":
                self.trained[spec.name] = tensor.requires_grad_()
        self.buffers = {name: torch.zeros_like(t) for name, t in self.trained.items()} if self.momentum else {}
        self.forward: Callable[..., tuple[Tensor, Tensor]] = vmap(self._forward, randomness="different")
        self.weights = self._sample_weights()
        self.centers = self._centers()

    def run(self) -> list[StackTrained]:
        """Take all steps of all models."""
        plans = [request.batches() for request in self.requests]
        samples = [sum(map(len, plan)) for plan in plans]
        sums = torch.zeros(2, len(plans), device=self.device)  # of losses, of scores
        self.model.reset_integers()
        self.model.module.train()
        seed = derive_seed(self.requests[0].plan.seed, "dropout")
        with seeded(seed, self.device):
            for step in range(max(map(len, plans), default=0)):
                active = [place for place, plan in enumerate(plans) if step < len(plan)]
                self._step({place: plans[place][step] for place in active}, sums)
        return self._results(plans, samples, *sums.tolist())

    def _step(self, batches: dict[int, Tensor], sums: Tensor) -> None:
        """Take one step for the models in ``batches``; other models do not change."""
        for tensor in self.trained.values():
            tensor.grad = None
        for places in self._same_size(batches):
            batch = pad_sequence([batches[place] for place in places], batch_first=True)  # (m, b)
            sizes = torch.tensor([len(batches[place]) for place in places])
            valid = (torch.arange(batch.shape[1]) < sizes[:, None]) / sizes[:, None]  # (m, b): 1 / own batch size, or 0
            self._backward(torch.tensor(places), batch, valid, sums)
        mask = None
        if len(batches) < len(self.requests):
            mask = torch.zeros(len(self.requests), device=self.device)
            mask[list(batches)] = 1.0
        self._update(mask)

    def _same_size(self, batches: dict[int, Tensor]) -> list[list[int]]:
        """Return the models of each forward pass: all in one, or by batch size if padding would enter batch statistics."""
        if not self.model.has_batch_norm:
            return [list(batches)]
        groups: dict[int, list[int]] = {}
        for place, batch in batches.items():
            groups.setdefault(len(batch), []).append(place)
        return list(groups.values())

    def _backward(self, places: Tensor, batch: Tensor, valid: Tensor, sums: Tensor) -> None:
        places, batch, valid = places.to(self.device), batch.to(self.device), valid.to(self.device)
        x, y = self.x[places[:, None], batch], self.y[places[:, None], batch]  # (m, b, ...)
        whole = len(places) == len(self.requests)
        tensors = self.tensors if whole else {name: t[places] for name, t in self.tensors.items()}
        losses, scores = self.forward(tensors, x, y)  # (m, b)
        objective = losses * valid
        if self.weights is not None:
            objective = objective * self.weights[places[:, None], batch]
        torch.autograd.backward(objective.sum())
        with torch.no_grad():
            sums[:, places] += (torch.stack((losses, scores)) * (valid > 0)).sum(2)
            if not whole:  # batch statistics were updated in copies
                for name in self.tensors.keys() - self.trained.keys():
                    self.tensors[name][places] = tensors[name]

    def _forward(self, tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses and scores of one model; without a score of each sample, the losses twice."""
        outputs: Tensor = functional_call(self.model.module, tensors, (x,))
        losses = self.task.loss(outputs, y)
        return losses, losses if self.task.needs_all_outputs else self.task.score(outputs.detach(), y)

    @torch.no_grad()
    def _update(self, mask: Tensor | None) -> None:
        for name, tensor in self.trained.items():
            gradient = tensor.grad
            if gradient is None:
                gradient = torch.zeros_like(tensor)
            if self.centers is not None:
                centers, strengths = self.centers
                gradient = gradient + _along(strengths, tensor) * (tensor - centers[name])
            if self.decay:
                gradient = gradient + self.decay * tensor
            if self.momentum:
                gradient = self.buffers[name].mul_(self.momentum).add_(gradient)
            if mask is not None:
                gradient = gradient * _along(mask, tensor)
            tensor.sub_(gradient, alpha=self.rate)

    def _results(
        self, plans: list[list[Tensor]], samples: list[int], loss_sums: list[float], score_sums: list[float]
    ) -> list[StackTrained]:
        flat = torch.cat([t.detach().reshape(len(self.requests), -1) for t in self.tensors.values()], dim=1)
        vectors = flat.cpu().numpy()
        results = []
        for place, plan in enumerate(plans):
            loss = loss_sums[place] / samples[place] if samples[place] else float("nan")
            scored = samples[place] and not self.task.needs_all_outputs
            metric = score_sums[place] / samples[place] if scored else None
            results.append((vectors[place].copy(), TrainStats(loss, samples[place], len(plan), metric=metric)))
        return results

    def _sample_weights(self) -> Tensor | None:
        rows = [request.plan.sample_weights for request in self.requests]
        if rows[0] is None:
            return None
        return pad_sequence([self._to_device(np.asarray(row, np.float32)) for row in rows], batch_first=True)

    def _centers(self) -> tuple[dict[str, Tensor], Tensor] | None:
        pulls = [request.plan.proximal for request in self.requests]
        if pulls[0] is None:
            return None
        flat = self._to_device(np.stack([pull[0] for pull in pulls if pull is not None]))
        strengths = self._to_device(np.array([pull[1] for pull in pulls if pull is not None], np.float32))
        shapes = ((spec, place) for spec, place in self.model.schema.slices() if spec.role == "parameter")
        return {spec.name: flat[:, place].reshape(len(pulls), *spec.shape) for spec, place in shapes}, strengths

    def _to_device(self, values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(values.copy()).to(self.device)


def _along(values: Tensor, tensor: Tensor) -> Tensor:
    """Return one value per model, shaped to multiply a stacked tensor [models, ...]."""
    return values.reshape(-1, *[1] * (tensor.dim() - 1))

"""A learner whose optimum is known: each sample is a point, the loss of a model is half its squared distance from it.

Computed in float64 and returned as float32, from (model, seed) alone, so that the reference, a restarted peer and a
simulated one train to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.learner import ABILITIES, Fields, TrainingPlan
from peer.core.averaging import Vector
from peer.core.messages import Numbers
from peer.core.schema import Schema, TensorSpec
from peer.tasks.preprocessing import SHARED
from peer.tasks.shard import Shard
from peer.tasks.sites import AllSites, SiteForm, numbers_of

SAMPLES = 4


@dataclass(frozen=True)
class Result:
    """What training and evaluation report."""

    loss: float
    samples: int = SAMPLES
    steps: int = 1
    metric: float = 0.0
    metric_name: str = "minus loss"
    more: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, float | None] = field(default_factory=dict)


class QuadraticLearner:
    """Implements `peer.algorithms.learner.Learner` for points around one center.

    Args:
        peer_id: whose points these are.
        clusters: peer i's points lie around center i modulo ``clusters``.
        size: d.
        seed: of centers and points.
        jitter: standard deviation of what training adds to its target, by the seed of the training.
        mixed: every second point lies around the next center, so that a peer is a mixture of two.
        parts: the model is of two tensors, the second with two elements.
    """

    def __init__(
        self,
        peer_id: int,
        clusters: int,
        size: int,
        seed: int,
        jitter: float = 0.05,
        *,
        mixed: bool = False,
        parts: bool = False,
    ) -> None:
        self.size, self.jitter, self.parts = size, jitter, parts
        self.cluster = peer_id % clusters
        self.center = generator(seed, "center", self.cluster).normal(0, 3, size)
        self.points = self.center + generator(seed, "points", peer_id).normal(0, 0.3, (SAMPLES, size))
        if mixed:
            self.points[1::2] += (
                generator(seed, "center", (self.cluster + 1) % clusters).normal(0, 3, size) - self.center
            )
        self.optimum = self.points.mean(axis=0)

    @property
    def schema(self) -> Schema:
        if self.parts:
            return Schema((TensorSpec("body.theta", (self.size - 2,)), TensorSpec("head.theta", (2,))))
        return Schema((TensorSpec("theta", (self.size,)),))

    true_cluster = test_cluster = None
    abilities = frozenset(ABILITIES)

    def labels(self, part: str = "train") -> None:
        return None

    frozen_digest = meaning = ""
    validates = True

    def count(self, part: str = "train") -> int:
        return SAMPLES

    started_from = None

    def initial_model(self, seed: int, slot: int = 0) -> Vector:
        return generator(seed, "model").normal(0, 1, self.size).astype(np.float32)

    def sample_losses(self, theta: Vector, part: str = "train") -> Any:
        return (0.5 * ((theta - self.points) ** 2).sum(axis=1)).astype(np.float32)

    def mean_loss(self, theta: Vector, part: str = "train") -> float:
        return float(0.5 * ((theta - self.points) ** 2).sum() / SAMPLES)

    def train(self, theta: Vector, plan: TrainingPlan) -> tuple[Vector, Result]:
        points = self.points if plan.indices is None else self.points[plan.indices]
        target = np.average(points, axis=0, weights=plan.sample_weights) if len(points) else theta
        if self.jitter:
            target = target + generator(plan.seed, "jitter").normal(0, self.jitter, self.size)
        value = theta.astype(np.float64)
        moves = np.ones(self.size)
        for spec, place in self.schema.slices() if plan.only is not None else ():
            moves[place] = spec.name in plan.only
        for _step in range(plan.epochs):
            gradient = value - target
            if plan.proximal is not None:
                gradient = gradient + plan.proximal[1] * (value - plan.proximal[0])
            value = value - plan.learning_rate * gradient * moves
        return value.astype(np.float32), Result(self.mean_loss(value))

    def evaluate(self, theta: Vector, part: str = "test") -> Result:
        loss = self.mean_loss(theta)
        return Result(loss, metric=-loss)

    def predict_proba(self, theta: Vector, part: str = "test") -> Any:
        return np.exp(-self.sample_losses(theta))[:, None]

    def evaluate_predictions(self, predictions: Any, part: str = "test") -> Result:
        return Result(float(np.mean(predictions)))

    def prediction_losses(self, predictions: Any, part: str, indices: Any) -> Any:
        return -np.log(predictions[:, 0])


class SharedPoints:
    """Implements `peer.algorithms.learner.SharedScaling` for points; until they are scaled, each of them is NaN.

    Args:
        learner: of a new process.
        raw: its points [n, d].
    """

    def __init__(self, learner: QuadraticLearner, raw: np.ndarray) -> None:
        self._learner, self._raw = learner, raw
        self._form = SiteForm(raw.shape[1:], 0, 2)
        self.agreed: AllSites | None = None
        shard = Shard(train_x=raw, train_y=np.zeros(len(raw)), test_x=raw, test_y=np.zeros(len(raw)))
        self.numbers = numbers_of(self._form, shard).numbers
        self._use(np.full_like(raw, np.nan))

    def problem(self, numbers: Numbers) -> str:
        return self._form.problem(numbers)

    def agree(self, numbers: Mapping[int, Numbers]) -> Fields:
        self.agreed = AllSites.of({peer: self._form.read(each) for peer, each in numbers.items()})
        return self.agreed.fields(SHARED)

    def apply(self) -> None:
        assert self.agreed is not None, "work before the agreement"
        self._use((self._raw - self.agreed.mean) / self.agreed.deviation)

    def _use(self, points: np.ndarray) -> None:
        self._learner.points, self._learner.optimum = points, points.mean(axis=0)

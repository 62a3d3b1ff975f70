"""A learner without tensors: a model of a few numbers; its first training sets them, later ones change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from peer.algorithms.learner import ABILITIES, TrainingPlan
from peer.core.averaging import Vector
from peer.core.schema import Schema, TensorSpec


@dataclass(frozen=True, slots=True)
class Result:
    """What training and evaluation report."""

    loss: float = 0.0
    samples: int = 1
    steps: int = 1
    metric: float = 0.0
    metric_name: str = "nothing"
    more: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    numbers: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    optimizer_state: dict[str, Vector] | None = None


class StubLearner:
    """Implements what `dfedavg` asks of `peer.algorithms.learner.Learner`.

    Args:
        values: what the first training learns.
    """

    abilities = frozenset(ABILITIES)
    frozen_digest, meaning, true_cluster, test_cluster = "", "", None, None
    validates = False

    def __init__(self, values: Sequence[float] = (0.0,)) -> None:
        self.schema = Schema((TensorSpec("theta", (len(values),)),))
        self._values = values
        self._trained = False

    def count(self, part: str = "train") -> int:
        return 1

    def labels(self, part: str = "train") -> None:
        return None

    started_from = None

    def initial_model(self, seed: int, slot: int = 0) -> Vector:
        return np.zeros(len(self._values), np.float32)

    def train(self, theta: Vector, plan: TrainingPlan) -> tuple[Vector, Result]:
        learned = theta.copy() if self._trained else np.array(self._values, np.float32)
        self._trained = True
        return learned, Result()

    def evaluate(self, theta: Vector, part: str = "test") -> Result:
        return Result()

    def mean_loss(self, theta: Vector, part: str = "train") -> float:
        return 0.0

"""A learner without tensors: a model of one number, a training that changes nothing. For costs of the protocol alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from peer.core.averaging import Vector
from peer.core.schema import Schema, TensorSpec

SCHEMA = Schema((TensorSpec("theta", (1,)),))


@dataclass(frozen=True, slots=True)
class Result:
    """What training and evaluation report."""

    loss: float = 0.0
    samples: int = 1
    steps: int = 1
    metric: float = 0.0
    metric_name: str = "nothing"
    more: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    optimizer_state: dict[str, Vector] | None = None


class StubLearner:
    """Implements what `dfedavg` asks of `peer.algorithms.base.Learner`. Each peer begins with its own number, `value`."""

    schema, frozen_digest, true_cluster, test_cluster = SCHEMA, "", None, None

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def count(self, part: str = "train") -> int:
        return 1

    def labels(self, part: str = "train") -> None:
        return None

    def initial_model(self, seed: int) -> Vector:
        return np.full(1, self.value, np.float32)

    def train(self, theta: Vector, **_: Any) -> tuple[Vector, Result]:
        return theta.copy(), Result()

    def evaluate(self, theta: Vector, part: str = "test") -> Result:
        return Result()

    def mean_loss(self, theta: Vector, part: str = "train") -> float:
        return 0.0

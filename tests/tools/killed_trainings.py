"""Trainings that are killed at a step and continued by what is a new process, from what is on disk."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.algorithms.learner import TrainingPlan, TrainStats
from peer.learning.learner import TorchLearner
from peer.runtime.partials import PartialCheckpoints
from peer.store.checkpoint import CheckpointStore
from peer.tasks import Task

OWNER = dict.fromkeys(("manifest_digest", "graph_digest", "schema_digest"), "x")


class Killed(BaseException):
    """The end of a process."""


def trainings(folder: Path, every_s: float = 0.0, clock: Callable[[], float] = lambda: 0.0, **more: Any) -> Any:
    """Return what a process finds on disk when it starts."""
    owner = CheckpointStore(folder / "checkpoints", peer_id=0, **OWNER)
    return PartialCheckpoints(folder / "trainings", owner, "meaning", every_s, rounds=60, clock=clock, **more)


def learner_of(task: Task) -> TorchLearner:
    data = task.load_data(0) if "load_data" in task.own else task.load_shard(0)
    return TorchLearner(task, data, batch_size=5)


def fit(task: Task, partials: Any, plan: TrainingPlan, die_at: float = math.inf) -> tuple[Any, TrainStats, int]:
    """Train in what is a new process; return the result, and how many steps it has taken; die before a step."""
    learner, steps = learner_of(task), itertools.count()
    taken = 0

    def should_stop() -> bool:
        nonlocal taken
        if (taken := next(steps)) >= die_at:
            raise Killed
        return False

    theta = learner.initial_model(3)
    partial = partials.of(theta, plan)
    if (done := partial.finished()) is None:
        done = learner.train(theta, TrainingPlan(**{**fields_of(plan), "partial": partial, "should_stop": should_stop}))
        partial.finish(*done)
    return done[0], done[1], taken + 1


def fields_of(plan: TrainingPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}

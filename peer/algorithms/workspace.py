"""The workspace: all that the tensor work of an algorithm reads and changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.learning_rates import schedule_of
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import derive_seed
from peer.algorithms.delivered import DeliveredModels
from peer.algorithms.learner import Fields, Learner, Partials, TrainingPlan, TrainStats
from peer.algorithms.predictor import Best
from peer.algorithms.private import PrivateLearner
from peer.core.averaging import Vector
from peer.core.decisions import AlgorithmState
from peer.core.messages import ModelHeader, Numbers, Select
from peer.core.metric import Metric
from peer.core.model_store import ModelStore

# Covariant: work on tensors that reads no state takes the workspace of any algorithm.
StateT_co = TypeVar("StateT_co", bound=AlgorithmState, default=AlgorithmState, covariant=True)


@dataclass(frozen=True)
class FoldedArrival:
    """An arrival of the current step: its header; what travels of its model, only if kept until the close (no fold targets)."""

    header: ModelHeader
    model: Vector | None = None


@dataclass
class Workspace(Generic[StateT_co]):
    """Everything that tensor work reads and changes; the compute thread owns it while work runs."""

    manifest: Manifest
    peer_id: int
    graph: Graph
    learner: Learner
    models: ModelStore
    state: StateT_co
    round_index: int = 0
    step: int = 0
    present: tuple[int, ...] = ()  # neighbors that delivered or passed in the step being closed
    selections: dict[int, Select] = field(default_factory=dict)  # by neighbor
    neighbor_numbers: dict[int, Numbers] = field(default_factory=dict)  # numbers in place of models, by neighbor
    true_cluster: npt.NDArray[np.int64] | None = None  # of each training sample, if known; for metrics only
    scratch: dict[str, Any] = field(default_factory=dict)  # kept between two calls; not in checkpoints
    optimizers: dict[str, Vector] = field(default_factory=dict)  # kept state: ``<memory>/<value>`` -> flat values
    restores: int = 0  # how often this peer went back to its last finite models
    arrivals: list[FoldedArrival] = field(default_factory=list)
    pulled: dict[int, list[Vector]] = field(
        default_factory=dict
    )  # what travels of all slots of each neighbor, to catch up
    delivered: DeliveredModels = field(default_factory=DeliveredModels)  # in the last round
    model_tests: list[Fields] = field(default_factory=list)  # of these models; in checkpoints
    personalized: Vector | None = None  # the result of the work "final"
    metric: Metric = field(default_factory=Metric)  # of the task; the world of the peer sets it
    best: Best | None = None  # by the validation metric, where the peer has validation samples
    should_stop: Callable[[], bool] = lambda: False
    partials: Partials | None = None  # keep trainings on disk while they run
    resumed_steps: int = 0  # of this piece of work: that were on disk
    private: PrivateLearner | None = None  # of a run with run.privacy; ``learner`` is the same

    @property
    def unguarded(self) -> Learner:
        """The learner for what is no work of an algorithm, such as what model files say of the task."""
        return self.private.learner if self.private else self.learner

    def seed(self, purpose: str, *path: int) -> int:
        """Return the seed of one random choice of this peer in this round."""
        return derive_seed(self.manifest.seed, purpose, self.peer_id, self.round_index, *path)

    @property
    def learning_rate(self) -> float:
        """eta_t: this round's learning rate, by the schedule, and after a halving for each restore."""
        schedule = schedule_of(self.manifest.learning_rate_schedule)
        return self.base_learning_rate * schedule.share(self.round_index, self.manifest.rounds)

    @property
    def base_learning_rate(self) -> float:
        """The manifest's learning rate, halved for each restore."""
        return float(self.manifest.learning_rate * 0.5**self.restores)

    def plan(self, seed: int) -> TrainingPlan:
        """Return a training with the manifest's settings (epochs, optimizer, rate); `dataclasses.replace` changes some."""
        m = self.manifest
        return TrainingPlan(
            epochs=m.local_epochs,
            seed=seed,
            learning_rate=self.learning_rate,
            round_index=self.round_index,
            momentum=m.momentum,
            weight_decay=m.weight_decay,
            optimizer=m.optimizer,
            unit=m.local_unit,
            batch_size=m.step_samples,
            gradient_clip=m.gradient_clip,
            should_stop=self.should_stop,
        )

    def slot_plan(self, slot: int) -> TrainingPlan:
        """Return the training of a slot in this round, with the manifest's settings."""
        return self.plan(self.seed("train", slot))

    def fit(self, theta: Vector, plan: TrainingPlan, memory: str = "") -> tuple[Vector, TrainStats]:
        """Train a copy of a model.

        ``memory`` names what is trained. With ``run.optimizer_state = "keep"`` the optimizer of that name continues where its
        last training ended, and always what an own loop keeps; the state is in ``optimizers``, and so in checkpoints. "" is a
        fresh optimizer.
        """
        if not memory or (self.manifest.optimizer_state != "keep" and "batches" in self.learner.abilities):
            return self._trained(theta, plan)
        prefix = f"{memory}/"
        kept = {name[len(prefix) :]: array for name, array in self.optimizers.items() if name.startswith(prefix)}
        model, stats = self._trained(theta, replace(plan, optimizer_state=kept))
        self.optimizers.update({prefix + name: array for name, array in (stats.optimizer_state or {}).items()})
        return model, stats

    def _trained(self, theta: Vector, plan: TrainingPlan) -> tuple[Vector, TrainStats]:
        """Train, as far as a restart has not left it done."""
        if self.partials is None:
            return self.learner.train(theta, plan)
        partial = self.partials.of(theta, plan)
        if (done := partial.finished()) is None:
            done = self.learner.train(theta, replace(plan, partial=partial))
            partial.finish(*done)
        self.resumed_steps += partial.resumed
        return done

    def fit_slot(self, slot: int, plan: TrainingPlan | None = None, memory: str = "") -> TrainStats:
        """Train the model of a slot as `fit` does, by default as `slot_plan` says, and put the trained one in its place."""
        model, stats = self.fit(self.models.model(slot), plan or self.slot_plan(slot), memory)
        self.models.replace(slot, model)
        return stats

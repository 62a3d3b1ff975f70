"""Per-FedAvg between neighbors, first order: a shared model w that one step on the own data makes personal; w travels.

Round, for each step: w' = w - alpha grad f(w) on one mini-batch; w <- w - eta grad f(w') on another. The second derivative is
left out (first order). Then w is averaged over the neighbors. w is evaluated after ``adapt_steps`` steps on own training data.

Source: Alireza Fallah, Aryan Mokhtari and Asuman Ozdaglar, "Personalized Federated Learning: A Meta-Learning Approach", 2020,
arXiv 2002.07948, Per-FedAvg (FO). The form between neighbors is an addition of this project.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.learner import Ability, Fields, TrainingPlan, training_fields
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.zoo.algorithms.local_rounds import successive_batches
from peer.zoo.algorithms.personal import SHARED, Personal, batches_in_epochs, require_plain_sgd


class PerFedAvgOptions(BaseModel):
    """``run.options`` of algorithm ``perfedavg``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    inner_learning_rate: float | None = Field(
        None, gt=0, description="alpha: rate of the step that makes w personal; default: the round's learning rate"
    )
    adapt_steps: int = Field(1, ge=1, description="steps on own training data before an evaluation")


class PerFedAvg(Personal[PerFedAvgOptions]):
    """Per-FedAvg (first order): a shared start from which one step makes a personal model; both are evaluated."""

    name = "perfedavg"
    sums = True
    why_not_private = "its steps are on batches that it draws by the run's seed, which all peers know"
    Options = PerFedAvgOptions

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return single steps on chosen batches: one to adapt, one from there."""
        return frozenset({"batches"})

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        require_plain_sgd(self.name, manifest)

    @classmethod
    @override
    def private_count(cls, manifest: Manifest) -> int:
        """Return 0: the personal model is made from w when it is needed."""
        return 0

    @override
    def train(self, workspace: Workspace) -> Fields:
        """Take the meta-steps of a round; each has two mini-batches, one for w' and one for the step of w."""
        w, done = workspace.models.model(SHARED).copy(), []
        batches = successive_batches(workspace, 2 * batches_in_epochs(workspace))
        for number in range(0, len(batches), 2):
            first, second = (workspace.plan(workspace.seed("train", number + which)) for which in (0, 1))
            one = replace(first, indices=batches[number], batch_size="all", epochs=1)
            adapted = self._adapted(workspace, w, one)
            other = replace(second, indices=batches[number + 1], batch_size="all", epochs=1)
            stepped, stats = workspace.fit(adapted, other)
            w += stepped - adapted
            done.append(stats)
            if workspace.should_stop():
                break
        workspace.models.replace(SHARED, w)
        return training_fields(done)

    def _adapted(self, workspace: Workspace, w: Vector, plan: TrainingPlan) -> Vector:
        rate = self.options.inner_learning_rate or workspace.learning_rate
        return workspace.fit(w, replace(plan, learning_rate=rate))[0]

    @override
    def evaluation_model(self, workspace: Workspace) -> Vector:
        """Return w after ``adapt_steps`` steps on mini-batches of the own training data."""
        plan = replace(workspace.plan(workspace.seed("adapt")), epochs=self.options.adapt_steps, unit="step")
        return self._adapted(workspace, workspace.models.model(SHARED), plan)

"""APFL between neighbors: the personal model is a mixture alpha v + (1 - alpha) w of a private and a shared one; w travels.

Round, for each mini-batch: w <- w - eta grad f(w); v <- v - eta alpha grad f(m), where m = alpha v + (1 - alpha) w with the v and
w before the step. Then w is averaged over the neighbors. With ``adapt``, alpha <- alpha - eta <v - w, grad f(m)> at the first
batch of a round, kept in [0, 1].

Source: Yuyang Deng, Mohammad Mahdi Kamani and Mehrdad Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv
2003.13461, Algorithm 1 and its Eq. for alpha. The form between neighbors is an addition of this project.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.held_out import Indices
from peer.algorithms.learner import Ability, Fields, TrainStats, training_fields
from peer.algorithms.personalize import weighted_sum
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector, accumulate
from peer.core.decisions import AlgorithmState
from peer.zoo.algorithms.local_rounds import successive_batches
from peer.zoo.algorithms.personal import PERSONAL, SHARED, Personal, batches_in_epochs, require_plain_sgd


class ApflOptions(BaseModel):
    """``run.options`` of algorithm ``apfl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha: float = Field(0.5, ge=0, le=1, description="share of the private model in the personal one, at the start")
    adapt: bool = Field(True, description="let each peer adapt its alpha, once in each round")


@dataclass(frozen=True)
class ApflState(AlgorithmState):
    """State of APFL: ``alpha`` is the share of the private model in the personal one."""

    alpha: float = 0.0


class Apfl(Personal[ApflOptions, ApflState]):
    """APFL: a mixture of a private and a shared model, whose share each peer learns; both are evaluated."""

    name = "apfl"
    sums = True
    why_not_private = "its steps are on batches that it draws by the run's seed, which all peers know"
    Options = ApflOptions
    State = ApflState

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return single steps on chosen batches, by turns for two models."""
        return frozenset({"batches"})

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        require_plain_sgd(self.name, manifest)

    @override
    def begin(self, workspace: Workspace[ApflState]) -> ApflState:
        """Return the state before the first round, with the first alpha."""
        return replace(super().begin(workspace), alpha=self.options.alpha)

    @override
    def train(self, workspace: Workspace[ApflState]) -> Fields:
        """Step w and v on the same batches."""
        w, v, alpha = workspace.models.model(SHARED), workspace.models.model(PERSONAL).copy(), workspace.state.alpha
        done = []
        for number, batch in enumerate(successive_batches(workspace, batches_in_epochs(workspace))):
            mixture = weighted_sum([v, w], [alpha, 1 - alpha])
            w_next, stats = self._step(workspace, w, number, batch)
            stepped, _ = self._step(workspace, mixture, number, batch)
            change = stepped - mixture  # - eta grad f(m)
            if number == 0 and self.options.adapt:
                direction = (v - w).astype(np.float64)
                moved = alpha + float(np.dot(direction, change.astype(np.float64)))
                alpha = float(np.clip(moved, 0.0, 1.0)) if np.isfinite(moved) else alpha
            accumulate(v, change, alpha)
            w = w_next
            done.append(stats)
            if workspace.should_stop():
                break
        workspace.models.replace(SHARED, w)
        workspace.models.replace(PERSONAL, v)
        workspace.state = replace(workspace.state, alpha=alpha)
        return training_fields(done)

    def _step(
        self, workspace: Workspace[ApflState], model: Vector, number: int, batch: Indices
    ) -> tuple[Vector, TrainStats]:
        plan = workspace.plan(workspace.seed("train", number))
        return workspace.fit(model, replace(plan, indices=batch, batch_size="all", epochs=1))

    @override
    def evaluation_model(self, workspace: Workspace[ApflState]) -> Vector:
        """Return alpha v + (1 - alpha) w."""
        alpha = workspace.state.alpha
        return weighted_sum([workspace.models.model(PERSONAL), workspace.models.model(SHARED)], [alpha, 1 - alpha])

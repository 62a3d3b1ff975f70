"""pFedMe between neighbors: a personal model theta near a shared one w (Moreau envelope); only w travels.

Round: R times, on successive mini-batches: S steps theta <- theta - eta (grad f(theta) + lambda (theta - w)) on one batch, then
w <- w - rho (w - theta). Then w_i <- (1 - beta) w_i + beta sum_j W_ij w_j. theta_i goes on from its last value and never
leaves its peer.

Source: Canh T. Dinh, Nguyen H. Tran and Tuan Dung Nguyen, "Personalized Federated Learning with Moreau Envelopes", 2020, arXiv
2006.08848. The paper has a server (in `peer.lab`); the form between neighbors is an addition of this project. rho is
eta lambda in the paper. Reported are theta (accuracy) and w (accuracy_shared), from separate arrays: in the authors' code both
names mean one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.learner import TrainStats, training_fields
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector, fold
from peer.core.decisions import AlgorithmState
from peer.zoo.algorithms.personal import PERSONAL, SHARED, Personal, batches_in_epochs, require_plain_sgd


class LocalOptions(BaseModel):
    """Options of the local rounds, which CGPFL shares."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(5.0, gt=0, description="lambda: how strongly theta is held near w")
    inner_steps: int = Field(5, ge=1, description="S: steps of theta on one batch")
    local_rounds: int | None = Field(
        None, ge=1, description="R: batches in a round; default: those of run.local_epochs"
    )
    rho: float | None = Field(
        None, ge=0, le=1, description="step of w towards theta; default: learning rate times strength"
    )

    def step(self, learning_rate: float) -> float:
        """Return the step of w towards theta."""
        return learning_rate * self.strength if self.rho is None else self.rho


class PFedMeOptions(LocalOptions):
    """``run.options`` of algorithm ``pfedme``."""

    beta: float = Field(1.0, gt=0, le=1, description="share of the neighbors' average in w; 1 replaces w by it")


@dataclass(frozen=True)
class PFedMeState(AlgorithmState):
    """State of pFedMe: before the first training, theta starts at w."""

    has_trained: bool = False


class PFedMe(Personal[PFedMeOptions, PFedMeState]):
    """pFedMe: a personal model held near a shared one, which is averaged; evaluated are both."""

    name = "pfedme"
    Options = PFedMeOptions
    State = PFedMeState

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        check_local_rounds(self.name, manifest, self.options)

    def deferred_slots(self, state: PFedMeState, round_index: int) -> frozenset[int]:
        """Return w, in every round: with beta < 1 the close needs the w that no arrival has changed."""
        return frozenset({SHARED})

    def train(self, workspace: Workspace[PFedMeState]) -> dict[str, Any]:
        """Do R local rounds on theta and w."""
        start, first = workspace.models.model(SHARED), not workspace.state.has_trained
        theta = start if first else workspace.models.model(PERSONAL)
        w, theta, done = local_rounds(self.options, workspace, start, theta)
        workspace.models.replace(SHARED, w)
        workspace.models.replace(PERSONAL, theta)
        workspace.state = replace(workspace.state, has_trained=True)
        return training_fields(done)

    def close(self, workspace: Workspace[PFedMeState]) -> PFedMeState:
        """Average w; with beta < 1, keep a share of the own w."""
        own = workspace.models.share(SHARED)
        state = super().close(workspace)
        if self.options.beta < 1 and workspace.models.model(SHARED) is not own:
            mixed = own.copy()
            fold(mixed, 1.0 - self.options.beta, workspace.models.model(SHARED), self.options.beta)
            workspace.models.replace(SHARED, mixed)
        return state


def check_local_rounds(name: str, manifest: Manifest, options: LocalOptions) -> None:
    """Check the settings of the local rounds.

    Raises:
        ConfigError: an optimizer other than plain SGD, or a step of w beyond theta.
    """
    require_plain_sgd(name, manifest)
    if (step := options.step(manifest.learning_rate)) > 1:
        raise ConfigError(
            f"run.options.rho: found run.learning_rate times run.options.strength, {step:g}; "
            "allowed: at most 1, or w overshoots theta; set run.options.rho, or lower one of the two"
        )


def local_rounds(
    options: LocalOptions, workspace: Workspace, w: Vector, theta: Vector
) -> tuple[Vector, Vector, list[TrainStats]]:
    """Return w and theta after R local rounds, as new arrays, and the statistics of each."""
    rho = options.step(workspace.learning_rate)
    w, done = w.copy(), []
    for number, batch in enumerate(successive_batches(workspace, options.local_rounds or batches_in_epochs(workspace))):
        plan = replace(
            workspace.plan(workspace.seed("train", number)),
            indices=batch,
            unit="fullbatch_step",
            epochs=options.inner_steps,
            proximal=(w, options.strength),
        )
        theta, stats = workspace.fit(theta, plan)
        done.append(stats)
        if rho == 1:
            w = theta.copy()
        elif rho > 0:
            fold(w, 1.0 - rho, theta, rho)
        if workspace.should_stop():
            break
    return w, theta, done


def successive_batches(workspace: Workspace, count: int) -> list[npt.NDArray[np.int64]]:
    """Return ``count`` mini-batches, int64 [b]: those of one shuffled pass after the other."""
    samples, size = workspace.learner.count(), workspace.manifest.batch_size
    draw = generator(workspace.seed("batches"), "shuffle")
    found: list[npt.NDArray[np.int64]] = []
    while len(found) < count:
        order = draw.permutation(samples)
        found += [order[start : start + size] for start in range(0, samples, size)]
    return found[:count]

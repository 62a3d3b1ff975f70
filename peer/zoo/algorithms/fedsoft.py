"""FedSoft between neighbors: one model w_i per peer, held near its mixture of S cluster centers, which are averages of the w.

Every tau_e rounds a peer divides its samples by the center of lowest loss: u_is is the share of center s, or sigma if that is 0.
Round: w_i <- tau epochs on f_i(w) + lambda / 2 sum_s u_is ||w - c_is||^2, from its last value. A peer sends w_i with u_i and n_i.
Then, over N[i], c_is <- sum_j v_js w_j with v_js = u_js n_j / sum_j' u_j's n_j' (``weighted``); or c_is <- the mean of those w_j
that drew s with probability min(1, S rate u_js), unchanged if none did (``select``).

Source: Yichen Ruan and Carlee Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", 2022, arXiv
2112.06053. The paper has a server (in `peer.lab`); the form between neighbors is an addition of this project: the server's
sums restricted to the closed neighborhood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from coordinator_free_bootstrap.seeds import derive_seed, uniform
from peer.algorithms.learner import Ability, Fields, Learner, training_fields
from peer.algorithms.mixture import Labels, cluster_sizes, division
from peer.algorithms.personalize import weighted_sum
from peer.algorithms.saved_state import array
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.decisions import AlgorithmState, Offer
from peer.core.effects import Target
from peer.core.messages import ModelHeader, Numbers, Select
from peer.zoo.algorithms.centers import OwnNearCenters


class FedSoftOptions(BaseModel):
    """``run.options`` of algorithm ``fedsoft``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(0.1, ge=0, description="lambda: how strongly a peer's model is held near its centers")
    importance_every: int = Field(2, ge=1, description="tau_e: rounds between two divisions of the samples")
    sigma: float = Field(1e-4, gt=0, lt=1, description="importance of a center that has none of the samples")
    variant: Literal["weighted", "select"] = Field(
        "weighted", description="centers: weighted means of all models, or means of models that drew the center"
    )
    rate: Annotated[
        float, EffectiveWhen(lambda r: r.options.variant == "select", "run.options.variant is weighted")
    ] = Field(0.6, gt=0, le=1, description="select: how often a model takes part, times S u")
    initialization: Literal["global", "local"] = Field(
        "global", description="first centers: equal on all peers (global), or drawn by each peer (local)"
    )


@dataclass(frozen=True)
class FedSoftState(AlgorithmState):
    """State of FedSoft.

    Attributes:
        shares: of this peer in each center, as sent to neighbors: u, or with ``select`` 1 where it drew the center.
        importance: u of the last division; (): the samples are to be divided.
        has_trained: w has been trained; before, the first training starts at the mixture of the centers.
        labels: the center of each training sample in the last division, int64 [n].
    """

    shares: tuple[float, ...] = ()
    importance: tuple[float, ...] = ()
    has_trained: bool = False
    labels: Labels | None = array(np.int64, 1, optional=True)


class FedSoft(OwnNearCenters[FedSoftOptions, FedSoftState]):
    """FedSoft: a model of each peer's own, held near a mixture of cluster centers; the own model is evaluated."""

    name = "fedsoft"
    why_not_private = "it weighs its centers by shares that all samples decide"
    Options = FedSoftOptions
    State = FedSoftState
    keys: ClassVar = {"mix": EffectiveWhen.never("the weights of algorithm fedsoft are importances")}

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return the losses of samples, which choose their centers."""
        return frozenset({"losses"})

    @property
    @override
    def common_start(self) -> bool:
        """Whether ``initialization`` is ``global``."""
        return self.options.initialization == "global"

    # ---- decisions --------------------------------------------------------------------------------------------------

    @override
    def offers(
        self, state: FedSoftState, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer w with u, or with the flags of the centers that it drew; nothing if it drew none."""
        if not state.trained or not any(state.shares):
            return ()
        return (Offer(self.own, state.sample_count, numbers=Numbers.of(state.shares)),)

    @override
    def wrong_numbers(self, header: ModelHeader) -> str:
        """Return what is wrong with shares that are no importances (or no flags)."""
        shares, most = header.numbers, 1 + self.clusters * self.options.sigma
        if len(shares) != self.clusters:
            return f"shares: expected {self.clusters}, one for each cluster, got {shares}"
        if self.options.variant == "select":
            fits = set(shares) <= {0.0, 1.0} and any(shares)
            return "" if fits else f"shares: expected 0 and 1, with at least one 1, got {shares}"
        fits = all(0 < u <= 1 for u in shares) and 1 - 1e-6 <= math.fsum(shares) <= most + 1e-6
        return "" if fits else f"shares: expected numbers above 0 with a sum from 1 to {most:g}, got {shares}"

    @override
    def targets(self, state: FedSoftState, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold w_j into every center s with weight u_js n_j, or 1 where it drew s."""
        count = header.sample_count if self.options.variant == "weighted" else 1
        return tuple(Target(s, share * count) for s, share in enumerate(header.numbers) if share > 0)

    @override
    def own_share(self, state: FedSoftState, cluster: int, folded: float) -> float:
        """Return the weight of the own w in a center; 0 before its first training."""
        count = state.sample_count if self.options.variant == "weighted" else 1
        return float(state.shares[cluster] * count) if state.has_trained else 0.0

    # ---- work -------------------------------------------------------------------------------------------------------

    @override
    def initial_models(self, learner: Learner) -> tuple[list[Vector], bool]:
        """Return the S centers, drawn as in DFCA, and a w that the first training replaces."""
        models, common = super().initial_models(learner)
        models[self.own] = learner.initial_model(derive_seed(self.manifest.seed, "initial", 0))
        return models, common

    @override
    def begin(self, workspace: Workspace[FedSoftState]) -> FedSoftState:
        """Return the state before the first division of the samples."""
        return replace(super().begin(workspace), trained=(), shares=(0.0,) * self.clusters)

    @override
    def assign(self, workspace: Workspace[FedSoftState]) -> FedSoftState:
        """Every tau_e rounds, compute u; draw the flags of ``select``."""
        state = replace(workspace.state, trained=(self.own,))
        if not state.importance or workspace.round_index % self.options.importance_every == 0:
            labels = divided(workspace.learner, [workspace.models.model(s) for s in range(self.clusters)])
            sizes = cluster_sizes(labels, self.clusters)
            state = replace(
                state,
                labels=labels,
                importance=importance(sizes, self.options.sigma),
                cluster_index=int(np.argmax(sizes)),
                mixture=tuple(size / len(labels) for size in sizes),
            )
        return replace(state, shares=self._shares(state.importance, workspace.round_index))

    def _shares(self, u: tuple[float, ...], round_index: int) -> tuple[float, ...]:
        if self.options.variant == "weighted":
            return u
        chances = [min(1.0, self.clusters * self.options.rate * share) for share in u]
        drawn = [uniform(self.manifest.seed, "fedsoft", self.peer_id, round_index, s) for s in range(self.clusters)]
        return tuple(float(z < chance) for z, chance in zip(drawn, chances, strict=True))

    @override
    def sit_out(self, workspace: Workspace[FedSoftState]) -> FedSoftState:
        """Train nothing; with ``select``, take no part in the own centers either."""
        state = super().sit_out(workspace)
        return state if self.options.variant == "weighted" else replace(state, shares=(0.0,) * self.clusters)

    @override
    def train(self, workspace: Workspace[FedSoftState]) -> Fields:
        """Train w near the centers; the first training starts at their mixture."""
        models, u = workspace.models, workspace.state.importance
        center, strength = pull([models.model(s) for s in range(self.clusters)], u, self.options.strength)
        start = models.model(self.own) if workspace.state.has_trained else center
        proximal = (center, strength) if strength > 0 else None
        trained, stats = workspace.fit(start, replace(workspace.slot_plan(self.own), proximal=proximal), "own")
        models.replace(self.own, trained)
        workspace.state = replace(workspace.state, has_trained=True)
        return training_fields([stats])

    @override
    def adopt(self, workspace: Workspace[FedSoftState]) -> FedSoftState:
        """Average the pulled centers; the own w stays, and the samples are divided anew."""
        self.average_pulled(workspace, range(self.clusters))
        return replace(workspace.state, importance=())

    @override
    def evaluate(self, workspace: Workspace[FedSoftState]) -> Fields:
        """Return the metrics of w, the metric value of the center that has most of the training samples, and their division."""
        state = workspace.state
        main, known = workspace.models.model(state.cluster_index or 0), Fields()
        if state.labels is not None:
            classes = workspace.learner.labels()
            known["mixture"] = list(state.mixture)
            known |= division(state.labels, self.clusters, true=workspace.true_cluster, classes=classes)
        if (truth := workspace.learner.test_cluster) is not None:
            centers = [workspace.models.model(s) for s in range(self.clusters)]
            known["center_scores"] = center_scores(workspace.learner, centers, truth)
        shared = workspace.learner.evaluate(main).metric
        return super().evaluate(workspace) | {"metric_shared": shared, "state": known}


def divided(learner: Learner, centers: list[Vector]) -> Labels:
    """Return the center of lowest loss for each training sample, int64 [n]; ties go to the lowest index."""
    losses = np.stack([learner.sample_losses(center) for center in centers])
    return np.asarray(np.argmin(losses, axis=0), dtype=np.int64)


def center_scores(learner: Learner, centers: list[Vector], truth: Labels) -> list[list[list[float]]]:
    """Return for each center and true cluster the sum of the test samples' scores and their number, [S][C][2].

    Sums, so that a report can add them over peers: the paper evaluates centers on data of one distribution each.
    """
    sizes = np.bincount(truth)
    found = []
    for center in centers:
        sums = np.bincount(truth, weights=learner.sample_scores(center).astype(np.float64))
        found.append([[float(total), float(size)] for total, size in zip(sums, sizes, strict=True)])
    return found


def importance(sizes: list[int], sigma: float) -> tuple[float, ...]:
    """Return u_s: the share of each center, or sigma where it is 0; not normalized again, as in the authors' code."""
    return tuple(size / sum(sizes) if size else sigma for size in sizes)


def pull(centers: list[Vector], u: Sequence[float], strength: float) -> tuple[Vector, float]:
    """Return (c, k) so that k (w - c) = strength * sum_s u_s (w - c_s): one center in place of S, whatever the sum of u."""
    total = math.fsum(u)
    return weighted_sum(centers, [share / total for share in u]), strength * total

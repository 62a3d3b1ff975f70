"""Decentralized FedEM: every peer trains M models on all its samples, each sample weighted by its probability under the model.

Round: E-step, q_i(d, m) ~ pi_im exp(-l(theta_im; d)). M-step, pi_im = mean_d q_i(d, m), and tau epochs on the batch loss
sum_d q_i(d, m) l(theta_im; d) / B. Then every model is averaged over the neighbors with weights W; pi is never averaged.
A prediction is sum_m pi_im softmax(f(theta_im; x)). A peer sends M models to each neighbor in each round.

Source: Othmane Marfoq, Giovanni Neglia, Aurélien Bellet, Laetitia Kameni and Richard Vidal, "Federated Multi-Task Learning under
a Mixture of Distributions", 2021, arXiv 2108.10252, its decentralized form (D-FedEM). W is Metropolis here; the authors' code
computes the fastest-mixing symmetric W from the whole graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Ability, Fields, training_fields
from peer.algorithms.mixture import division
from peer.algorithms.predictor import MIXTURE, Predictor
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.decisions import AlgorithmState

LOSS_MAX = 1e30  # the loss of a diverged model: infinite losses must have finite differences


class FedEM(Algorithm):
    """FedEM on a graph: ``run.clusters`` is M; ``run.mix`` is metropolis by default."""

    name = "fedem"
    why_not_private = "it weighs each sample by shares that all samples decide"
    default_mix = "metropolis"
    result_is_model = False
    keys: ClassVar = {"optimizer_state": EffectiveWhen.never("algorithm fedem resets the optimizer in each round")}

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return losses and weights of samples, and outputs, which it mixes."""
        return frozenset({"losses", "subset", "outputs"})

    @override
    def begin(self, workspace: Workspace) -> AlgorithmState:
        """Return the state before the first round, with uniform pi."""
        mixture = (1.0 / self.slots,) * self.slots
        return replace(super().begin(workspace), trained=tuple(range(self.slots)), mixture=mixture)

    @override
    def assign(self, workspace: Workspace) -> AlgorithmState:
        """Do the E-step, and compute pi of the M-step; all models train."""
        losses = [workspace.learner.sample_losses(workspace.models.model(slot)) for slot in range(self.slots)]
        shares = responsibilities(np.stack(losses), workspace.state.mixture)
        workspace.scratch["shares"] = shares.astype(np.float32)
        mixture = tuple(float(p) for p in shares.mean(axis=1))
        return replace(
            workspace.state,
            trained=tuple(range(self.slots)),
            mixture=mixture,
            cluster_index=int(np.argmax(mixture)),
        )

    @override
    def train(self, workspace: Workspace) -> Fields:
        """Train each model with its sample weights q; a batch's loss is divided by its size, not by the sum of weights."""
        shares = workspace.scratch["shares"]
        plans = {
            slot: replace(workspace.slot_plan(slot), sample_weights=shares[slot]) for slot in workspace.state.trained
        }
        return training_fields([workspace.fit_slot(slot, plan) for slot, plan in plans.items()])

    @override
    def evaluate(self, workspace: Workspace) -> Fields:
        """Return the metrics of the mixed predictions."""
        mixture = workspace.state.mixture
        # reports read from `soft_mixture` that pi is a mean of probabilities; the mixture of FedSPD counts samples.
        state: Fields = {"mixture": list(mixture), "soft_mixture": list(mixture)}
        if "shares" in workspace.scratch:
            likeliest = np.argmax(workspace.scratch["shares"], axis=0).astype(np.int64)
            classes = workspace.learner.labels()
            state |= division(likeliest, self.slots, true=workspace.true_cluster, classes=classes)
        return super().evaluate(workspace) | {"state": state}

    @override
    def predictor(self, workspace: Workspace) -> Predictor:
        """Return all models, whose predictions are mixed by pi."""
        models = tuple(workspace.models.model(slot) for slot in range(self.slots))
        return Predictor(models, MIXTURE, workspace.state.mixture)

    @override
    def final(self, workspace: Workspace) -> tuple[Vector, Fields]:
        """Return the model of the largest pi; the metrics are those of the mixed predictions."""
        main = int(np.argmax(workspace.state.mixture))
        return workspace.models.model(main), self.evaluate(workspace) | {"predictor": MIXTURE}


def responsibilities(losses: npt.NDArray[np.floating], mixture: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return q, float64 [M, n]: softmax over m of log pi_m - loss; each sample's column sums to 1.

    The largest exponent is subtracted first, so large losses, as in regression, keep their differences.

    Args:
        losses: [M, n]; clipped at `LOSS_MAX` here.
        mixture: pi, M numbers that sum to 1.
    """
    finite = losses.astype(np.float64).clip(max=LOSS_MAX)
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(mixture))[:, None] - finite
    logits -= logits.max(axis=0)
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=0), dtype=np.float64)

"""Decentralized FedEM: every peer trains all M learners, each on all samples, weighted by how well it explains them.

Round: E, q_i(d, m) ~ pi_im exp(-l(theta_im; d)); M, pi_im = mean_d q_i(d, m) and tau epochs on sum_d q_i(d, m) l / B; mix
every learner over the neighborhood with W; pi is never mixed. A prediction is sum_m pi_im softmax(f(theta_im; x)).
Source: specification, 6.5. It sends M models to each neighbor and round: the natural opponent of FedSPD.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from peer.algorithms.base import Algorithm, Bench
from peer.algorithms.mixture import confusion
from peer.algorithms.personalize import mixed_predictions
from peer.core.averaging import Vector
from peer.core.decisions import Facts

LOSS_MAX = 50.0  # exp(-50) is nothing beside any competitor; beyond it float64 gains nothing


class FedEM(Algorithm):
    """FedEM on a graph; ``clusters`` = M, ``mix`` metropolis unless the manifest says otherwise."""

    name = "fedem"
    default_mix = "metropolis"

    def begin(self, bench: Bench) -> Facts:
        """Uniform pi."""
        mixture = [1.0 / self.slots] * self.slots
        return {"trained": list(range(self.slots)), "sample_count": bench.learner.count(), "mixture": mixture}

    def assign(self, bench: Bench) -> Facts:
        """The E-step, and pi of the M-step; all learners train."""
        losses = [bench.learner.sample_losses(bench.models.model(slot)) for slot in range(self.slots)]
        shares = responsibilities(np.stack(losses), bench.facts["mixture"])
        bench.scratch["shares"] = shares.astype(np.float32)
        mixture = [float(p) for p in shares.mean(axis=1)]
        return {
            **bench.facts,
            "trained": list(range(self.slots)),
            "mixture": mixture,
            "cluster_index": int(np.argmax(mixture)),
        }

    def train(self, bench: Bench) -> dict[str, Any]:
        """Each learner on its share of every sample; a batch's loss is divided by its size, not by the sum of shares."""
        losses = []
        for slot in bench.facts["trained"]:
            weights = bench.scratch["shares"][slot]
            model, stats = bench.fit(bench.models.model(slot), bench.seed("train", slot), sample_weights=weights)
            bench.models.replace(slot, model)
            losses.append(stats.loss)
        return {"train_loss": float(np.mean(losses))}

    def evaluate(self, bench: Bench) -> dict[str, Any]:
        """Evaluate the mixture of predictions."""
        models = [bench.models.model(slot) for slot in range(self.slots)]
        mixture = bench.facts["mixture"]
        result = bench.learner.evaluate_predictions(mixed_predictions(bench.learner, models, mixture))
        facts: dict[str, Any] = {"mixture": mixture, "soft_mixture": mixture}  # no counts of samples, unlike FedSPD's
        if bench.true_cluster is not None and "shares" in bench.scratch:
            explained_by = np.argmax(bench.scratch["shares"], axis=0).astype(np.int64)
            facts["confusion"] = confusion(bench.true_cluster, explained_by, self.slots)
        return {"accuracy": result.metric, "loss": result.loss, "facts": facts}

    def final(self, bench: Bench) -> tuple[Vector, dict[str, Any]]:
        """Return the learner of the largest weight as the one personalized model; its metrics are those of the mixture."""
        main = int(np.argmax(bench.facts["mixture"]))
        return bench.models.model(main), self.evaluate(bench) | {"predictor": "mixture"}


def responsibilities(losses: npt.NDArray[np.floating], mixture: list[float]) -> npt.NDArray[np.float64]:
    """Return q, float64 [M, n]: softmax over m of log pi_m - loss; each sample's column sums to 1.

    Args:
        losses: [M, n], clipped at `LOSS_MAX`.
        mixture: pi, M numbers that sum to 1.
    """
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(mixture))[:, None] - np.minimum(losses.astype(np.float64), LOSS_MAX)
    logits -= logits.max(axis=0)
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=0), dtype=np.float64)

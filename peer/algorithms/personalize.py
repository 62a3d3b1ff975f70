"""Personalized models and predictions, made from the models of all clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from peer.algorithms.learner import Learner, Part
from peer.core.averaging import Vector, accumulate

Predictions = npt.NDArray[np.float32]


def weighted_sum(models: list[Vector], weights: Sequence[float]) -> Vector:
    """Return sum_s u_s c_s, a new float32 [d]; if one weight is 1 and the others 0, it is that model bit for bit.

    Source: FedSPD Eq. 2 (arXiv 2410.18862).
    """
    total: Vector | None = None
    for model, weight in zip(models, weights, strict=True):
        if weight == 0:
            continue
        if total is None:
            total = model * np.float32(weight)
        else:
            accumulate(total, model, weight)
    return np.zeros_like(models[0]) if total is None else total


def mixed(predictions: Sequence[Predictions], weights: Sequence[float]) -> Predictions:
    """Return sum_m w_m p_m, float32 [n, ...]; a model of weight 0 is left out, as its predictions may not be finite."""
    rows = [row * np.float32(weight) for row, weight in zip(predictions, weights, strict=True) if weight > 0]
    total: Predictions = np.sum(rows, axis=0, dtype=np.float32)
    return total


def mixed_predictions(
    learner: Learner, models: list[Vector], weights: Sequence[float], part: Part = "test"
) -> Predictions:
    """Return sum_m pi_m softmax(f(theta_m; x)), float32 [n, C], as FedEM (arXiv 2108.10252) predicts.

    A model of weight 0 predicts nothing.
    """
    counted = [(model, weight) for model, weight in zip(models, weights, strict=True) if weight > 0]
    return mixed([learner.predict_proba(model, part) for model, _ in counted], [weight for _, weight in counted])


def confident_predictions(learner: Learner, models: list[Vector], part: Part = "test") -> Predictions:
    """Return for each sample the prediction of the model with the highest class probability, float32 [n, C].

    An addition of this project.
    """
    rows = np.stack([learner.predict_proba(model, part) for model in models])  # [S, n, C]
    best = rows.max(axis=2).argmax(axis=0)
    return np.asarray(rows[best, np.arange(rows.shape[1])], dtype=np.float32)

"""From S centers to one peer's own model or predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from peer.algorithms.base import Bench, Learner, Part
from peer.core.averaging import Vector, accumulate

Predictions = npt.NDArray[np.float32]


def weighted_sum(models: list[Vector], weights: list[float]) -> Vector:
    """Return sum_s u_s c_s, a fresh float32 [d] (FedSPD Eq. 2); with one weight 1 it is that model bit for bit."""
    total: Vector | None = None
    for model, weight in zip(models, weights, strict=True):
        if weight == 0:
            continue
        if total is None:
            total = model * np.float32(weight)
        else:
            accumulate(total, model, weight)
    return np.zeros_like(models[0]) if total is None else total


def mixed_predictions(learner: Learner, models: list[Vector], weights: list[float], part: Part = "test") -> Predictions:
    """Return sum_m pi_m softmax(f(theta_m; x)), float32 [n, C]: a mixture of predictions (FedEM)."""
    rows = [
        learner.predict_proba(model, part) * np.float32(weight)
        for model, weight in zip(models, weights, strict=True)
        if weight > 0
    ]
    mixed: Predictions = np.sum(rows, axis=0, dtype=np.float32)
    return mixed


def confident_predictions(learner: Learner, models: list[Vector], part: Part = "test") -> Predictions:
    """Return for each sample the prediction of the center with the highest class probability, float32 [n, C] (OURS)."""
    rows = np.stack([learner.predict_proba(model, part) for model in models])  # [S, n, C]
    best = rows.max(axis=2).argmax(axis=0)
    return np.asarray(rows[best, np.arange(rows.shape[1])], dtype=np.float32)


def final_phase(bench: Bench, model: Vector, epochs: int, learning_rate: float | None) -> Vector:
    """Return a copy of a model after local epochs on all own samples: the step that nobody hears about (FedSPD, 2.5).

    The learning rate is that of the first round halved, as in the authors' code, unless given.
    """
    if epochs == 0:
        return model
    changes: dict[str, Any] = {
        "epochs": epochs,
        "learning_rate": bench.manifest.learning_rate / 2 if learning_rate is None else learning_rate,
        "unit": "epoch" if bench.manifest.local_unit == "epoch" else "fullbatch_step",
    }
    return bench.fit(model, bench.seed("final"), **changes)[0]

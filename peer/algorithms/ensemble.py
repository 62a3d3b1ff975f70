"""How much each of several models counts in a mixture of their predictions, by the loss on samples held out. Pure.

Source: Rich Caruana, Alexandru Niculescu-Mizil, Geoff Crew and Alex Ksikes, "Ensemble Selection from Libraries of Models", 2004,
Section 2.1: forward selection with replacement. An addition of this project: the bag begins with one of each model, so that with
few samples held out no model is left out by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from peer.algorithms.personalize import Predictions

Losses = npt.NDArray[np.float32]
PICKS = 20
ERRORS = 2.0  # standard errors that make a difference of mean losses clear


def selected_weights(predictions: Sequence[Predictions], loss: Callable[[Predictions], float]) -> list[float]:
    """Return the weight of each model; they sum to 1. The bag has one of each; `PICKS` times it gets the model of lowest loss.

    Args:
        predictions: of each model, float32 [n, ...] of equal shape; a model whose predictions are not finite has weight 0.
        loss: of mixed predictions, such as the mean over the samples; an infinite one is never chosen.

    Raises:
        ValueError: no model has finite predictions.
    """
    usable = [index for index, rows in enumerate(predictions) if np.isfinite(rows).all()]
    if not usable:
        raise ValueError("expected a model with finite predictions, got none")
    counts = np.zeros(len(predictions))
    counts[usable] = 1
    total = np.sum([predictions[index] for index in usable], axis=0, dtype=np.float64)
    for _ in range(PICKS):
        size = counts.sum() + 1
        losses = [loss(((total + predictions[index]) / size).astype(np.float32)) for index in usable]
        best = usable[int(np.argmin(losses))]
        counts[best] += 1
        total += predictions[best]
    return [float(weight) for weight in counts / counts.sum()]


def clearly_above(losses: Losses, reference: Losses, errors: float = ERRORS) -> bool:
    """Return whether the mean loss is above that of the reference on the same samples by more than some standard errors.

    One sample shows nothing, and losses that are not finite are above.

    Args:
        losses: float32 [n].
        reference: float32 [n].
        errors: number of standard errors.
    """
    difference = losses.astype(np.float64) - reference
    if not np.isfinite(difference).all():
        return True
    if len(difference) < 2:
        return False
    return bool(difference.mean() > errors * difference.std(ddof=1) / np.sqrt(len(difference)))

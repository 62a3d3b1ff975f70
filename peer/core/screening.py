"""What an arrival must satisfy beyond being complete and digest-true, before it may change anything. Pure.

`check_norm` and `clip` look at one arrival at a time: they compose with a running average, whose memory does not grow with
the number of neighbors. `trimmed_mean` needs all of a round's arrivals at once, and is for those who ask for it.

The center of clipping is the local model at the start of the round, not the moving average, so that
the result does not depend on the order of arrivals, and one arrival moves an average of n + 1 models by at most tau / (n + 1).
Sources: ClippedGossip (arXiv 2202.01545), x <- w0 + min(1, tau / |x - w0|) (x - w0); trimmed mean (arXiv 1803.01498).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coordinator_free_bootstrap.errors import Refusal
from peer.core.averaging import BLOCK_ELEMENTS, Vector
from peer.core.decisions import Rejection

# No sum or difference of models below this norm (1.8e19) overflows float32, so averages of arrivals stay finite.
NORM_SQUARED_MAX = float(np.finfo(np.float32).max)


def check_norm(norm_squared: float, own_norm_squared: float, bound: float | None) -> Rejection | None:
    """Return why a model's size is unbelievable: not finite (always), or larger than ``bound`` times the own model's."""
    if not norm_squared <= NORM_SQUARED_MAX:
        return Rejection(
            Refusal.NON_FINITE, "the model holds values that are not finite, or its norm overflows float32"
        )
    if bound is not None and norm_squared > bound**2 * own_norm_squared:
        return Rejection(
            Refusal.NORM_BOUND,
            f"norm {math.sqrt(norm_squared):.3g}, allowed up to {bound:g} times the own {math.sqrt(own_norm_squared):.3g}",
        )
    return None


def clip(arrival: Vector, center: Vector, radius: float) -> float:
    """Pull an arrival towards ``center`` until its distance is at most ``radius``, in place; return the factor applied.

    Args:
        arrival: float32 [d], mutated.
        center: float32 [d], the local model at the start of the round; read only.
        radius: tau > 0, Euclidean.
    """
    distance_squared = 0.0
    scratch = np.empty(min(BLOCK_ELEMENTS, arrival.size), np.float32)
    places = [slice(start, start + BLOCK_ELEMENTS) for start in range(0, arrival.size, BLOCK_ELEMENTS)]
    for place in places:
        difference = np.subtract(arrival[place], center[place], out=scratch[: arrival[place].size])
        distance_squared += float(np.dot(difference, difference))
    if distance_squared <= radius**2:
        return 1.0
    factor = radius / math.sqrt(distance_squared)
    for place in places:
        difference = np.subtract(arrival[place], center[place], out=scratch[: arrival[place].size])
        difference *= np.float32(factor)
        np.add(center[place], difference, out=arrival[place])
    return factor


def trimmed_mean(models: Sequence[Vector], weights: Sequence[float], share: float, out: Vector) -> None:
    """Write the coordinate-wise weighted mean without the largest and smallest floor(share * n) of the n values.

    With b values trimmed at each end, up to b liars cannot move a coordinate out of the hull of the honest values. With
    fewer than 1 / share models nothing is trimmed, and this is the plain mean.

    Args:
        models: n of float32 [d]; read only. They are visited in blocks, so that n blocks and not n models are sorted at once.
        weights: n, > 0.
        share: of the models, trimmed at each end; 0 <= share < 0.5.
        out: float32 [d], mutated; may be one of ``models``.
    """
    count = len(models)
    trimmed = int(share * count)
    weight = np.asarray(weights, np.float32)[:, None]
    rows = max(1, BLOCK_ELEMENTS // count)
    for start in range(0, out.size, rows):
        block = np.stack([model[start : start + rows] for model in models])
        order = np.argsort(block, axis=0, kind="stable")[trimmed : count - trimmed]
        kept = np.take_along_axis(np.broadcast_to(weight, block.shape), order, axis=0)
        values = np.take_along_axis(block, order, axis=0)
        mean = (values.astype(np.float64) * kept).sum(axis=0) / kept.sum(axis=0, dtype=np.float64)
        out[start : start + rows] = np.clip(mean, values[0], values[-1])  # rounding must not leave the hull

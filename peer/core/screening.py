"""Screening: the checks of a complete arrival, and what bounds its influence on an average. Pure.

`check_norm` and `clip` need one arrival at a time, so they work with a running average, whose memory does not grow with the
number of neighbors. `trimmed_mean` needs all arrivals of a round at once; it is an option (run.screening.trimmed_mean).

The center of clipping is the local model at the start of the round, not the running average. So the result does not depend on
the order of arrivals, and one arrival moves an average of n + 1 models by at most tau / (n + 1).

Sources: Lie He, Sai Praneeth Karimireddy and Martin Jaggi, "Byzantine-Robust Decentralized Learning via ClippedGossip", 2022,
arXiv 2202.01545: x <- w0 + min(1, tau / |x - w0|) (x - w0). Dong Yin, Yudong Chen, Kannan Ramchandran and Peter Bartlett,
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018, arXiv 1803.01498: the trimmed mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core.averaging import BLOCK_ELEMENTS, Vector

# With a norm up to 1.8e19, the square root of this, no sum or difference of two models overflows float32.
NORM_SQUARED_MAX = float(np.finfo(np.float32).max)


def check_norm(norm_squared: float, own_norm_squared: float, bound: float | None) -> Refusal | None:
    """Return the rejection of a model that is not finite, or whose norm exceeds ``bound`` times the own model's; or None."""
    if not norm_squared <= NORM_SQUARED_MAX:
        return Refusal(RefusalCode.NON_FINITE, "the model holds NaN or Inf, or its squared norm overflows float32")
    if bound is not None and norm_squared > bound**2 * own_norm_squared:
        return Refusal(
            RefusalCode.NORM_BOUND,
            f"norm: expected at most {bound:g} times the receiver's {math.sqrt(own_norm_squared):.3g}, got "
            f"{math.sqrt(norm_squared):.3g}",
        )
    return None


def clip(arrival: Vector, center: Vector, radius: float) -> float:
    """Clip an arrival in place to a distance of at most ``radius`` from ``center``; return the factor applied, 1 if unchanged.

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

    With b values trimmed at each end, up to b Byzantine models cannot move a coordinate out of the range of the honest values.
    With fewer than 1 / share models nothing is trimmed: the result is the weighted mean.

    Args:
        models: n of float32 [d]; read only. They are sorted block by block, so the extra memory is n blocks, not n models.
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
        # rounding must not leave the range of the values
        out[start : start + rows] = np.clip(mean, values[0], values[-1])

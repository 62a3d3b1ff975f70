"""Averages of model vectors, and the screening that bounds what one arrival can do to them. Pure.

Averages use elementwise NumPy operations only, in place and in blocks, so that a result does not depend on the number of
threads, on alignment or on the block size. A scratch block fits the processor's cache; no operation allocates a second model.

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
import numpy.typing as npt

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RefusalCode

Vector = npt.NDArray[np.float32]

# 64 Ki float32 = 256 KiB: scratch, arrival and average of one block together fit a usual 1 MiB second-level cache.
BLOCK_ELEMENTS = 1 << 16


def fold(average: Vector, weight_sum: float, arrival: Vector, weight: float = 1.0) -> float:
    """Fold one arrival into a running average, in place, and return the new sum of weights.

    With all weights 1 and ``weight_sum`` = 1 for the local model, the result after n arrivals is the mean of 1 + n models, in
    any order up to float32 rounding. To fold an average of weight W, pass ``weight = W``.
    Source: DFCA Eq. 8 (arXiv 2510.15300), theta <- r/(r+1) theta + 1/(r+1) theta_m, where r counts the arrivals up to and with
    this one. The form with weights, theta <- theta + q/(W+q) (theta_m - theta), is an addition of this project.

    Args:
        average: float32 [d], mutated.
        weight_sum: weight already in ``average``, > 0.
        arrival: float32 [d], read only.
        weight: weight of the arrival, > 0.

    Raises:
        LocalProtocolError: shapes differ (never broadcast) or a weight is not positive.
    """
    if average.shape != arrival.shape or average.ndim != 1:
        raise LocalProtocolError(f"cannot fold a vector of shape {arrival.shape} into one of {average.shape}")
    if not (weight_sum > 0 and weight > 0):
        raise LocalProtocolError(f"weights of a running average: expected above 0, got {weight_sum} and {weight}")
    total = weight_sum + weight
    step = np.float32(weight / total)
    scratch = np.empty(min(BLOCK_ELEMENTS, average.size), np.float32)
    for start in range(0, average.size, BLOCK_ELEMENTS):
        block = average[start : start + BLOCK_ELEMENTS]
        difference = scratch[: block.size]
        np.subtract(arrival[start : start + BLOCK_ELEMENTS], block, out=difference)
        np.multiply(difference, step, out=difference)
        np.add(block, difference, out=block)
    return total


def accumulate(total: Vector, arrival: Vector, weight: float = 1.0) -> None:
    """Add ``weight * arrival`` to a sum, in place: the numerator of DFCA Eq. 7 (arXiv 2510.15300), batch aggregation.

    Args:
        total: float32 [d], mutated.
        arrival: float32 [d], read only.
        weight: weight of the arrival.

    Raises:
        LocalProtocolError: shapes differ (never broadcast).
    """
    if total.shape != arrival.shape:
        raise LocalProtocolError(f"cannot add a vector of shape {arrival.shape} to one of {total.shape}")
    scratch = np.empty(min(BLOCK_ELEMENTS, total.size), np.float32)
    for start in range(0, total.size, BLOCK_ELEMENTS):
        block = total[start : start + BLOCK_ELEMENTS]
        product = scratch[: block.size]
        np.multiply(arrival[start : start + BLOCK_ELEMENTS], np.float32(weight), out=product)
        np.add(block, product, out=block)


def norm_squared(vector: Vector) -> float:
    """Return the squared Euclidean norm, summed in float64 over blocks; infinite or NaN if any element is."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, vector.size, BLOCK_ELEMENTS):
            block = vector[start : start + BLOCK_ELEMENTS]
            total += float(np.dot(block, block))
    return total


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

"""Running averages of model vectors: in place, in blocks, the same bits on every machine.

Averages use elementwise NumPy operations only, so that a result does not depend on the number of threads, on alignment or on
the block size. A scratch block fits the processor's cache; no operation allocates a second model. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.errors import LocalProtocolError

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

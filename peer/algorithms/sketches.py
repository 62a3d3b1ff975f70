"""Sketches: short random projections of models, for comparing models without sending them.

A sketch of theta is R (theta - reference), q float32 values. R is a q x d matrix of signs over sqrt(q), generated block by block
from the run's seed, never stored and never sent. Inner products are kept up to about 1 / sqrt(q). Sketches are linear.

An addition of this project, for FedSPD; random signs as in Dimitris Achlioptas, "Database-friendly random projections", 2003.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.seeds import derive_seed
from peer.core.averaging import Vector

BLOCK_ELEMENTS = 1 << 13  # a block of the sign matrix: 256 x 8192 float32 = 8 MiB
Ids = npt.NDArray[np.int64]
Sketches = npt.NDArray[np.float32]  # [n, q], one sketch a row


def sketch(models: list[Vector], reference: Vector | None, size: int, seed: int) -> Sketches:
    """Return R (theta - reference) of each model, float32 [n, q].

    Args:
        models: n vectors float32 [d].
        reference: float32 [d], or None for 0.
        size: q.
        seed: of the run; equal on all peers.
    """
    result = np.zeros((len(models), size), np.float32)
    for block, start in enumerate(range(0, models[0].size, BLOCK_ELEMENTS)):
        place = slice(start, start + BLOCK_ELEMENTS)
        origin = np.float32(0) if reference is None else reference[place]
        differences = np.stack([model[place] - origin for model in models])  # [n, b]
        result += differences @ _signs(seed, block, differences.shape[1], size)
    return result / np.float32(np.sqrt(size))


def _signs(seed: int, block: int, rows: int, columns: int) -> npt.NDArray[np.float32]:
    philox = np.random.Philox(key=derive_seed(seed, "sketch", block))
    words = philox.random_raw((rows * columns + 63) // 64).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=rows * columns)
    return (bits.astype(np.float32) * 2 - 1).reshape(rows, columns)


def refuse_rows(numbers: npt.NDArray[np.float64], count: int, size: int) -> Refusal | None:
    """Return why a neighbor's numbers cannot be sketches, or None.

    Args:
        numbers: float64, finite.
        count: n, how many sketches they should be.
        size: q.
    """
    if len(numbers) != count * size:
        sentence = f"sketches: expected {count} of {size} numbers, got {len(numbers)} numbers"
        return Refusal(RefusalCode.WRONG_SIZE, sentence)
    if numbers.size and np.abs(numbers).max() > np.finfo(np.float32).max:
        return Refusal(RefusalCode.NON_FINITE, "sketches: expected numbers of float32, got a larger one")
    return None


def rows(numbers: npt.NDArray[np.float64], count: int) -> Sketches:
    """Return the ``count`` sketches in a message's numbers, float32 [count, q]; `refuse_rows` has checked them."""
    return numbers.reshape(count, -1).astype(np.float32)


def merge(ids: Ids, sketches: Sketches, other_ids: Ids, other_sketches: Sketches) -> tuple[Ids, Sketches]:
    """Return the union of two sets of sketches, ascending by peer id; for an id in both, the first set's sketch."""
    new = ~np.isin(other_ids, ids)
    all_ids, all_rows = np.concatenate([ids, other_ids[new]]), np.concatenate([sketches, other_sketches[new]])
    order = np.argsort(all_ids)
    return all_ids[order], all_rows[order]

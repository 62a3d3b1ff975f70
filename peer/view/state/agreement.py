"""Agreement of the learned clusters with the true ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]


def agreement(true: Sequence[int | None], found: Sequence[int | None]) -> float | None:
    """Return the adjusted Rand index over the peers that have both labels; None without any."""
    known = [(t, f) for t, f in zip(true, found, strict=True) if t is not None and f is not None]
    return adjusted_rand_index(*np.array(known, dtype=np.int64).T) if known else None


def adjusted_rand_index(true: Labels, found: Labels) -> float:
    """Return the agreement of two labelings, int64 [n]: 1 if equal up to names, about 0 by chance.

    Source: Hubert and Arabie, "Comparing partitions", Journal of Classification 2 (1985), equation 5.
    """
    true_index, found_index = (np.unique(labels, return_inverse=True)[1] for labels in (true, found))
    table = np.zeros((true_index.max() + 1, found_index.max() + 1))
    np.add.at(table, (true_index, found_index), 1)

    def pairs(counts: npt.NDArray[np.float64]) -> float:
        return float((counts * (counts - 1) / 2).sum())

    together, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    total = len(true) * (len(true) - 1) / 2
    expected = rows * columns / total if total else 0.0
    most = (rows + columns) / 2
    return 1.0 if most == expected else (together - expected) / (most - expected)

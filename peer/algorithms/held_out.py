"""Samples held out of training, on which models are compared.

They are the peer's validation data; without any, a part of its training samples, which then do not train.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peer.algorithms.learner import Learner, Part

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fold:
    """One division of a peer's samples: those that decide and those that train."""

    part: Part  # of the shard, in which ``held_out`` are indices
    held_out: Indices  # int64 [m], maybe none
    rest: Indices | None = None  # of the training samples; None: all of them train


def share_held_out(learner: Learner, share: float, draw: np.random.Generator) -> Fold:
    """Return the validation data, or a share of the training samples, drawn at random and rounded down."""
    if found := _validation(learner):
        return found
    order = draw.permutation(learner.count())
    return _fold(order, np.sort(order[: int(share * len(order))]))


def folds(learner: Learner, count: int, draw: np.random.Generator) -> list[Fold]:
    """Return the validation data alone, or ``count`` folds that hold out each training sample once; none with fewer samples."""
    if found := _validation(learner):
        return [found]
    if learner.count() < count:
        return []
    order = draw.permutation(learner.count())
    return [_fold(order, held_out) for held_out in np.array_split(order, count)]


def _validation(learner: Learner) -> Fold | None:
    count = learner.count("validation")
    return Fold("validation", np.arange(count)) if count else None


def _fold(order: Indices, held_out: Indices) -> Fold:
    return Fold("train", held_out, np.setdiff1d(order, held_out))

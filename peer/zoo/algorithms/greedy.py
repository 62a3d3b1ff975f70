"""Greedy collaboration graph construction (GGC) and its batched form (BGGC): whose models a peer averages with its own.

X starts as {k}, Y as all candidates and k. One candidate after another, in random order, is added to X or removed from Y, at
random with the odds of the two gains in reward. The reward of a set is minus the mean validation loss of its average, weighted by
sample counts.

Only the weighted sums of X and Y are kept, in float64: a batch of candidates is read, then dropped. So GGC, which has all models
in memory, and BGGC, which reads each twice, are the same calls, and decide the same with the same coins (Theorem 1).

Source: DPFL (arXiv 2406.06520), Algorithms 2 and 3, Eq. 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peer.core.averaging import Vector

LOSS_MAX = 1e30  # a model that is not finite has this loss, so that differences of rewards are numbers


@dataclass
class WeightedSum:
    """Sum of p_j w_j and of p_j over a set of peers; ``total`` float64 [d]."""

    total: npt.NDArray[np.float64]
    weight: float

    @classmethod
    def of(cls, model: Vector, weight: float) -> WeightedSum:
        """Return the sum over one peer."""
        return cls(model.astype(np.float64) * weight, weight)

    def add(self, model: Vector, weight: float) -> None:
        """Add a peer; with a negative weight, remove it."""
        self.total += model.astype(np.float64) * weight
        self.weight += weight

    def mean(self) -> Vector:
        """Return the weighted average, a new float32 [d]."""
        found: Vector = (self.total / self.weight).astype(np.float32)
        return found

    def mean_with(self, model: Vector, weight: float) -> Vector:
        """Return the average as it would be after `add`."""
        found: Vector = ((self.total + model.astype(np.float64) * weight) / (self.weight + weight)).astype(np.float32)
        return found


class GreedyChoice:
    """One run of GGC or BGGC: `expect` every candidate, then `consider` every candidate, in the order of the shuffle.

    Args:
        own: the peer's model, float32 [d].
        weight: p_k, its sample count; only ratios matter.
        loss: the mean validation loss of a model.
        coins: draws one number for each candidate that is considered.
        budget: B_c, the largest |X|, which counts the peer itself; None: no limit.
    """

    def __init__(
        self,
        own: Vector,
        weight: float,
        loss: Callable[[Vector], float],
        coins: np.random.Generator,
        budget: int | None,
    ) -> None:
        self._x, self._y = WeightedSum.of(own, weight), WeightedSum.of(own, weight)
        self._loss, self._coins, self._budget = loss, coins, budget
        self._expected: set[int] = set()
        self._decided: set[int] = set()
        self._rewards: tuple[float, float] | None = None  # of X and of Y
        self._alone = 0.0
        self.chosen: list[int] = []

    def _reward(self, model: Vector) -> float:
        return -float(np.nan_to_num(self._loss(model), nan=LOSS_MAX, posinf=LOSS_MAX).clip(max=LOSS_MAX))

    @property
    def full(self) -> bool:
        """Whether the budget is used up: no candidate is considered any more."""
        return self._budget is not None and 1 + len(self.chosen) >= self._budget

    def expect(self, peer: int, model: Vector, weight: float) -> None:
        """Count a candidate in Y; an unexpected candidate is ignored."""
        if peer not in self._expected:
            self._expected.add(peer)
            self._y.add(model, weight)

    def consider(self, peer: int, model: Vector, weight: float) -> None:
        """Add a candidate to X or remove it from Y, once; the same bytes and weight as given to `expect`."""
        if self.full or peer not in self._expected or peer in self._decided:
            return
        self._decided.add(peer)
        if self._rewards is None:
            self._alone = self._reward(self._x.mean())
            self._rewards = self._alone, self._reward(self._y.mean())
        x, y = self._rewards
        with_peer = self._reward(self._x.mean_with(model, weight))
        without_peer = self._reward(self._y.mean_with(model, -weight))
        gain, loss = max(with_peer - x, 0.0), max(without_peer - y, 0.0)
        coin = self._coins.random()  # always, so that equal candidates meet equal coins
        if coin < (1.0 if gain == loss == 0 else gain / (gain + loss)):
            self._x.add(model, weight)
            self.chosen.append(peer)
            self._rewards = with_peer, y
        else:
            self._y.add(model, -weight)
            self._rewards = x, without_peer

    @property
    def gain(self) -> float:
        """R(X) - R({k}): how much lower the validation loss of the average is than that of the own model; may be negative."""
        return 0.0 if self._rewards is None else self._rewards[0] - self._alone

    def average(self) -> Vector:
        """Return the weighted average of X (Eq. 4), a new float32 [d]."""
        return self._x.mean()

"""DPFL in float64 NumPy: an independent oracle over sets of peers, that shares no code with the project.

Source: Kharrat, Canini and Horváth, "Decentralized Personalized Federated Learning", 2024 (arXiv 2406.06520), Algorithm 2 as it
is meant (the budget is checked before each candidate) and Eq. 4. Every average is computed anew from all models of a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Models = dict[int, np.ndarray]


@dataclass
class Choice:
    """The set X without the peer itself, in the order of addition, and how close any decision was to another one."""

    chosen: list[int]
    margin: float
    evaluations: int


def average(models: Models, counts: dict[int, float], peers: Sequence[int]) -> np.ndarray:
    """Eq. 4."""
    return sum(counts[j] * models[j] for j in peers) / sum(counts[j] for j in peers)


def ggc(
    me: int,
    order: Sequence[int],
    models: Models,
    counts: dict[int, float],
    loss: Callable[[np.ndarray], float],
    coins: Iterator[float],
    budget: float,
) -> Choice:
    evaluations = 0

    def reward(peers: Sequence[int]) -> float:
        nonlocal evaluations
        evaluations += 1
        return -loss(average(models, counts, peers))

    x, y, margin = [me], [me, *order], np.inf
    rx, ry = reward(x), reward(y)
    for j in order:
        if len(x) >= budget:
            break
        without = [other for other in y if other != j]
        plus, minus = reward([*x, j]), reward(without)
        a, b = max(plus - rx, 0.0), max(minus - ry, 0.0)
        p = 1.0 if a == b == 0 else a / (a + b)
        z = next(coins)
        margin = min(margin, abs(z - p), abs(plus - rx), abs(minus - ry))
        if z < p:
            x, rx = [*x, j], plus
        else:
            y, ry = without, minus
    return Choice(x[1:], margin, evaluations)

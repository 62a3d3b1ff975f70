"""FedSoft in float64 NumPy, with a server or between neighbors: an independent oracle that shares no code with the project.

Source: Ruan and Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", 2022 (arXiv 2112.06053),
with the explicit sum of S proximal terms. Softmax regression and gradient descent over the whole training set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.oracle.fedspd import Data, losses, share
from tests.oracle.personal import gradient


@dataclass
class Settings:
    seed: int
    rounds: int
    steps: int
    rate: float
    strength: float
    every: int
    sigma: float
    draws: float = 0.0  # rate of `select`; 0: weighted


def importance(centers, data: Data, sigma: float) -> list[float]:
    nearest = np.stack([losses(c, data) for c in centers]).argmin(axis=0)
    counts = [(nearest == s).sum() for s in range(len(centers))]
    return [count / len(data.y) if count else sigma for count in counts]


def solve(w, centers, u, data: Data, s: Settings):
    for _ in range(s.steps):
        slope = gradient(w, data)
        for c, weight in zip(centers, u, strict=True):
            slope = slope + s.strength * weight * (w - c)
        w = w - s.rate * slope
    return w


def run(around: dict[int, list[int]], data: dict[int, Data], starts, s: Settings):
    """Return (w, centers, u) of all peers after each round; ``around`` has each peer's closed neighborhood."""
    count = len(starts)
    centers = {i: [np.array(c, dtype=np.float64) for c in starts] for i in data}
    w, u, found = {}, {}, []
    for t in range(s.rounds):
        for i, own in data.items():
            if t % s.every == 0:
                u[i] = importance(centers[i], own, s.sigma)
            start = w[i] if i in w else sum(x * c for x, c in zip(u[i], centers[i], strict=True)) / sum(u[i])
            w[i] = solve(start, centers[i], u[i], own, s)
        flags = {
            (i, k): share(s.seed, "fedsoft", i, t, k) < min(1.0, count * s.draws * u[i][k])
            for i in data
            for k in range(count)
        }
        centers = {
            i: [new_center(k, near, w, u, data, flags, centers[i][k], s) for k in range(count)]
            for i, near in around.items()
        }
        found.append((dict(w), {i: list(c) for i, c in centers.items()}, {i: list(x) for i, x in u.items()}))
    return found


def new_center(k, near, w, u, data, flags, old, s: Settings):
    if s.draws:
        drawn = [w[j] for j in near if flags[j, k]]
        return np.mean(drawn, axis=0) if drawn else old
    weights = np.array([u[j][k] * len(data[j].y) for j in near])
    return np.average([w[j] for j in near], axis=0, weights=weights)

"""Decentralized FedEM in float64 NumPy: an independent oracle that shares no code with the project.

Source: Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated Multi-Task Learning under a Mixture of Distributions", 2021 (arXiv
2108.10252), its fully decentralized version, with Metropolis weights. Softmax regression and gradient descent over the whole
training set, as in tests/oracle/fedspd.py.
"""

from __future__ import annotations

import numpy as np

from tests.oracle.fedspd import Data, log_softmax, losses


def descend(theta: np.ndarray, data: Data, shares: np.ndarray, steps: int, rate: float) -> np.ndarray:
    """Gradient steps on sum_d q(d) l(theta; d) / n."""
    for _ in range(steps):
        errors = np.exp(log_softmax(theta, data))
        errors[np.arange(len(data.y)), data.y] -= 1
        errors *= shares[:, None] / len(data.y)
        theta = theta - rate * np.concatenate([(errors.T @ data.x).ravel(), errors.sum(axis=0)])
    return theta


def run(neighbors: dict[int, list[int]], data: dict[int, Data], starts, rounds: int, steps: int, rate: float):
    """Return the models theta [N][M] and the mixture weights pi [N][M] after each round."""
    theta = {i: [np.array(start, dtype=np.float64) for start in starts] for i in neighbors}
    pi = {i: np.full(len(starts), 1 / len(starts)) for i in neighbors}
    found = []
    for _ in range(rounds):
        trained = {}
        for i, own in data.items():
            q = pi[i][:, None] * np.exp(-np.stack([losses(model, own) for model in theta[i]]))
            q /= q.sum(axis=0)
            pi[i] = q.mean(axis=1)
            trained[i] = [descend(model, own, q[m], steps, rate) for m, model in enumerate(theta[i])]
        for i, others in neighbors.items():
            w = {j: 1 / (1 + max(len(others), len(neighbors[j]))) for j in others}
            w[i] = 1 - sum(w.values())
            theta[i] = [sum(weight * trained[j][m] for j, weight in w.items()) for m in range(len(starts))]
        found.append(({i: list(models) for i, models in theta.items()}, dict(pi)))
    return found

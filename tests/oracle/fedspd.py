"""FedSPD in float64 NumPy: an independent oracle, one loop over matrices, that shares no code with the project.

Source: Lin, Yağın, Joe-Wong, "FedSPD: A Soft-clustering Approach for Personalized Decentralized Federated Learning", 2025 (arXiv
2410.18862). Steps, lines and equations are those of its Section 4 and Algorithm 1. The model is a softmax regression W [C, F],
b [C], flattened as W then b. Training is gradient descent over the whole cluster (`batch_size = all`): there is no
shuffle to repeat.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


def share(seed: int, *path: object) -> float:
    """H(seed, path) in [0, 1): the first eight bytes of SHA-256, little-endian, its top 53 of 63 bits."""
    text = "\x1f".join(str(part) for part in (seed, *path))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
    return (number >> 10) / 2.0**53


@dataclass
class Data:
    """One peer's training set, flattened to [n, F], and integer labels [n]."""

    x: np.ndarray
    y: np.ndarray


def log_softmax(theta: np.ndarray, data: Data) -> np.ndarray:
    features = data.x.shape[1]
    classes = len(theta) // (features + 1)
    logits = data.x @ theta[: classes * features].reshape(classes, features).T + theta[classes * features :]
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def losses(theta: np.ndarray, data: Data) -> np.ndarray:
    """Cross-entropy of each sample, [n]."""
    return -log_softmax(theta, data)[np.arange(len(data.y)), data.y]


def descend(theta: np.ndarray, data: Data, steps: int, rate: float) -> np.ndarray:
    for _ in range(steps):
        errors = np.exp(log_softmax(theta, data))
        errors[np.arange(len(data.y)), data.y] -= 1
        errors /= len(data.y)
        theta = theta - rate * np.concatenate([(errors.T @ data.x).ravel(), errors.sum(axis=0)])
    return theta


@dataclass
class Settings:
    seed: int
    clusters: int
    rounds: int
    steps: int  # tau
    rate: float
    decay: float
    decay_rounds: int
    final_steps: int
    all_clusters: bool
    metropolis: bool
    u_min: float = 0.0


class Oracle:
    """State of all peers: centers [N][S], labels z [N][n], mixtures u [N][S]."""

    def __init__(self, neighbors: dict[int, list[int]], data: dict[int, Data], centers, labels, settings: Settings):
        self.neighbors, self.data, self.s = neighbors, data, settings
        self.c = {i: [np.array(c, dtype=np.float64) for c in centers] for i in neighbors}
        self.z = {i: np.array(labels[i]) for i in neighbors}

    def u(self, i: int) -> np.ndarray:
        return np.array([(self.z[i] == s).mean() for s in range(self.s.clusters)])

    def select(self, i: int, t: int) -> int:
        """Cluster selection, drawn with the mixture weights u (Step 1, line 14)."""
        weights = np.maximum(self.u(i), self.s.u_min)
        drawn, below = share(self.s.seed, "select", t, i) * weights.sum(), 0.0
        for s, weight in enumerate(weights):
            below += weight
            if drawn < below:
                return s
        raise AssertionError("weights do not sum up")

    def run(self) -> dict[int, np.ndarray]:
        """Run all rounds and the final phase; return the personalized model x_i of each peer."""
        for t in range(self.s.rounds):
            everything = t == 0 and self.s.all_clusters
            chosen = {i: range(self.s.clusters) if everything else [self.select(i, t)] for i in self.neighbors}
            self.train(t, chosen)
            for s in range(self.s.clusters):
                self.average(s, [i for i in self.neighbors if s in chosen[i]], everything)
            for i, data in self.data.items():
                self.z[i] = np.argmin([losses(c, data) for c in self.c[i]], axis=0)  # Step 4
        return {i: self.final(i) for i in self.neighbors}

    def train(self, t: int, chosen) -> None:
        """Local training of the selected cluster, twice as long in the first round (Step 1)."""
        rate = self.s.rate * self.s.decay ** (t // self.s.decay_rounds)
        for i, data in self.data.items():
            for s in chosen[i]:
                mine = self.z[i] == s
                if mine.any():
                    part = Data(data.x[mine], data.y[mine])
                    self.c[i][s] = descend(self.c[i][s], part, self.s.steps * (2 if t == 0 else 1), rate)

    def average(self, s: int, selectors: list[int], everything: bool) -> None:
        """Average of the selected center, Eq. 1 as C <- W C, with W over the subgraph of the selectors (Step 3)."""
        size = {i: len([m for m in self.neighbors[i] if m in selectors]) for i in selectors}
        if everything and self.s.metropolis:  # no selections are sent in this round: degrees of the whole graph
            size = {i: len(self.neighbors[i]) for i in selectors}
        updated = {}
        for i in selectors:
            others = [m for m in self.neighbors[i] if m in selectors]
            if self.s.metropolis:
                w = {m: 1 / (1 + max(size[i], size[m])) for m in others}
                w[i] = 1 - sum(w.values())
            else:
                w = {m: 1 / (1 + len(others)) for m in [i, *others]}
            updated[i] = sum(weight * self.c[m][s] for m, weight in w.items())
        for i, center in updated.items():
            self.c[i][s] = center

    def final(self, i: int) -> np.ndarray:
        """Personalized model: Eq. 2, then tau_final steps on all samples at half of the first learning rate (Final Step)."""
        x = sum(u * c for u, c in zip(self.u(i), self.c[i], strict=True))
        return descend(x, self.data[i], self.s.final_steps, self.s.rate / 2)

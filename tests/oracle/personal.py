"""Personalized methods between neighbors in float64 NumPy: an independent oracle that shares no code with the project.

One loop over rounds; the shared models are mixed with Metropolis weights. Softmax regression; every batch is the whole training
set, so there is no shuffle to repeat. Sources, equation for equation: pFedMe (arXiv 2006.08848), Ditto (arXiv 2012.04221), APFL
(arXiv 2003.13461), FedRep (arXiv 2102.07078), Per-FedAvg first order (arXiv 2002.07948), D-PSGD (arXiv 1705.09056).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.oracle.fedspd import Data, log_softmax


def gradient(theta: np.ndarray, data: Data) -> np.ndarray:
    """Gradient of the mean cross-entropy, [d]."""
    errors = np.exp(log_softmax(theta, data))
    errors[np.arange(len(data.y)), data.y] -= 1
    errors /= len(data.y)
    return np.concatenate([(errors.T @ data.x).ravel(), errors.sum(axis=0)])


class Peer:
    """Shared model w, private model v, and what else a method keeps."""

    def __init__(self, start: np.ndarray, data: Data) -> None:
        self.w, self.v, self.data, self.alpha = start.copy(), start.copy(), data, 0.5
        self.step = np.zeros_like(start)

    def grad(self, theta: np.ndarray) -> np.ndarray:
        return gradient(theta, self.data)


def pfedme(peer: Peer, tau: int, rate: float, *, strength: float, steps: int, **_: float) -> None:
    for _round in range(tau):
        for _step in range(int(steps)):
            peer.v = peer.v - rate * (peer.grad(peer.v) + strength * (peer.v - peer.w))
        peer.w = peer.w - rate * strength * (peer.w - peer.v)


def ditto(peer: Peer, tau: int, rate: float, *, strength: float, **_: float) -> None:
    start = peer.w
    for _step in range(tau):
        peer.v = peer.v - rate * (peer.grad(peer.v) + strength * (peer.v - start))
        peer.w = peer.w - rate * peer.grad(peer.w)


def apfl(peer: Peer, tau: int, rate: float, **_: float) -> None:
    for step in range(tau):
        mixed = peer.alpha * peer.v + (1 - peer.alpha) * peer.w
        slope = peer.grad(mixed)
        difference = peer.v - peer.w
        peer.w = peer.w - rate * peer.grad(peer.w)
        if step == 0:
            peer.alpha = min(1.0, max(0.0, peer.alpha - rate * float(difference @ slope)))
        peer.v = peer.v - rate * peer.alpha * slope


def perfedavg(peer: Peer, tau: int, rate: float, *, inner: float, **_: float) -> None:
    for _step in range(tau):
        peer.w = peer.w - rate * peer.grad(peer.w - inner * peer.grad(peer.w))


def dpsgd(peer: Peer, tau: int, rate: float, **_: float) -> None:
    peer.step = -rate * peer.grad(peer.w)


def fedrep(peer: Peer, tau: int, rate: float, *, head: int, **_: float) -> None:
    """The last ``head`` coordinates are the head; ``w`` holds a whole model, of which only the body is mixed."""
    whole = peer.w
    for part in (np.arange(len(whole)) >= len(whole) - int(head), np.arange(len(whole)) < len(whole) - int(head)):
        for _step in range(tau):
            whole = whole - rate * peer.grad(whole) * part
    peer.w = whole


METHODS: dict[str, Callable[..., None]] = {f.__name__: f for f in (pfedme, ditto, apfl, perfedavg, dpsgd, fedrep)}


def run(
    method: str,
    neighbors: dict[int, list[int]],
    data: dict[int, Data],
    start: np.ndarray,
    rounds: int,
    tau: int,
    rate: float,
    **options: float,
) -> list[dict[int, Peer]]:
    """Return copies of all peers after each round."""
    peers = {i: Peer(np.array(start, dtype=np.float64), own) for i, own in data.items()}
    found = []
    for _ in range(rounds):
        for peer in peers.values():
            METHODS[method](peer, tau, rate, **options)
        sent = {i: peer.w for i, peer in peers.items()}
        for i, others in neighbors.items():
            weights = {j: 1 / (1 + max(len(others), len(neighbors[j]))) for j in others}
            weights[i] = 1 - sum(weights.values())
            mixed = sum(weight * sent[j] for j, weight in weights.items()) + peers[i].step
            kept = int(options.get("head", 0))
            peers[i].w = np.concatenate([mixed[: len(mixed) - kept], sent[i][len(mixed) - kept :]])
        copies = {}
        for i, peer in peers.items():
            copies[i] = Peer(peer.w, peer.data)
            copies[i].v, copies[i].alpha = peer.v.copy(), peer.alpha
        found.append(copies)
    return found

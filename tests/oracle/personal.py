"""Personalized methods between neighbors in float64 NumPy: an independent oracle that shares no code with the project.

One loop over rounds; the shared models are mixed with Metropolis weights. Softmax regression; every batch is the whole training
set, so there is no shuffle to repeat. Sources, equation for equation: pFedMe (arXiv 2006.08848), Ditto (arXiv 2012.04221),
FedProx (arXiv 1812.06127), APFL (arXiv 2003.13461), FedRep (arXiv 2102.07078), FedPer (arXiv 1912.00818), Per-FedAvg first order
(arXiv 2002.07948), D-PSGD (arXiv 1705.09056).
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
    """Shared model w, private model v, the personal model that is evaluated, and what else a method keeps."""

    def __init__(self, start: np.ndarray, data: Data, alpha: float = 0.5) -> None:
        self.w, self.v, self.data, self.alpha = start.copy(), start.copy(), data, alpha
        self.personal, self.step = start.copy(), np.zeros_like(start)

    def grad(self, theta: np.ndarray) -> np.ndarray:
        return gradient(theta, self.data)


def pfedme(peer: Peer, tau: int, rate: float, *, strength: float, steps: int, **_: float) -> None:
    for _round in range(tau):
        for _step in range(int(steps)):
            peer.v = peer.v - rate * (peer.grad(peer.v) + strength * (peer.v - peer.w))
        peer.w = peer.w - rate * strength * (peer.w - peer.v)


def ditto(peer: Peer, tau: int, rate: float, *, strength: float, personal: int = 0, **_: float) -> None:
    for _step in range(int(personal) or tau):
        peer.v = peer.v - rate * (peer.grad(peer.v) + strength * (peer.v - peer.w))
    for _step in range(tau):
        peer.w = peer.w - rate * peer.grad(peer.w)


def fedprox(peer: Peer, tau: int, rate: float, *, strength: float, **_: float) -> None:
    start = peer.w
    for _step in range(tau):
        peer.w = peer.w - rate * (peer.grad(peer.w) + strength * (peer.w - start))


def apfl(peer: Peer, tau: int, rate: float, *, adapt: int = 1, **_: float) -> None:
    for step in range(tau):
        mixed = peer.alpha * peer.v + (1 - peer.alpha) * peer.w
        slope = peer.grad(mixed)
        difference = peer.v - peer.w
        peer.w = peer.w - rate * peer.grad(peer.w)
        if step == 0 and adapt:
            peer.alpha = min(1.0, max(0.0, peer.alpha - rate * float(difference @ slope)))
        peer.v = peer.v - rate * peer.alpha * slope


def perfedavg(peer: Peer, tau: int, rate: float, *, inner: float, **_: float) -> None:
    for _step in range(tau):
        peer.w = peer.w - rate * peer.grad(peer.w - inner * peer.grad(peer.w))


def dpsgd(peer: Peer, tau: int, rate: float, **_: float) -> None:
    peer.step = -rate * peer.grad(peer.w)


def fedrep(peer: Peer, tau: int, rate: float, *, head: int, head_epochs: int = 0, joint: int = 0, **_: float) -> None:
    """The last ``head`` coordinates are the head; ``w`` holds a whole model, of which only the body is mixed."""
    whole, private = peer.w, np.arange(len(peer.w)) >= len(peer.w) - int(head)
    for part, steps in [(1, tau)] if joint else [(private, int(head_epochs) or tau), (~private, tau)]:
        for _step in range(steps):
            whole = whole - rate * peer.grad(whole) * part
    peer.w = whole


def evaluated(method: str, peer: Peer, *, inner: float = 0.0, adapted: int = 1, **_: float) -> np.ndarray:
    """The personal model, after the mixing of w."""
    if method == "apfl":
        return peer.alpha * peer.v + (1 - peer.alpha) * peer.w
    theta = peer.v if method in ("pfedme", "ditto") else peer.w
    for _step in range(int(adapted) if method == "perfedavg" else 0):
        theta = theta - inner * peer.grad(theta)
    return theta


METHODS: dict[str, Callable[..., None]] = {
    f.__name__: f for f in (pfedme, ditto, fedprox, apfl, perfedavg, dpsgd, fedrep)
}


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
    alpha = options.get("alpha", 0.5)
    peers = {i: Peer(np.array(start, dtype=np.float64), own, alpha) for i, own in data.items()}
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
            copies[i] = Peer(peer.w, peer.data, peer.alpha)
            copies[i].v, copies[i].personal = peer.v.copy(), evaluated(method, peer, **options)
        found.append(copies)
    return found

"""Noise on what FedSPD sends: the Gaussian mechanism on the clipped update of one round.

Source: FedSPD App. B.2.6, specification 7.

    sent = start + clip_C(trained - start) + N(0, sigma^2),   sigma = c L (2 C / m) / epsilon,   c = sqrt(2 ln(1.25 / delta))

L = 1: epsilon is spent by each message of each round. This is a guarantee about one sent update, with the samples of one
cluster as its data set; it is not sample-level DP-SGD, and it covers nothing else that a peer says.

The noise comes from the operating system's entropy, never from the run's seed, which every neighbor knows; so a run with
privacy cannot be repeated bit for bit. It is float32 Gaussian noise from a statistical generator: no defense against attacks on
floating-point sampling is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from peer.core.averaging import Vector, norm_squared

EXPOSURES = 1  # L


@dataclass(frozen=True)
class Privacy:
    """The parameters of the mechanism.

    Args:
        epsilon: of one message, > 0.
        delta: in (0, 1).
        clip_norm: C, largest Euclidean norm of a round's update.
        samples_min: m, the fewest samples a sent model may be trained on; public, so the private count does not leak.
    """

    epsilon: float
    delta: float
    clip_norm: float
    samples_min: int

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on each coordinate."""
        factor = math.sqrt(2 * math.log(1.25 / self.delta))
        return factor * EXPOSURES * (2 * self.clip_norm / self.samples_min) / self.epsilon

    def clipped(self, start: Vector, trained: Vector) -> Vector:
        """Return start + clip_C(trained - start), a fresh float32 [d]."""
        update = trained - start
        norm = math.sqrt(norm_squared(update))
        if norm > self.clip_norm:
            update *= np.float32(self.clip_norm / norm)
        return start + update

    def sent(self, start: Vector, trained: Vector, draw: np.random.Generator | None = None) -> Vector:
        """Return what leaves the peer, a fresh float32 [d]; ``draw`` replaces the system's entropy, for tests only."""
        draw = np.random.Generator(np.random.Philox()) if draw is None else draw
        noise = draw.standard_normal(start.size, np.float32)
        noise *= np.float32(self.sigma)
        noise += self.clipped(start, trained)
        return noise

    def statement(self, rounds: int, models_first_round: int = 1) -> str:
        """Return what may be said about a run, for the operator: every number and its unit."""
        messages = rounds - 1 + models_first_round
        return (
            f"differential privacy: epsilon {self.epsilon:g}, delta {self.delta:g} for each sent update of each round "
            f"(L = {EXPOSURES}), clipped to norm {self.clip_norm:g}, at least {self.samples_min} samples, "
            f"noise sigma {self.sigma:.3g} per coordinate. Composed naively over the {messages} updates of this run: "
            f"epsilon {self.epsilon * messages:g}, delta {min(1.0, self.delta * messages):g}. It covers the sent models only: "
            "not the selected clusters, the timing, the accuracy in records, nor later runs; it is not sample-level DP-SGD."
        )

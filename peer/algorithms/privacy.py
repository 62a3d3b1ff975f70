"""Noise on what FedSPD sends: the Gaussian mechanism on the clipped update of one round.

Source: FedSPD App. B.2.6, specification 7.

    sent = start + clip_C(trained - start) + N(0, sigma^2),   sigma = c L (2 C / m) / epsilon,   c = sqrt(2 ln(1.25 / delta))

L = 1: epsilon is spent by each message of each round. This is a guarantee about one sent update, with the samples of one
cluster as its data set; it is not sample-level DP-SGD, and it covers nothing else that a peer says. It rests on two things that
the paper takes for granted and that `statement` tells the operator: a sensitivity of 2 C / m, where clipping a whole update gives
2 C, and a formula of sigma that is proved for epsilon below 1.

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
    def sensitivity(self) -> float:
        """2 C / m: by how much one sample moves an update, as the paper assumes."""
        return 2 * self.clip_norm / self.samples_min

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on each coordinate."""
        return math.sqrt(2 * math.log(1.25 / self.delta)) * EXPOSURES * self.sensitivity / self.epsilon

    def proved(self, sensitivity: float) -> float:
        """Return the epsilon, at delta, that this noise gives for a sensitivity, be it above or below 1.

        Source: Bun and Steinke 2016, Propositions 1.6 and 1.3: with rho = sensitivity^2 / (2 sigma^2),
        epsilon = rho + 2 sqrt(rho ln(1 / delta)).
        """
        rho = (sensitivity / self.sigma) ** 2 / 2
        return rho + 2 * math.sqrt(rho * math.log(1 / self.delta))

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

    def statement(self, rounds: int, models_first_round: int = 1, noisy_self: bool = True) -> str:
        """Return what may be said about a run, for the operator: every number and its unit.

        Args:
            rounds: of the run.
            models_first_round: how many models the first round sends.
            noisy_self: whether each round starts from what was sent, or from a clean center, which holds earlier updates bare.
        """
        messages = rounds - 1 + models_first_round
        if noisy_self:
            scope = f"each sent update of each round (L = {EXPOSURES})"
            later = (
                f"Composed naively over the {messages} updates of this run: epsilon {self.epsilon * messages:g}, "
                f"delta {min(1.0, self.delta * messages):g}."
            )
        else:
            scope = "the sent updates of the first round only"
            later = (
                "With noisy_self = false later models start from the clean own center, so all earlier updates leave under the "
                "noise of one round: neither this epsilon nor a composition holds for them."
            )
        return (
            f"differential privacy: epsilon {self.epsilon:g}, delta {self.delta:g} for {scope}, clipped to norm "
            f"{self.clip_norm:g}, at least {self.samples_min} samples, noise sigma {self.sigma:.3g} per coordinate. {later} "
            "Assumed, as in the paper, is that one sample moves an update by at most 2 C / m: clipping alone bounds that by 2 C, "
            f"so epsilon may be {self.samples_min} times larger by the same formula. The formula is proved for epsilon below 1: "
            f"proved for one update at this delta is epsilon {self.proved(self.sensitivity):,.1f} with the assumption, "
            f"{self.proved(2 * self.clip_norm):,.1f} without it. It covers the sent models only: "
            "not the selected clusters, the timing, the accuracy in records, nor later runs; it is not sample-level DP-SGD."
        )

"""Differential privacy of sent models in FedSPD: the Gaussian mechanism on the clipped update of one round.

    sent = start + clip_C(trained - start) + N(0, sigma^2),   sigma = c L (2 C / m) / epsilon,   c = sqrt(2 ln(1.25 / delta))

Source: FedSPD (arXiv 2410.18862), Appendix B.2.6; noise after Kang Wei et al., "Federated Learning with Differential Privacy:
Algorithms and Performance Analysis", 2020, arXiv 1911.00222. To clip the round's update is a choice of this project; the paper
does not say what is clipped.

L = 1: each message of each round spends epsilon. The guarantee is about one sent update, with the samples of one cluster as its
data set. It is not sample-level DP-SGD, and it covers nothing else that a peer sends. It has two assumptions, which `statement`
names to the operator: a sensitivity of 2 C / m, although clipping a whole update bounds it by 2 C only, and a formula for sigma
that is proved for epsilon below 1.

The noise is drawn from the operating system's entropy, never from the run's seed, which every neighbor knows. So a run with
privacy cannot be repeated bit for bit. It is float32 Gaussian noise of a statistical generator: no defense against attacks on
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
        samples_min: m, the least number of samples that a sent model is trained on; public, so no private count leaks.
    """

    epsilon: float
    delta: float
    clip_norm: float
    samples_min: int

    @property
    def sensitivity(self) -> float:
        """2 C / m: the largest change of an update by one sample, as the paper assumes."""
        return 2 * self.clip_norm / self.samples_min

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise on each coordinate."""
        return math.sqrt(2 * math.log(1.25 / self.delta)) * EXPOSURES * self.sensitivity / self.epsilon

    def proved_epsilon(self, sensitivity: float) -> float:
        """Return the epsilon that is proved for this noise, at delta and a sensitivity; it may be above 1.

        Source: Mark Bun and Thomas Steinke, "Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds",
        2016, arXiv 1605.02065, Propositions 1.6 and 1.3: with rho = sensitivity^2 / (2 sigma^2),
        epsilon = rho + 2 sqrt(rho ln(1 / delta)).
        """
        rho = (sensitivity / self.sigma) ** 2 / 2
        return rho + 2 * math.sqrt(rho * math.log(1 / self.delta))

    def clipped(self, start: Vector, trained: Vector) -> Vector:
        """Return start + clip_C(trained - start), a new float32 [d]."""
        update = trained - start
        norm = math.sqrt(norm_squared(update))
        if norm > self.clip_norm:
            update *= np.float32(self.clip_norm / norm)
        return start + update

    def noisy(self, start: Vector, trained: Vector, draw: np.random.Generator | None = None) -> Vector:
        """Return the model to send, a new float32 [d]; ``draw`` replaces the system's entropy, for tests only."""
        draw = np.random.Generator(np.random.Philox()) if draw is None else draw
        noise = draw.standard_normal(start.size, np.float32)
        noise *= np.float32(self.sigma)
        noise += self.clipped(start, trained)
        return noise

    def statement(self, rounds: int, models_first_round: int = 1, noisy_self: bool = True) -> str:
        """Return the privacy statement of a run for the operator: the guarantee, its parameters and its limits.

        Args:
            rounds: number of rounds of the run.
            models_first_round: number of models that the first round sends.
            noisy_self: whether each round starts from the sent model, or from the clean one, which contains all earlier updates
                without noise.
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
                "With noisy_self = false, later models start from the clean own center, so all earlier updates are sent under "
                "the noise of one round: neither this epsilon nor a composition holds for them."
            )
        return (
            f"differential privacy: epsilon {self.epsilon:g}, delta {self.delta:g} for {scope}, clipped to norm "
            f"{self.clip_norm:g}, at least {self.samples_min} samples, noise sigma {self.sigma:.3g} per coordinate. {later} "
            "As in the paper, this assumes that one sample changes an update by at most 2 C / m. Clipping alone bounds it by "
            f"2 C, so epsilon can be {self.samples_min} times larger by the same formula. The formula is proved for epsilon "
            "below 1. At this delta, proved for one update is epsilon "
            f"{self.proved_epsilon(self.sensitivity):,.1f} with the assumption, "
            f"{self.proved_epsilon(2 * self.clip_norm):,.1f} without it. The guarantee covers the sent models only, not the "
            "selected clusters, the timing, the metric values in records, or later runs; it is not sample-level DP-SGD."
        )

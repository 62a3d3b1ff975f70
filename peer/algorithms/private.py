"""Differential privacy of a peer's training samples: what its work may ask of them, with how much noise.

The guarantee: for any two data sets of a peer that differ in one training sample, which one has and the other lacks, all that
follows from the peer's models and choices is (epsilon, delta)-indistinguishable. Each use of the samples is one of two Gaussian
mechanisms, which `peer.core.accountant` composes:

    a step of training   batches drawn sample by sample with probability q = B / n, each sample's gradient clipped to norm C,
                         noise of deviation sigma C on their sum (DP-SGD; `peer.learning.private_step`)
    a choice             each sample votes for the model of its lowest loss; noise of deviation sigma_c on the counts

A choice costs about `CHOICE_SHARE` of the steps of a local training: sigma_c = sigma / (q sqrt(CHOICE_SHARE S)) with S of them.
q is public: it contains n, the number of a peer's training samples, as in every accountant of DP-SGD.

`PrivateLearner` stands before the learner of a private run. It has no other way to the training and validation samples, so an
algorithm that asks more of them than it declares (`Algorithm.uses`) fails, and tells nothing.

Sources: Martín Abadi et al., "Deep Learning with Differential Privacy", 2016, arXiv 1607.00133, Algorithm 1. Choices by votes are
an addition of this project: a mean loss has no bound that one sample could not exceed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.meaning import without_pattern
from peer.algorithms.learner import (
    Ability,
    Evaluation,
    Learner,
    Part,
    PrivateSteps,
    TrainingPlan,
    TrainStats,
    Unit,
)
from peer.core.accountant import Ledger, Mechanism, noise_for
from peer.core.averaging import Vector
from peer.core.privacy_budget import NOTHING, Charge, PrivacyBudget, Terms
from peer.core.schema import Schema

CHOICE_SHARE = 0.1
OF_SAMPLES = ("train_loss", "metric_train", "train_numbers")  # fields of a round that would tell of training samples


@dataclass(frozen=True)
class SampleUse:
    """What the work of a round asks of the training samples.

    Attributes:
        local: epochs or steps, by ``run.local_unit``, of all trainings.
        epochs: of trainings that count epochs in any case, beside them.
        steps: of trainings that count steps in any case.
        choices: by votes.
    """

    local: int = 0
    epochs: int = 0
    steps: int = 0
    choices: int = 0


@dataclass(frozen=True)
class Sampling:
    """How the samples of a step are drawn: each with probability ``rate``, so that an epoch has ``epoch`` steps."""

    rate: float
    unit: Unit

    @classmethod
    def of(cls, manifest: Manifest, samples: int) -> Sampling:
        """Return that of a peer with so many training samples."""
        size = samples if manifest.step_samples == "all" else min(manifest.step_samples, samples)
        return cls(size / samples, manifest.local_unit)

    @property
    def epoch(self) -> int:
        """The steps of an epoch."""
        return math.ceil(round(1 / self.rate, 9))

    def steps(self, epochs: int, unit: Unit) -> int:
        """Return how many steps a training has."""
        return epochs if unit == "step" else epochs * self.epoch

    def charge(self, use: SampleUse) -> Charge:
        """Return what a use costs."""
        return Charge(self.steps(use.local, self.unit) + self.steps(use.epochs, "epoch") + use.steps, use.choices)

    def terms(self, manifest: Manifest, noise: float) -> Terms:
        """Return the mechanisms for a noise multiplier."""
        local = self.steps(manifest.local_epochs, self.unit)
        choice = noise / (self.rate * math.sqrt(CHOICE_SHARE * local))
        privacy = manifest.privacy
        return Terms(Mechanism(self.rate, noise), Mechanism(1.0, choice), privacy.delta, privacy.epsilon_limit)


def charge_of_run(charges: Sequence[Charge]) -> Charge:
    """Return the sum of charges."""
    return Charge(sum(charge.steps for charge in charges), sum(charge.choices for charge in charges))


def terms_of(manifest: Manifest, sampling: Sampling, whole_run: Charge) -> Terms:
    """Return the mechanisms of a peer: with the noise of the manifest, or with what its target needs for the whole run.

    Raises:
        ConfigError: no noise reaches the target.
    """
    privacy = manifest.privacy
    if privacy.noise_multiplier is not None:
        return sampling.terms(manifest, privacy.noise_multiplier)
    assert privacy.target_epsilon is not None  # the manifest has one of the two

    def ledger(noise: float) -> Ledger:
        return sampling.terms(manifest, noise).ledger(whole_run)

    if whole_run == NOTHING:
        return sampling.terms(manifest, 1.0)
    try:
        noise = noise_for(privacy.target_epsilon, privacy.delta, ledger)
    except ValueError as error:
        steps = f"{whole_run.steps} steps"
        fix = "Raise it, or lower run.rounds, run.local_epochs or run.batch_size."
        raise ConfigError(
            ConfigProblem("run.privacy.target_epsilon", f"one that {steps} can keep", str(error), fix)
        ) from error
    return sampling.terms(manifest, noise)


def statement(budget: PrivacyBudget, whole_run: Charge, samples: int) -> str:
    """Return the guarantee of a run for the operator: its parameters, what it costs, what it covers."""
    terms = budget.terms
    planned = budget.with_charge(whole_run) if not budget.ledger else terms.epsilon(terms.ledger(whole_run))
    most = "no limit" if terms.epsilon_max is None else f"at most {terms.epsilon_max:g}"
    return (
        f"differential privacy of each of the {samples} training samples: epsilon {planned:.3g} after the whole run without "
        f"restarts, {budget.spent:.3g} so far, {most}, delta {terms.delta:g}; noise multiplier {terms.training.noise:.4g}, "
        f"sampling rate {terms.training.rate:.3g}, {whole_run.steps} steps, {whole_run.choices} choices. It covers models, "
        "choices and numbers that leave this peer; not test samples, whose metrics stay in its records and go to observers, "
        "and not timing. The noise is of the system's entropy: the run cannot be repeated bit for bit."
    )


class PrivateLearner:
    """A learner that gives nothing of the training and validation samples but private trainings and votes.

    Args:
        learner: the peer's.
        budget: whose charge of a round is all that the round may use.
        sampling: of the batches.
        clip_norm: C.

    Attributes:
        learner: the peer's; not for work of algorithms.
    """

    def __init__(self, learner: Learner, budget: PrivacyBudget, sampling: Sampling, clip_norm: float) -> None:
        self.learner, self._budget, self._sampling, self._clip_norm = learner, budget, sampling, clip_norm
        self._left = NOTHING

    def open(self, round_index: int, *, paid: bool) -> None:
        """Allow what a round is charged for; nothing where it is not paid for."""
        self._left = self._budget.charge_of(round_index) if paid else NOTHING

    @property
    def may_train(self) -> bool:
        """Whether steps of training are left of what is paid for."""
        return self._left.steps > 0

    def _use(self, charge: Charge) -> None:
        left = Charge(self._left.steps - charge.steps, self._left.choices - charge.choices)
        if min(left) < 0:
            raise ConfigError(
                f"run.algorithm: expected no more use of the training samples than run.privacy charges for, got {charge} where "
                f"{self._left} is left. Correct Algorithm.uses."
            )
        self._left = left

    # ---- what has noise -------------------------------------------------------------------------------------------------

    def check_private(self) -> None:
        """As `Learner` has it."""
        self.learner.check_private()

    def train(self, theta: Vector, plan: TrainingPlan) -> tuple[Vector, TrainStats]:
        """Train with private steps."""
        steps = self._sampling.steps(plan.epochs, plan.unit)
        self._use(Charge(steps=steps))
        terms = self._budget.terms
        private = PrivateSteps(steps, terms.training.rate, terms.training.noise, self._clip_norm)
        return self.learner.train(theta, replace(plan, private=private))

    def votes(
        self, models: Sequence[Vector], part: Part = "train", indices: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.float64]:
        """Return how many samples have their lowest loss with each model, with noise; float64 [models].

        Args:
            models: float32 [d] each.
            part: of the shard.
            indices: of the samples that vote, int64 [m], each once; None: all.
        """
        self._use(Charge(choices=1))
        losses = np.stack([self.learner.sample_losses(model, part) for model in models])
        chosen = losses if indices is None else losses[:, indices]
        counts = np.bincount(np.argmin(chosen, axis=0), minlength=len(models)).astype(np.float64)
        draw = np.random.Generator(np.random.Philox())  # seeded by the system's entropy
        return counts + draw.normal(0.0, self._budget.terms.choice.noise, len(models))

    # ---- what tells nothing of training and validation samples ----------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """As `Learner` has it, and so in all that follows."""
        return self.learner.schema

    @property
    def abilities(self) -> frozenset[Ability]:
        """None of those that look at training samples."""
        return self.learner.abilities & {"batches", "subset"}

    @property
    def frozen_digest(self) -> str:
        """Of the model."""
        return self.learner.frozen_digest

    @property
    def meaning(self) -> str:
        """Of the task; without the marks of constant columns, which only the samples tell."""
        return without_pattern(self.learner.meaning)

    @property
    def true_cluster(self) -> npt.NDArray[np.int64] | None:
        """None: the history would tell of training samples."""
        return None

    @property
    def test_cluster(self) -> npt.NDArray[np.int64] | None:
        """Of test samples."""
        return self.learner.test_cluster

    @property
    def validates(self) -> bool:
        """False: no best round is chosen."""
        return False

    def count(self, part: Part = "train") -> int:
        """The number of samples is public, see above."""
        return self.learner.count(part)

    def labels(self, part: Part = "train") -> npt.NDArray[np.int64] | None:
        """Of test samples only."""
        return self.learner.labels(_of_test(part))

    @property
    def started_from(self) -> Mapping[str, Any] | None:
        """Of the file that all peers start from."""
        return self.learner.started_from

    def initial_model(self, seed: int, slot: int = 0) -> Vector:
        """Of the seed alone, or of that file."""
        return self.learner.initial_model(seed, slot)

    def mean_loss(self, theta: Vector, part: Part = "train") -> float:
        """Of test samples only."""
        return self.learner.mean_loss(theta, _of_test(part))

    def sample_losses(self, theta: Vector, part: Part = "train") -> npt.NDArray[np.float32]:
        """Of test samples only."""
        return self.learner.sample_losses(theta, _of_test(part))

    def sample_scores(self, theta: Vector, part: Part = "test") -> npt.NDArray[np.float32]:
        """Of test samples only."""
        return self.learner.sample_scores(theta, _of_test(part))

    def evaluate(self, theta: Vector, part: Part = "test") -> Evaluation:
        """Of test samples only."""
        return self.learner.evaluate(theta, _of_test(part))

    def predict_proba(self, theta: Vector, part: Part = "test") -> npt.NDArray[np.float32]:
        """Of test samples only."""
        return self.learner.predict_proba(theta, _of_test(part))

    def evaluate_predictions(self, predictions: npt.NDArray[np.float32], part: Part = "test") -> Evaluation:
        """Of test samples only."""
        return self.learner.evaluate_predictions(predictions, _of_test(part))

    def prediction_losses(
        self, predictions: npt.NDArray[np.float32], part: Part, indices: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Of test samples only."""
        return self.learner.prediction_losses(predictions, _of_test(part), indices)


def _of_test(part: Part) -> Part:
    if part != "test":
        raise ConfigError(
            f"run.privacy: expected an algorithm that asks {part} samples by private trainings and votes only, got another. "
            "Take PrivateLearner.train and PrivateLearner.votes in it, and declare them in Algorithm.uses."
        )
    return part

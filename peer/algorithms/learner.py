"""What algorithms ask of local training and evaluation; `peer.learning` implements it.

Models are flat float32 vectors of length d, n is the number of samples of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from peer.core.averaging import Vector
from peer.core.messages import Numbers
from peer.core.schema import Schema

Part = Literal["train", "validation", "test"]
Fields: TypeAlias = dict[str, Any]  # of a line of the history: JSON values


Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Unit = Literal["epoch", "step"]
StepSamples: TypeAlias = int | Literal["all"]  # samples of a step


# What a learner can do beyond training, `count`, `mean_loss` of a part with targets, and `evaluate`:
#   batches   train on batches that the algorithm chooses, with weights of samples: the built-in loop
#   subset    train on some of the samples
#   losses    the loss of each training sample
#   outputs   outputs for the samples of a part, and losses of mixed ones
Ability = Literal["batches", "subset", "losses", "outputs"]
ABILITIES: tuple[Ability, ...] = get_args(Ability)


class Follow(NamedTuple):
    """After each ``steps`` optimizer steps the center moves by ``rate`` of the way to the model."""

    steps: int
    rate: float


@dataclass(frozen=True, slots=True)
class PrivateSteps:
    """How the steps of a training keep its samples private, see `peer.learning.private_gradient`.

    Attributes:
        steps: of the training, in place of epochs.
        rate: q, the probability with which a step draws each sample.
        noise: sigma, deviation of the noise as a multiple of ``clip_norm``.
        clip_norm: C, the largest norm of a sample's gradient.
    """

    steps: int
    rate: float
    noise: float
    clip_norm: float


@dataclass(frozen=True, slots=True, eq=False)
class TrainingPlan:
    """One local training: how long, on which samples, and by which steps.

    Attributes:
        epochs: passes over the samples; or steps, by ``unit``.
        seed: of shuffling and dropout.
        learning_rate: constant during the training.
        round_index: of the run, for an own loop.
        momentum: of SGD, with dampening 0; the buffer starts at 0, unless ``optimizer_state`` has one.
        weight_decay: added to the gradient; with adamw the parameters shrink by rate times it; as in torch.
        indices: int64 [m], the samples to train on; None: all.
        sample_weights: float32 [n], of all training samples; the objective is sum(w * loss) / batch size
            (FedEM, Marfoq et al. 2021, arXiv:2108.10252).
        proximal: (center float32 [d], strength): adds strength * (theta - center) to the gradient of parameters.
        follow: how the center moves meanwhile; only where `Learner.abilities` lacks "batches".
        unit: "epoch" or "step".
        optimizer: used if the task has none.
        batch_size: samples of a step; "all": of all samples, in their order (one gradient, as the code of IFCA,
            arXiv:2006.04088), and an epoch is one step; None: the learner's. A last batch of one sample is dropped if the
            model has BatchNorm. The learner may give them to the model in parts.
        gradient_clip: a step's gradient with a larger norm is scaled down to it.
        only: names of the parameters to train; the others do not change. Buffers change always.
        optimizer_state: of an earlier training, {} for none; given, the statistics have that of this training's end. None: a
            fresh optimizer, whose state is not kept.
        should_stop: called before each step; true ends the training with the steps done.
        trial: an own loop is ended after this many steps, whatever it would do; 0: it is none.
        partial: keeps the state of the training on disk while it runs; None: it is not kept.
        private: draws of samples, clipping and noise, in place of epochs, batch size and order; the statistics then have no loss
            and no metric. None: it is not private.
    """

    epochs: int
    seed: int
    learning_rate: float
    round_index: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    indices: npt.NDArray[np.int64] | None = None
    sample_weights: npt.NDArray[np.float32] | None = None
    proximal: tuple[Vector, float] | None = None
    follow: Follow | None = None
    unit: Unit = "epoch"
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    batch_size: StepSamples | None = None
    gradient_clip: float | None = None
    only: frozenset[str] | None = None
    optimizer_state: Mapping[str, Vector] | None = None
    should_stop: Callable[[], bool] | None = None
    trial: int = 0
    partial: Partial | None = None
    private: PrivateSteps | None = None


@dataclass(frozen=True, slots=True)
class TrainStats:
    """Statistics of one local training."""

    loss: float  # mean over all used samples, before each step, without the proximal term; NaN if none
    samples: int  # used, with repetitions
    steps: int
    stopped: bool = False  # whether should_stop ended it
    optimizer_state: dict[str, Vector] | None = None  # if asked for: each value flat, for all trained parameters
    metric: float | None = None  # mean score of the same outputs; None if the task needs all at once
    numbers: Mapping[str, float | None] = field(default_factory=dict)  # an own loop's, by name
    center: Vector | None = None  # of the proximal term at the end, in an own loop


class Partial(Protocol):
    """What is on disk of one training, until its round is safe: the state in which it was, then its result.

    Attributes:
        resumed: steps that are not repeated, since their result was on disk.
    """

    resumed: int

    def finished(self) -> tuple[Vector, TrainStats] | None:
        """Return the result of the training, if it had ended before a restart."""

    def load(self) -> Arrays | None:
        """Return the last state of the training before a restart, as `save` got it; None if there is none."""

    def due(self) -> bool:
        """Return whether it is time to `save`."""

    def save(self, step: int, steps: int | None, state: Callable[[], Arrays]) -> None:
        """Keep the state of the training in place of an earlier one; where that fails, the training goes on.

        Args:
            step: steps done.
            steps: of the whole training; None if it is not known.
            state: returns what `load` will return; TaskError: it cannot be kept.
        """

    def renew(self) -> None:
        """Note that an own loop writes a state of its own: the next one is due later."""

    def note_resumed(self, step: int, steps: int | None) -> None:
        """Note that an own loop goes on from a state of its own, see `save`."""

    def finish(self, theta: Vector, stats: TrainStats) -> None:
        """Keep the result, where repeating the training would take long; not that of one that was stopped."""

    def folder(self) -> str | None:
        """Return the path of a folder for an own loop, which is kept as long as the states; None if it cannot be made."""


class Partials(Protocol):
    """The trainings of a peer on disk."""

    def of(self, theta: Vector, plan: TrainingPlan) -> Partial:
        """Return what is kept of one training: of ``theta``, float32 [d], which is not changed, with this plan."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metric and loss of a model on one part of the shard."""

    metric: float  # value of the task's metric
    loss: float | None  # None: the task's own `evaluate` returns none
    samples: int
    metric_name: str = "accuracy"
    more: Mapping[str, float] = field(default_factory=dict)  # the task's other metrics, by name


def measured(result: Evaluation) -> Fields:
    """Return an evaluation as fields of a history line; ``metrics`` only where the task has more than one."""
    more = {"metrics": dict(result.more)} if result.more else {}
    loss = {} if result.loss is None else {"loss": result.loss}
    return {"metric_value": result.metric, **loss, **more}


def training_fields(done: Sequence[TrainStats]) -> Fields:
    """Return the trainings of a round as fields of a history line: mean loss, and mean metric where there is one."""
    if not done:
        return {}
    metrics = [stats.metric for stats in done if stats.metric is not None]
    fields: Fields = {"train_loss": float(np.mean([stats.loss for stats in done]))}
    names = dict.fromkeys(name for stats in done for name in stats.numbers)
    numbers = {name: _mean_of_known([stats.numbers.get(name) for stats in done]) for name in names}
    fields |= {"train_numbers": numbers} if numbers else {}
    return fields | ({"metric_train": float(np.mean(metrics))} if metrics else {})


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


class SharedScaling(Protocol):
    """A peer's part in the agreement of all sites on the scaling of inputs, before the first round."""

    @property
    def numbers(self) -> Numbers:
        """Those of this site, which every peer gets."""

    def problem(self, numbers: Numbers) -> str:
        """Return why numbers cannot be those of a site, "" if they can."""

    def agree(self, numbers: Mapping[int, Numbers]) -> Fields:
        """Take the numbers of all sites, by peer id; return the fields of a history line, with ``digest`` and ``samples``."""

    def apply(self) -> None:
        """Scale the inputs by what was agreed; called before each work, and does something once."""


class Learner(Protocol):
    """Local training and evaluation on flat float32 vectors of length d (see `peer.learning`)."""

    @property
    def schema(self) -> Schema:
        """Names, shapes and roles of a model vector."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can do beyond training, evaluation and counts."""

    @property
    def frozen_digest(self) -> str:
        """Digest of what a model needs beside its vector (`peer.learning.frozen`); "" where it needs nothing."""

    @property
    def meaning(self) -> str:
        """The text of `coordinator_free_bootstrap.meaning.Meaning` for this peer's task and shard."""

    @property
    def true_cluster(self) -> npt.NDArray[np.int64] | None:
        """The cluster that each training sample was drawn from, int64 [n], where known; for metrics only."""

    @property
    def test_cluster(self) -> npt.NDArray[np.int64] | None:
        """The same of each test sample, int64 [m], where known; for metrics only."""

    def sample_scores(self, theta: Vector, part: Part = "test") -> npt.NDArray[np.float32]:
        """Return for each sample 1 if its class is predicted, else 0; in regression its loss. float32 [n]."""

    def count(self, part: Part = "train") -> int:
        """Return the number of samples of a part; for the training set this is n_i."""

    def labels(self, part: Part = "train") -> npt.NDArray[np.int64] | None:
        """Return the class of each sample, int64 [n]; None in regression."""

    @property
    def started_from(self) -> Mapping[str, Any] | None:
        """Where the first models come from, for history and model files; None: from a seed."""

    def initial_model(self, seed: int, slot: int = 0) -> Vector:
        """Return a new model, drawn from a seed, or that of a slot of what the run starts from."""

    def mean_loss(self, theta: Vector, part: Part = "train") -> float:
        """Return the mean loss over a part of the shard, in evaluation mode; infinity if that of a sample is not a number."""

    def sample_losses(self, theta: Vector, part: Part = "train") -> npt.NDArray[np.float32]:
        """Return the loss of each sample, in evaluation mode; infinity where it is not a number, so that no argmin chooses it."""

    def check_private(self) -> None:
        """Check that trainings can be private; raises TaskError if model or loss do not allow it."""

    def train(self, theta: Vector, plan: TrainingPlan) -> tuple[Vector, TrainStats]:
        """Return a trained copy of a model, a new float32 [d]; the input is not changed."""

    @property
    def validates(self) -> bool:
        """Whether `evaluate` measures a model on validation samples, after a first evaluation on the test samples."""

    def evaluate(self, theta: Vector, part: Part = "test") -> Evaluation:
        """Return the metric value and the mean loss."""

    def predict_proba(self, theta: Vector, part: Part = "test") -> npt.NDArray[np.float32]:
        """Return class probabilities [n, C] (regression: predictions)."""

    def evaluate_predictions(self, predictions: npt.NDArray[np.float32], part: Part = "test") -> Evaluation:
        """Evaluate given predictions, for algorithms that mix predictions and not models."""

    def prediction_losses(
        self, predictions: npt.NDArray[np.float32], part: Part, indices: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Return the loss of given predictions [m, ...] of the samples ``indices``, int64 [m]; float32 [m], as above."""

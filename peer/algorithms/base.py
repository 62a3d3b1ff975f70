"""The interface of all algorithms: decisions about bookkeeping (pure) and work on tensors (on the compute thread).

A new algorithm is a new file in this package with one subclass of `Algorithm`; the registry finds it by its ``name``.
Per round the engine runs

    assign      which slots do my samples train?               -> facts, set of slots
    train       train them; what is offered is a snapshot of the result
    exchange    steps 0 .. steps-1: offers out, arrivals folded; `end_step` after each but the last
    close       merge, recompute (assignment, mixture weights, collaborators), evaluate

and at the end `final`. ``facts`` is the algorithm's own JSON state: decisions read it, work replaces it, checkpoints keep it.
Per-sample arrays live in ``bench.arrays`` (checkpointed too).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator_free_bootstrap.errors import ConfigError, Refusal
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import derive_seed
from peer.core.averaging import Vector
from peer.core.decisions import Facts, Offer, Rejection
from peer.core.effects import Target
from peer.core.messages import Announce, ModelHeader
from peer.core.model_store import ModelStore
from peer.core.schema import Schema


class NoOptions(BaseModel):
    """Options of an algorithm that has none; subclasses add fields with defaults and descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Part = Literal["train", "validation", "test"]


class TrainStats(Protocol):
    """What training reports."""

    loss: float
    samples: int
    steps: int


class Evaluation(Protocol):
    """What evaluating reports."""

    metric: float
    loss: float
    samples: int


class Learner(Protocol):
    """Local training and evaluation on flat float32 vectors of length d (see `peer.learning`)."""

    @property
    def schema(self) -> Schema:
        """Names, shapes and roles of a model vector."""

    def count(self, part: Part = "train") -> int:
        """Return the number of samples of a part; n_i for the training set."""

    def labels(self, part: Part = "train") -> npt.NDArray[np.int64] | None:
        """Return the class of each sample, int64 [n]; None in regression."""

    def initial_model(self, seed: int) -> Vector:
        """Return a fresh model drawn from a seed."""

    def mean_loss(self, theta: Vector, part: Part = "train") -> float:
        """Return the mean loss over a part of the shard, in evaluation mode."""

    def sample_losses(self, theta: Vector, part: Part = "train") -> npt.NDArray[np.float32]:
        """Return the loss of each sample, in evaluation mode."""

    def train(
        self,
        theta: Vector,
        *,
        epochs: int,
        seed: int,
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        indices: npt.NDArray[np.int64] | None = None,
        sample_weights: npt.NDArray[np.float32] | None = None,
        proximal: tuple[Vector, float] | None = None,
        unit: Literal["epoch", "fullbatch_step", "step"] = "epoch",
        optimizer: Literal["sgd", "adam"] = "sgd",
        batch_size: int | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[Vector, TrainStats]:
        """Return a trained copy of a model; the input is left alone."""

    def evaluate(self, theta: Vector, part: Part = "test") -> Evaluation:
        """Return accuracy (or the task's metric) and mean loss."""

    def predict_proba(self, theta: Vector, part: Part = "test") -> npt.NDArray[np.float32]:
        """Return class probabilities [n, C] (regression: predictions)."""

    def evaluate_predictions(self, predictions: npt.NDArray[np.float32], part: Part = "test") -> Evaluation:
        """Return the evaluation of given predictions, for methods that mix predictions and not models."""


@dataclass(frozen=True)
class FoldedArrival:
    """What was folded or kept in the current step: who, which slot, what the header said; the model only where kept."""

    header: ModelHeader
    model: Vector | None = None


@dataclass
class Bench:
    """Everything that a piece of tensor work may touch; owned by the compute thread while it runs."""

    manifest: Manifest
    peer_id: int
    graph: Graph
    learner: Learner
    models: ModelStore
    facts: Facts
    round_index: int = 0
    step: int = 0
    present: tuple[int, ...] = ()  # neighbors that took part in the step that is being closed
    announced: dict[int, Announce] = field(default_factory=dict)  # neighbor -> what it said before training
    true_cluster: npt.NDArray[np.int64] | None = None  # of each training sample, where known; for metrics only
    scratch: dict[str, Any] = field(default_factory=dict)  # kept between two pieces of work; a restart may lose it
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    arrivals: list[FoldedArrival] = field(default_factory=list)
    pulled: dict[int, list[Vector]] = field(default_factory=dict)
    personalized: Vector | None = None  # made by the work "final"
    should_stop: Callable[[], bool] = lambda: False

    def seed(self, purpose: str, *path: int) -> int:
        """Return the seed of one random choice of this peer in this round."""
        return derive_seed(self.manifest.seed, purpose, self.peer_id, self.round_index, *path)

    @property
    def learning_rate(self) -> float:
        """eta_t: the learning rate after this round's decay."""
        m = self.manifest
        return m.learning_rate * m.learning_rate_decay ** (self.round_index // m.learning_rate_decay_rounds)

    def fit(self, theta: Vector, seed: int, **changes: Any) -> tuple[Vector, TrainStats]:
        """Train a copy of a model as the manifest says (epochs, optimizer, decay), but for ``changes``."""
        m = self.manifest
        settings: dict[str, Any] = {
            "epochs": m.local_epochs,
            "learning_rate": self.learning_rate,
            "momentum": m.momentum,
            "weight_decay": m.weight_decay,
            "unit": m.local_unit,
            "optimizer": m.optimizer,
            "batch_size": m.batch_size,
            "should_stop": self.should_stop,
        }
        return self.learner.train(theta, seed=seed, **(settings | changes))


class Algorithm:
    """Defaults of every decision and piece of work: one message per neighbor and round, to all of them, uniform mean."""

    name: ClassVar[str]
    Options: ClassVar[type[BaseModel]] = NoOptions
    default_mix: ClassVar[str] = "uniform"

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        self.manifest = manifest
        self.peer_id = peer_id
        self.graph = graph
        self.options: Any = self.parse_options(manifest)
        self.slots = self.slot_count(manifest)
        self.mix = manifest.mix or self.default_mix
        self.degree = graph.degree(peer_id)

    @classmethod
    def parse_options(cls, manifest: Manifest) -> BaseModel:
        """Validate ``run.options``.

        Raises:
            ConfigError: names the key, what was found and what is allowed.
        """
        try:
            return cls.Options.model_validate(manifest.options)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"])) or "options"
            known = ", ".join(cls.Options.model_fields) or "none"
            raise ConfigError(
                f"run.options.{key} of algorithm '{cls.name}': {problem['msg']}, found {problem.get('input')!r}; "
                f"its options are: {known}"
            ) from None

    @classmethod
    def slot_count(cls, manifest: Manifest) -> int:
        """Return how many models a peer holds."""
        return manifest.clusters

    # ---- decisions (pure): see peer.core.decisions ------------------------------------------------------------

    def steps(self, round_index: int) -> int:
        """One exchange step a round."""
        return 1

    def selects(self, facts: Facts, round_index: int) -> Announce | None:
        """Nothing is announced before training."""
        return None

    def offers(
        self, facts: Facts, round_index: int, step: int, neighbor: int, announced: Announce | None
    ) -> tuple[Offer, ...]:
        """Offer the trained slots to every neighbor."""
        return tuple(Offer(slot, facts.get("sample_count", 1)) for slot in facts["trained"])

    def expected(self, facts: Facts, round_index: int, step: int, announced: Announce) -> int | None:
        """Without selection the announcement itself says how many."""
        return None

    def agrees(self, facts: Facts, round_index: int, announced: dict[int, Announce]) -> Facts:
        """Announcements change nothing."""
        return {}

    def rejects_announce(self, facts: Facts, announce: Announce) -> Rejection | None:
        """Any announcement is believed."""
        return None

    def rejects(self, facts: Facts, header: ModelHeader, announced: Announce | None) -> Rejection | None:
        """Any slot may come from any neighbor."""
        return None

    def targets(self, facts: Facts, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold into the slot that the sender trained."""
        return (Target(header.slot, self.mixing_weight(header.sender)),)

    def metropolis(self, neighbor: int) -> float:
        """Return w_im = 1 / (1 + max of both degrees); from the graph file, not from the sender's claim."""
        return 1.0 / (1 + max(self.degree, self.graph.degree(neighbor)))

    def mixing_weight(self, neighbor: int) -> float:
        """Return an arrival's weight: 1 (uniform, beside an own weight of 1) or its Metropolis weight."""
        return 1.0 if self.mix == "uniform" else self.metropolis(neighbor)

    def own_weight(self, folded_weight: float) -> float:
        """Return the local model's weight beside arrivals of this summed weight; a missing neighbor's stays here."""
        return 1.0 if self.mix == "uniform" else max(0.0, 1.0 - folded_weight)

    # ---- work on tensors ---------------------------------------------------------------------------------------

    def initial_models(self, learner: Learner) -> tuple[list[Vector], bool]:
        """Return k models, and whether they are the same at every peer (then compared in the handshake).

        Source: DFCA's global initialization: seed_j = derive(seed, j), equal on all peers.
        """
        seeds = [derive_seed(self.manifest.seed, "initial", slot) for slot in range(self.slots)]
        return [learner.initial_model(seed) for seed in seeds], True

    def begin(self, bench: Bench) -> Facts:
        """Return the facts of a peer that has not trained yet."""
        return {"trained": [0], "sample_count": bench.learner.count()}

    def assign(self, bench: Bench) -> Facts:
        """Decide which slots train in this round: facts["trained"], also after a round that was sat out."""
        return {**bench.facts, "trained": [0]}

    def idle(self, bench: Bench) -> Facts:
        """Sit this round out: train nothing."""
        return {**bench.facts, "trained": []}

    def aside(self, facts: Facts, round_index: int) -> frozenset[int]:
        """Return the slots whose arrivals must not fold in place in this round; those in training are always among them.

        With Metropolis weights none may: the own weight, 1 minus those of the arrivals, is known only at the close.
        """
        return frozenset(facts["trained"] if self.mix == "uniform" else range(self.slots))

    def train(self, bench: Bench) -> dict[str, Any]:
        """Train the slots in facts["trained"]; return metrics."""
        losses = []
        for slot in bench.facts["trained"]:
            model, stats = bench.fit(bench.models.model(slot), bench.seed("train", slot))
            bench.models.replace(slot, model)
            losses.append(stats.loss)
        return {"train_loss": float(np.mean(losses))} if losses else {}

    def outgoing(self, bench: Bench, slot: int) -> Vector | None:
        """Return what is sent in place of the slot's model (noise), or None for the model itself."""
        return None

    def published(self, bench: Bench, slot: int) -> Vector:
        """Return what a neighbor that catches up may pull of a slot; never mutated afterwards."""
        return bench.models.share(slot)

    @property
    def inspects_arrivals(self) -> bool:
        """Whether `screen_arrival` wants to see each complete arrival."""
        return type(self).screen_arrival is not Algorithm.screen_arrival

    def screen_arrival(self, bench: Bench, header: ModelHeader, model: Vector) -> Rejection | None:
        """Return why a complete arrival is not taken; on the fold thread, beside training: read only what stands still."""
        return None

    def notes(self, bench: Bench) -> list[str]:
        """Return sentences that the operator must read before the run."""
        return []

    def end_step(self, bench: Bench) -> Facts:
        """Between two exchange steps: merge what has arrived."""
        self.merge(bench)
        return bench.facts

    def merge(self, bench: Bench) -> None:
        """Merge every slot with the arrivals that collected aside."""
        for slot in range(self.slots):
            bench.models.merge(slot, self.own_weight(bench.models.folded_weight(slot)))

    def close(self, bench: Bench) -> Facts:
        """After the last exchange step: merge and recompute; evaluation follows by `evaluate`."""
        self.merge(bench)
        return bench.facts

    def evaluate(self, bench: Bench) -> dict[str, Any]:
        """Return the metrics of the peer's evaluation model on its test set."""
        result = bench.learner.evaluate(self.evaluation_model(bench))
        return {"accuracy": result.metric, "loss": result.loss}

    def evaluation_model(self, bench: Bench) -> Vector:
        """Return the model that this peer is judged by."""
        return bench.models.model(int(bench.facts.get("cluster_index", 0)))

    def adopt(self, bench: Bench) -> Facts:
        """Catch up: average the models pulled from neighbors into the own ones, which count only if ever trained."""
        for slot in range(self.slots):
            pulled = [models[slot] for _, models in sorted(bench.pulled.items())]
            if not pulled:
                continue
            bench.models.begin_round(frozenset({slot}))
            for model in pulled:
                bench.models.fold(slot, model)
            bench.models.merge(slot, 1.0 if bench.round_index > 0 else 0.0)
        bench.pulled.clear()
        return bench.facts

    def final(self, bench: Bench) -> tuple[Vector, dict[str, Any]]:
        """Return the personalized model and its last metrics."""
        return self.evaluation_model(bench), self.evaluate(bench)


def refuse_slot(header: ModelHeader, slots: int) -> Rejection | None:
    """Return the rejection of a slot that this run does not have."""
    if 0 <= header.slot < slots:
        return None
    return Rejection(Refusal.SLOT_OUT_OF_RANGE, f"slot {header.slot} of {slots}")

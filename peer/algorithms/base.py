"""The interface of all algorithms: decisions on JSON state (pure), and work on tensors (on the compute thread).

A new algorithm is one file in this package with a subclass of `Algorithm`; the registry finds it by its ``name``.
In each round the engine asks for

    assign      choose the slots to train                      -> state.trained
    train       train them; snapshots of the results are offered
    exchange    steps 0 .. steps-1: send offers, fold arrivals; `end_step` after each step but the last
    close       merge deferred arrivals, recompute (assignment, mixture weights), evaluate

and after the last round for `final`. ``state`` is a frozen dataclass: decisions read it, work replaces it as a whole, checkpoints
contain it (`peer.algorithms.saved_state`).

A peer holds ``slots`` models that travel, slots 0 .. slots-1, and then ``private`` ones. The engine, the host and the wire know
only the first kind: no message and no pull reaches a private model. Checkpoints contain all. All models are whole here. What
arrives is the part that travels (`travelling`, `peer.core.part`), which ``workspace.models.part`` takes out of a whole model and
puts back; it is the whole model unless `run.private_parameters` keeps tensors back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Generic, cast

from pydantic import BaseModel
from typing_extensions import TypeVar

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Refusal, RefusalCode
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import AlgorithmFacts, InRun, Manifest
from coordinator_free_bootstrap.options import EffectiveWhen, NoOptions, parsed
from coordinator_free_bootstrap.seeds import derive_seed
from peer.algorithms import outer_step
from peer.algorithms.learner import Ability, Fields, Learner, measured, training_fields
from peer.algorithms.predictor import Predictor
from peer.algorithms.private import SampleUse
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.decisions import AlgorithmState, Offer
from peer.core.effects import Target
from peer.core.messages import NO_NUMBERS, ModelHeader, Numbers, Pass, Select
from peer.core.part import travelling
from peer.core.schema import Schema

OptionsT = TypeVar("OptionsT", bound=BaseModel, default=NoOptions)
StateT = TypeVar("StateT", bound=AlgorithmState, default=AlgorithmState)


class Algorithm(Generic[OptionsT, StateT]):
    """Base of all algorithms. Defaults: train slot 0, send it to every neighbor, average uniformly.

    Own classes of options and state stand in the base, for type checkers, and as ``Options`` and ``State``.

    >>> import peer
    >>> class Half(Algorithm):
    ...     name = "half"
    ...     def own_weight(self, folded_weight):  # the own model weighs as much as those of all neighbors
    ...         return folded_weight or 1.0
    >>> graph = peer.Graph.make("ring", peers=3, run={"rounds": 1})
    >>> peer.simulate(graph, algorithm=Half, progress=False).metrics["rounds"]
    1
    """

    name: ClassVar[str]
    Options: ClassVar[type[BaseModel]] = NoOptions
    State: ClassVar[type[AlgorithmState]] = AlgorithmState
    idle_folds: bool = True  # a peer that sits a round out still folds arrivals
    needs_one_graph: bool = False  # what one end of an edge expects of the other follows from peers or edges elsewhere
    default_mix: ClassVar[str] = "uniform"
    clustered: ClassVar[bool] = True  # False: one model travels, and run.clusters has no effect
    packages: ClassVar[tuple[str, ...]] = ()  # modules that a run imports, beyond those of a bare installation
    keys: ClassVar[Mapping[str, EffectiveWhen]] = {}  # of `run`, such as "screening.clip": when each has an effect here
    default_final_epochs: ClassVar[int] = 0  # see `peer.algorithms.final_phase`
    why_not_private: ClassVar[str] = (  # why run.privacy does not cover it, where it does not (`uses`)
        "it is not known to ask the training samples by private trainings and votes only"
    )
    result_is_model: ClassVar[bool] = True  # False: predictions of several models, which a final phase cannot train
    steps_out: ClassVar[bool] = (
        False  # ends a round with the average of what was trained, so that run.outer can step from there
    )
    tunes: ClassVar[bool] = False  # trains at the rate of `run.final` without a final phase, too
    sums: ClassVar[bool] = (
        False  # one model travels, folded as it came: the sum of a round's is enough (run.secure_sum)
    )
    validation_share: ClassVar[float] = (
        0.0  # of a peer's training samples, held out where its shard has no validation data
    )

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        self.manifest = manifest
        self.peer_id = peer_id
        self.graph = graph
        self.options = self.parse_options(manifest)
        self.slots = self.slot_count(manifest)
        self.private = self.private_count(manifest)
        self.mix = manifest.mix or self.default_mix
        self.degree = graph.degree(peer_id)
        self._check_sums()
        self.final_epochs = self.in_run(manifest).final_epochs

    def _check_sums(self) -> None:
        """Check that an algorithm needs no neighbor's models by themselves, where they come as secure sums."""
        if self.manifest.secure_sum is None or not self.exchanges(self.manifest):
            return
        if not self.sums or self.slots != 1 or self.inspects_arrivals:
            expected = "one to which the sum of its neighbors' models is enough, with run.secure_sum (docs/security.md)"
            fix = "Change it, or set run.secure_sum to null."
            raise ConfigError(ConfigProblem("run.algorithm", expected, repr(self.name), fix))

    @property
    def hides_samples(self) -> bool:
        """Whether neighbors must learn nothing exact of this peer's samples (differential privacy): with run.privacy."""
        return self.manifest.privacy.is_on

    def uses(self, round_index: int) -> SampleUse:
        """Return what `assign`, `train` and `close` of a round in which this peer trains ask of the training samples.

        `run.privacy` charges for it, and `PrivateLearner` gives no more. Where it is on, they ask by trainings and by votes only.

        Raises:
            ConfigError: run.privacy does not cover this algorithm, or some of its options: the default.
        """
        raise self.not_private(self.why_not_private)

    def uses_at_the_end(self) -> SampleUse:
        """Return what `final` and the final phase ask of them."""
        return SampleUse(epochs=self.final_epochs)

    def not_private(self, why: str, key: str = "run.algorithm", got: object = None) -> ConfigError:
        """Return the error for an algorithm or option that `run.privacy` does not cover."""
        expected = "one that run.privacy covers (docs/security.md, Differential privacy)"
        return ConfigError(
            ConfigProblem(
                key, expected, f"{got or self.name!r}: {why}", "Change it, or set run.privacy.clip_norm to null."
            )
        )

    @classmethod
    def exchanges(cls, manifest: Manifest) -> bool:
        """Return whether peers exchange models: yes. Without, a round has no step, and keys of the exchange have no effect."""
        return True

    @classmethod
    def in_run(cls, manifest: Manifest) -> InRun:
        """Return what the rules beside keys are asked about, but for the task.

        Raises:
            ConfigError: as `parse_options`.
        """
        facts = AlgorithmFacts(
            exchanges=cls.exchanges(manifest),
            clustered=cls.clustered,
            keeps_arrivals=cls.kept_models is not Algorithm.kept_models,
            final_epochs=cls.default_final_epochs,
            result_is_model=cls.result_is_model,
            steps_out=cls.steps_out,
            tunes=cls.tunes,
            keys=cls.keys,
        )
        return InRun(manifest, algorithm=facts, options=cls.parse_options(manifest))

    @classmethod
    def parse_options(cls, manifest: Manifest) -> OptionsT:
        """Validate ``run.options``; their rules are asked about an `InRun` without facts of the algorithm.

        Raises:
            ConfigError: an option is unknown, out of range or without effect.
        """
        read = parsed(
            cls.Options,
            cls.completed(manifest),
            "run.options.{}".format,
            ConfigError,
            f"algorithm '{cls.name}'",
            lambda options: InRun(manifest, options=options),
        )
        return cast("OptionsT", read)

    @classmethod
    def completed(cls, manifest: Manifest) -> Mapping[str, object]:
        """Return ``run.options``, not validated, with the values of those whose default depends on other settings: none."""
        return manifest.options

    @classmethod
    def slot_count(cls, manifest: Manifest) -> int:
        """Return how many models of a peer travel: neighbors may get them by push or pull."""
        return manifest.clusters if cls.clustered else 1

    @classmethod
    def private_count(cls, manifest: Manifest) -> int:
        """Return how many more models a peer holds that never leave it: none."""
        return 0

    @classmethod
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return what it asks of a learner beyond training and evaluation: nothing. A task without it is refused at the start."""
        return frozenset()

    @property
    def held(self) -> int:
        """The number of models that a peer holds: ``slots`` that travel, then ``private`` ones."""
        return self.slots + self.private

    @classmethod
    def private_patterns(cls, manifest: Manifest, schema: Schema) -> Sequence[str]:
        """Return the patterns of the tensors that never leave a peer: `run.private_parameters`."""
        return manifest.private_parameters

    @classmethod
    def travelling(cls, manifest: Manifest, schema: Schema) -> Schema:
        """Return the tensors that travel, of a whole model with ``schema``; the handshake compares them.

        Raises:
            ConfigError: a pattern matches nothing, or together they leave no parameter.
        """
        return travelling(schema, cls.private_patterns(manifest, schema))

    def kept_models(self) -> int:
        """Return how many arrivals this peer keeps at most until a step closes, by `targets` of (): none.

        The host checks the memory for them at the start (limits.kept_bytes_max), and that a step keeps no more.
        """
        return 0

    # ---- decisions (pure): see peer.core.decisions ------------------------------------------------------------

    def steps(self, round_index: int) -> int:
        """Return the number of exchange steps of a round: one, or none where peers exchange no models."""
        return int(self.exchanges(self.manifest))

    def selects(self, state: StateT, round_index: int) -> Select | None:
        """Return the selection of a round: none."""
        return None

    def offers(
        self, state: StateT, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer the trained slots to every neighbor."""
        return tuple(Offer(slot, state.sample_count) for slot in state.trained)

    def expected(self, state: StateT, select: Select) -> int | None:
        """Return how many models follow a selection: unknown, the first header says it."""
        return None

    def tells(self, state: StateT, round_index: int, step: int) -> Numbers:
        """Return the numbers to send in a step to each neighbor that gets no model in it: none.

        They go with the pass. Neighbors find those of a step in ``workspace.neighbor_numbers`` when they end or close it.
        """
        return NO_NUMBERS

    def rejects_pass(self, state: StateT, message: Pass) -> Refusal | None:
        """Refuse numbers in a pass: without `tells`, no peer sends any."""
        if not message.numbers:
            return None
        expected = f"pass: expected no numbers in this step of algorithm '{self.name}'"
        return Refusal(RefusalCode.MALFORMED, f"{expected}, got {len(message.numbers)}")

    def asking(self, round_index: int) -> bool:
        """Return False: every neighbor sends its models unasked. Depends on the round alone, as all peers must agree.

        Where it is true, a peer tells each neighbor before it trains whether it takes its models in this round (`asks`), and
        gets them from no other. A peer that sits a round out gets none.
        """
        return False

    def asks(self, state: StateT, round_index: int) -> frozenset[int]:
        """Return the neighbors whose models this peer takes in a round with `asking`, after `assign`: all of them."""
        return frozenset(self.graph.neighbors(self.peer_id))

    def agrees(self, state: StateT, round_index: int, selections: dict[int, Select]) -> StateT:
        """Return the state with what the selections of a round add to it: nothing."""
        return state

    def rejects_select(self, state: StateT, select: Select) -> Refusal | None:
        """Refuse every selection: without `selects`, no peer sends one. A bare one, for models alone, is accepted earlier."""
        return Refusal(RefusalCode.MALFORMED, f"expected no selection with algorithm '{self.name}', got one")

    def rejects(self, state: StateT, header: ModelHeader, select: Select | None) -> Refusal | None:
        """Accept every header: any slot may come from any neighbor."""
        return None

    def targets(self, state: StateT, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold into the slot that the header names."""
        return (Target(header.slot, self.mixing_weight(header.sender)),)

    def metropolis(self, neighbor: int) -> float:
        """Return w_im, with degrees from the graph file; with ``run.edges`` "one" a half, the degree being 1."""
        return self._metropolis[neighbor]

    @cached_property
    def _metropolis(self) -> dict[int, float]:
        return self._metropolis_at(self.peer_id)

    def _metropolis_at(self, receiver: int) -> dict[int, float]:
        one = self.manifest.edges == "one"
        return {n: 0.5 if one else self.graph.metropolis(receiver, n) for n in self.graph.neighbors(receiver)}

    def mixing_weight(self, neighbor: int) -> float:
        """Return an arrival's weight: 1 if uniform (the own model weighs 1 too), else its Metropolis weight."""
        return 1.0 if self.mix == "uniform" else self.metropolis(neighbor)

    def weights_at(self, receiver: int) -> dict[int, float]:
        """Return the weights of all neighbors' models at a peer that folds them by `mixing_weight`: both ends know them."""
        weights = self._metropolis_at(receiver)
        return dict.fromkeys(weights, 1.0) if self.mix == "uniform" else weights

    def own_weight(self, folded_weight: float) -> float:
        """Return the own model's weight, given the summed weight of the arrivals; it includes that of missing neighbors."""
        return 1.0 if self.mix == "uniform" else max(0.0, 1.0 - folded_weight)

    # ---- work on tensors ---------------------------------------------------------------------------------------

    @property
    def common_start(self) -> bool:
        """Whether the first models that travel are equal on all peers; else each peer draws its own, without common meaning.

        Source: global and local initialization (GI, LI) of DFCA (arXiv 2510.15300).
        """
        return True

    def initial_models(self, learner: Learner) -> tuple[list[Vector], bool]:
        """Return all models that a peer holds, and whether those that travel are equal on all peers: the handshake compares them.

        Private models start as copies of slot 0.
        """
        path = () if self.common_start else (self.peer_id,)
        seeds = [derive_seed(self.manifest.seed, "initial", slot, *path) for slot in range(self.slots)]
        models = [learner.initial_model(seed, slot) for slot, seed in enumerate(seeds)]
        common = self.common_start and self.manifest.start_from != "own"
        return models + [models[0].copy() for _ in range(self.private)], common

    def begin(self, workspace: Workspace[StateT]) -> StateT:
        """Return the state of a peer before its first round; neighbors get ``sample_count``."""
        return cast("StateT", self.State(trained=(0,), sample_count=workspace.learner.count()))

    def assign(self, workspace: Workspace[StateT]) -> StateT:
        """Choose the slots to train in this round: state.trained, which `sit_out` leaves empty."""
        return replace(workspace.state, trained=(0,))

    def sit_out(self, workspace: Workspace[StateT]) -> StateT:
        """Take no part in this round: train nothing."""
        return replace(workspace.state, trained=())

    def deferred_slots(self, state: StateT, round_index: int) -> frozenset[int]:
        """Return the slots whose arrivals are averaged separately and merged at the close: at least those in training.

        With Metropolis weights these are all slots: the own weight, 1 minus that of the arrivals, is known only at the close.
        """
        return frozenset(state.trained if self.mix == "uniform" else range(self.slots))

    def train(self, workspace: Workspace[StateT]) -> Fields:
        """Train the slots in state.trained; return metrics."""
        return training_fields([workspace.fit_slot(slot, memory=f"slot{slot}") for slot in workspace.state.trained])

    def outgoing(self, workspace: Workspace[StateT], slot: int) -> Vector | None:
        """Return a whole model to send of in place of the slot's (for example with noise), or None for the slot's model."""
        return None

    def published(self, workspace: Workspace[StateT], slot: int) -> Vector:
        """Return the model of which a neighbor gets the travelling part when it pulls a slot; never mutated afterwards."""
        return workspace.models.share(slot)

    @property
    def inspects_arrivals(self) -> bool:
        """Whether `screen_arrival` must be called for each complete arrival."""
        return type(self).screen_arrival is not Algorithm.screen_arrival

    def screen_arrival(self, workspace: Workspace[StateT], header: ModelHeader, model: Vector) -> Refusal | None:
        """Return the rejection of a complete arrival, or None; ``model`` is what travels of it.

        It runs while training runs: it may read only what training does not change.
        """
        return None

    def notes(self, workspace: Workspace[StateT]) -> list[str]:
        """Return sentences for the operator, logged before the run."""
        return []

    def end_step(self, workspace: Workspace[StateT]) -> StateT:
        """Merge the arrivals of an exchange step; not called after the last one."""
        self.merge(workspace)
        return workspace.state

    def merge(self, workspace: Workspace[StateT]) -> None:
        """Merge every slot with its deferred arrivals."""
        for slot in range(self.slots):
            workspace.models.merge(slot, self.own_weight(workspace.models.deferred_weight(slot)))

    def close(self, workspace: Workspace[StateT]) -> StateT:
        """Merge the arrivals of the last exchange step and recompute the state; `evaluate` follows."""
        self.merge(workspace)
        outer_step.step(workspace, self.travelling(self.manifest, workspace.learner.schema))
        return workspace.state

    def evaluate(self, workspace: Workspace[StateT]) -> Fields:
        """Return the metrics of what predicts on the peer's test set."""
        return measured(self.predictor(workspace).evaluate(workspace.learner))

    def predictor(self, workspace: Workspace[StateT]) -> Predictor:
        """Return what predicts after a round: the evaluation model. The best of a run is chosen by its validation metric."""
        return Predictor((self.evaluation_model(workspace),))

    def evaluation_model(self, workspace: Workspace[StateT]) -> Vector:
        """Return the model whose metric value is reported: that of the peer's cluster."""
        return workspace.models.model(workspace.state.cluster_index or 0)

    def adopt(self, workspace: Workspace[StateT]) -> StateT:
        """Catch up: average the pulled models with the own ones, which count only if they have ever been trained."""
        self.average_pulled(workspace, range(self.slots))
        return workspace.state

    def average_pulled(self, workspace: Workspace[StateT], slots: Iterable[int]) -> None:
        """Average the pulled models of some slots with the own ones."""
        for slot in slots:
            pulled = [models[slot] for n, models in sorted(workspace.pulled.items()) if n in workspace.present]
            if not pulled:
                continue
            workspace.models.begin_round(frozenset({slot}))
            for model in pulled:
                workspace.models.fold(slot, model)
            workspace.models.merge(slot, 1.0 if workspace.round_index > 0 else 0.0)

    def final(self, workspace: Workspace[StateT]) -> tuple[Vector, Fields]:
        """Return the personalized model and its metrics, before the final phase (`peer.algorithms.final_phase`)."""
        return self.evaluation_model(workspace), self.evaluate(workspace)

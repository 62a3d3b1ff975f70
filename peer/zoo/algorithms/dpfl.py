"""DPFL: each peer picks, by validation loss and within a budget, whose models it averages with its own; no clusters.

Round 0, preprocessing: train the common first model; of all neighbors, choose the potential collaborators Omega_k with BGGC, and
average their models with the own. Then in each round: train; take the models of Omega_k; choose the collaborators C_k of them
with GGC, every P rounds; average (Eq. 4).
A peer asks for the models it may use and gets no others, so bytes fall with the budget.

A model that is read twice in the preprocessing is the same both times: the preprocessing is one round of several exchange steps,
all of which send the snapshot taken after training. Who sends to whom in which step follows from the seed, so nothing is asked.

Source: Salma Kharrat, Marco Canini and Samuel Horváth, "Decentralized Personalized Federated Learning", 2024, arXiv 2406.06520.
Additions of this project: candidates are the neighbors in the graph, not all peers; `guard_self`, `rebuild_every` as an option; a
peer that missed the preprocessing takes neighbors drawn at random as potential collaborators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Ability, Fields, training_fields
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.decisions import AlgorithmState, Offer
from peer.core.effects import Target
from peer.core.messages import ModelHeader, Select
from peer.zoo.algorithms.greedy import GreedyChoice, WeightedSum

CURRENT, BEST = 0, 1  # slots
OF_EXCHANGE = EffectiveWhen(lambda r: r.options.budget != 1, "run.options.budget is 1, so no model is exchanged")


class DpflOptions(BaseModel):
    """``run.options`` of algorithm ``dpfl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    budget: int | None = Field(
        None, ge=1, description="B_c: models averaged in a round, with the own; 1: local training; default: no limit"
    )
    period: Annotated[int, OF_EXCHANGE] = Field(
        1, ge=1, description="P: rounds from one choice of collaborators to the next"
    )
    initial_epochs: int | None = Field(
        None,
        ge=1,
        description="tau_init: local epochs, or steps as run.local_unit says, in round 0; default: twice run.local_epochs",
    )
    rebuild_every: Annotated[int, OF_EXCHANGE] = Field(
        0, ge=0, description="rounds between repetitions of the preprocessing; 0: none; each costs its bytes again"
    )
    preprocess_share: Annotated[float, OF_EXCHANGE] = Field(
        1.0, gt=0, le=1, description="share of the neighbors, drawn at random, that the preprocessing takes models of"
    )
    round_share: Annotated[float, OF_EXCHANGE] = Field(
        1.0, gt=0, le=1, description="share of the potential collaborators, drawn anew in each round, that is asked"
    )
    guard_self: Annotated[bool, OF_EXCHANGE] = Field(
        False,
        description="average with no neighbor where that has the lower validation loss; after round 0: train alone",
    )


@dataclass(frozen=True)
class DpflState(AlgorithmState):
    """State of DPFL.

    Attributes:
        round_index: the round that ``trained`` is of.
        candidates: Omega_k; None: the preprocessing was missed so far.
        collaborators: C_k; None: none were chosen so far.
        gain: by how much the average of the last choice has a lower validation loss than the own model.
        best: validation score of the remembered model; None: nothing was trained so far.
    """

    round_index: int = 0
    candidates: tuple[int, ...] | None = None
    collaborators: tuple[int, ...] | None = None
    gain: float = 0.0
    best: float | None = None


class Dpfl(Algorithm[DpflOptions, DpflState]):
    """DPFL; the model of the best validation score is private and is the result."""

    name = "dpfl"
    why_not_private = "it chooses collaborators by losses on its validation samples"
    clustered = False
    needs_one_graph = True
    Options = DpflOptions
    State = DpflState
    keys: ClassVar = {
        **dict.fromkeys(
            ("mix", "aggregation", "screening.trimmed_mean"),
            EffectiveWhen.never("algorithm dpfl averages a chosen set of models by numbers of samples"),
        ),
        "stale_weight": EffectiveWhen.never("algorithm dpfl uses models of the same round only"),
    }
    validation_share = 0.2

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return losses of validation samples."""
        return frozenset({"outputs"})

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        if manifest.pace != "lockstep":
            raise ConfigError(
                f"run.pace: expected 'lockstep', got {manifest.pace!r} with algorithm 'dpfl', whose peers choose "
                "among models of the same round"
            )
        if manifest.edges != "all" and self.exchanges(manifest):
            raise ConfigError(
                f"run.edges: expected 'all', got {manifest.edges!r} with algorithm 'dpfl', whose peers choose among the "
                "models of all neighbors in round 0"
            )
        reads_twice = any(len(self._sizes(degree)) > 1 for degree in graph.degrees)
        if manifest.encoding == "int8" and reads_twice:
            raise ConfigError(
                "run.encoding: expected float32, float16, bfloat16, or no budget, got 'int8' with run.options.budget "
                "below a peer's number of neighbors: each model is read twice in the preprocessing, and the second "
                "int8 payload corrects the first"
            )

    @classmethod
    @override
    def exchanges(cls, manifest: Manifest) -> bool:
        """Return whether the budget has room for a neighbor's model."""
        return cls.parse_options(manifest).budget != 1

    @classmethod
    @override
    def private_count(cls, manifest: Manifest) -> int:
        """Return 1: the model of the best validation score so far."""
        return 1

    @override
    def kept_models(self) -> int:
        """Return the largest batch that GGC or BGGC reads: all neighbors, or B_c of them."""
        if self.options.budget is None:
            return self.degree
        return 0 if self.options.budget == 1 else min(self.degree, self.options.budget)

    # ---- the schedule of the preprocessing: pure, from seed and graph -----------------------------------------------

    def rebuilding(self, round_index: int) -> bool:
        """Return whether a round chooses among all neighbors: round 0, and every ``rebuild_every`` rounds."""
        every = self.options.rebuild_every
        return round_index == 0 or bool(every and round_index % every == 0)

    def _count(self, degree: int) -> int:
        """Return how many of a peer's neighbors the preprocessing takes models of."""
        return 0 if self.options.budget == 1 else max(1, round(self.options.preprocess_share * degree))

    def _sizes(self, degree: int) -> list[int]:
        """Return how many models a peer takes in each step: once all, if they fit the budget; else twice, in batches."""
        count = self._count(degree)
        if self.options.budget is None or count <= self.options.budget:
            return [count] if count else []
        size = self.options.budget
        return 2 * [min(size, count - start) for start in range(0, count, size)]

    def plan(self, peer: int, round_index: int) -> list[tuple[int, ...]]:
        """Return whose models a peer takes in each step of a preprocessing, in the order in which GGC considers them."""
        neighbors, sizes = self.graph.neighbors(peer), self._sizes(self.graph.degree(peer))
        order = generator(self.manifest.seed, "candidates", peer, round_index).permutation(len(neighbors))
        order, steps, place = order[: self._count(len(neighbors))], [], 0
        for size in sizes:
            steps.append(tuple(neighbors[int(at)] for at in order[place : place + size]))
            place = (place + size) % len(order)
        return steps

    # ---- decisions --------------------------------------------------------------------------------------------------

    @override
    def steps(self, round_index: int) -> int:
        """Return the steps of the preprocessing, those of the peer with the most neighbors; else one, with budget 1 none."""
        if self.rebuilding(round_index):
            return max(len(self._sizes(degree)) for degree in self.graph.degrees)
        return int(self.options.budget != 1)

    @override
    def asking(self, round_index: int) -> bool:
        """Return whether peers ask for models: in all rounds but those of a preprocessing."""
        return not self.rebuilding(round_index) and self.options.budget != 1

    def choosing(self, round_index: int) -> bool:
        """Return whether GGC runs in a round: every ``period`` rounds, first in round 1."""
        return (round_index - 1) % self.options.period == 0

    def candidates(self, state: DpflState) -> list[int]:
        """Return Omega_k; where the preprocessing was missed, B_c - 1 neighbors, drawn at random."""
        if state.candidates is not None:
            return list(state.candidates)
        neighbors = self.graph.neighbors(self.peer_id)
        most = len(neighbors) if self.options.budget is None else self.options.budget - 1
        drawn = generator(self.manifest.seed, "unprepared", self.peer_id).permutation(len(neighbors))[:most]
        return sorted(neighbors[int(at)] for at in drawn)

    @override
    def asks(self, state: DpflState, round_index: int) -> frozenset[int]:
        """Return the potential collaborators, or in rounds without GGC the collaborators; of them a share, drawn at random."""
        pool = self.candidates(state)
        if not self.choosing(round_index) and state.collaborators is not None:
            pool = list(state.collaborators)
        count = max(1, round(self.options.round_share * len(pool)))  # a slice: none of an empty pool
        drawn = generator(self.manifest.seed, "asked", self.peer_id, round_index).permutation(len(pool))[:count]
        return frozenset(pool[int(at)] for at in drawn)

    @override
    def offers(
        self, state: DpflState, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer the model to a neighbor that asked, or whose preprocessing has its turn for it in this step."""
        if not state.trained:
            return ()
        if self.rebuilding(round_index):
            plan = self.plan(neighbor, round_index)
            if step >= len(plan) or self.peer_id not in plan[step]:
                return ()
        return (Offer(CURRENT, state.sample_count),)

    @override
    def targets(self, state: DpflState, header: ModelHeader) -> tuple[Target, ...] | None:
        """Keep the models of this round until GGC has seen them; use no other."""
        return () if state.trained and header.round_index == state.round_index else None

    # ---- work -------------------------------------------------------------------------------------------------------

    @override
    def begin(self, workspace: Workspace[DpflState]) -> DpflState:
        """Return the state before the first training.

        Raises:
            ConfigError: the peer has no validation samples.
        """
        if not workspace.learner.count("validation"):
            raise ConfigError(
                "run.task: expected one or more validation samples, got none at this peer with algorithm 'dpfl', which "
                "chooses collaborators by validation loss. Give this peer more samples, or a shard with val_x and "
                "val_y."
            )
        return super().begin(workspace)

    @override
    def assign(self, workspace: Workspace[DpflState]) -> DpflState:
        """Train the current model."""
        return replace(workspace.state, trained=(CURRENT,), round_index=workspace.round_index)

    @override
    def sit_out(self, workspace: Workspace[DpflState]) -> DpflState:
        """Train nothing and use no arrival."""
        return replace(super().sit_out(workspace), round_index=workspace.round_index)

    @override
    def train(self, workspace: Workspace[DpflState]) -> Fields:
        """Train the current model, tau_init epochs at the first time; remember it if its validation score is the best so far."""
        epochs, best = workspace.manifest.local_epochs, workspace.state.best
        if best is None:
            epochs = self.options.initial_epochs or 2 * epochs
        stats = workspace.fit_slot(CURRENT, replace(workspace.slot_plan(CURRENT), epochs=epochs), f"slot{CURRENT}")
        model = workspace.models.model(CURRENT)
        found = workspace.learner.evaluate(model, "validation")
        assert found.loss is not None  # of a learner with outputs
        score = found.metric if found.metric_name == "accuracy" else -found.loss
        if best is None or score >= best:
            workspace.models.replace(BEST, model.copy())
            workspace.state = replace(workspace.state, best=score)
        if self.rebuilding(workspace.round_index):
            workspace.scratch["choice"] = self._choice(workspace)
        return training_fields([stats])

    def _choice(self, workspace: Workspace[DpflState]) -> GreedyChoice:
        models, weight = workspace.models, float(workspace.state.sample_count)
        own = models.part.of(models.model(CURRENT))
        coins = generator(self.manifest.seed, "coins", self.peer_id, workspace.round_index)

        def loss(part: Vector) -> float:
            return workspace.learner.mean_loss(models.part.joined(models.model(CURRENT), part), "validation")

        return GreedyChoice(own, weight, loss, coins, self.options.budget)

    @override
    def end_step(self, workspace: Workspace[DpflState]) -> DpflState:
        """Read the batch of one step of the preprocessing."""
        if workspace.state.trained:
            self._read_batch(workspace)
        return workspace.state

    def _read_batch(self, workspace: Workspace[DpflState]) -> None:
        plan, step = self.plan(self.peer_id, workspace.round_index), workspace.step
        if step >= len(plan):
            return
        choice: GreedyChoice = workspace.scratch["choice"]
        arrived = arrivals(workspace)
        batch = [peer for peer in plan[step] if peer in arrived]
        if len(plan) == 1 or step < len(plan) // 2:
            for peer in batch:
                choice.expect(peer, *arrived[peer])
        if len(plan) == 1 or step >= len(plan) // 2:
            for peer in batch:
                choice.consider(peer, *arrived[peer])

    @override
    def close(self, workspace: Workspace[DpflState]) -> DpflState:
        """Choose collaborators, or keep those of before, and average (Eq. 4)."""
        self.merge(workspace)
        if not workspace.state.trained or self.options.budget == 1:
            return workspace.state
        if self.rebuilding(workspace.round_index):
            self._read_batch(workspace)
            state = self._chosen(workspace, workspace.scratch.pop("choice"))
            return replace(state, candidates=state.collaborators)
        arrived = arrivals(workspace)
        if self.choosing(workspace.round_index) or workspace.state.collaborators is None:
            choice, order = self._choice(workspace), sorted(arrived)
            shuffled = generator(self.manifest.seed, "shuffle", self.peer_id, workspace.round_index).permutation(order)
            for peer in order:
                choice.expect(peer, *arrived[peer])
            for peer in shuffled.tolist():
                choice.consider(peer, *arrived[peer])
            return self._chosen(workspace, choice)
        models = workspace.models
        mean = WeightedSum.of(models.part.of(models.model(CURRENT)), float(workspace.state.sample_count))
        for peer in sorted(set(workspace.state.collaborators) & set(arrived)):
            mean.add(*arrived[peer])
        models.replace_part(CURRENT, mean.mean())
        return workspace.state

    def _chosen(self, workspace: Workspace[DpflState], choice: GreedyChoice) -> DpflState:
        found, chosen = replace(workspace.state, gain=choice.gain), tuple(sorted(choice.chosen))
        if self.options.guard_self and choice.gain < 0:
            return replace(found, collaborators=())
        if chosen:
            workspace.models.replace_part(CURRENT, choice.average())
        return replace(found, collaborators=chosen)

    @override
    def adopt(self, workspace: Workspace[DpflState]) -> DpflState:
        """Catch up with the models of potential collaborators only."""
        candidates = self.candidates(workspace.state)
        workspace.pulled = {peer: models for peer, models in workspace.pulled.items() if peer in candidates}
        return super().adopt(workspace)

    @override
    def evaluate(self, workspace: Workspace[DpflState]) -> Fields:
        """Return the metrics of the remembered model, the metric value of the average, and the collaborators."""
        state = workspace.state
        averaged = workspace.learner.evaluate(workspace.models.model(CURRENT)).metric
        known = {"candidates": state.candidates, "collaborators": state.collaborators}
        links = {name: list(peers) for name, peers in known.items() if peers is not None}
        return super().evaluate(workspace) | {
            "metric_shared": averaged,
            "state": links | {"gain": state.gain},
        }

    @override
    def evaluation_model(self, workspace: Workspace[DpflState]) -> Vector:
        """Return the model of the best validation score."""
        return workspace.models.model(BEST)


def arrivals(workspace: Workspace) -> dict[int, tuple[Vector, float]]:
    """Return what travels of the models that are kept, and their sample counts, by sender."""
    kept = [arrival for arrival in workspace.arrivals if arrival.model is not None]
    return {a.header.sender: (a.model, float(a.header.sample_count)) for a in kept if a.model is not None}

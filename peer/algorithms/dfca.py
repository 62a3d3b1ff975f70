"""DFCA: every peer holds k cluster models, trains the one that fits its data, and averages the neighbors' models by cluster.

Round (Alg. 1): assign c(i) = argmin_j mean loss of model j on the own training set (Eq. 4); train that model for tau epochs
(Eq. 5, 9); send it to all neighbors; for every cluster j, average the own model with the neighbors' models of j, sequentially
(Eq. 8) or as a batch (Eq. 7), by `run.aggregation`.

Source: Jonas Kirch, Sebastian Becker, Tiago Koketsu Rodrigues and Stefan Harmeling, "DFCA: Decentralized Federated Clustering
Algorithm", 2025, arXiv 2510.15300.

Additions of this project, off by default. Relay warm-up (`warmup_rounds`): on a sparse graph, two regions often settle on
opposite meanings of a cluster index in the first rounds; relaying models over several mixing steps in these rounds avoids it.
It is a ratio of gossiped sums, as push-sum (David Kempe, Alin Dobra and Johannes Gehrke, "Gossip-Based Computation of Aggregate
Information", 2003). Splitting (`split_empty`): a cluster that no peer trains gets half of the peers of the largest one.
Seeds and groups (`initialization`): the first k rounds choose the first model of each cluster (`peer.algorithms.seeding`,
`peer.algorithms.grouping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeVar, override

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.grouping import Grouping
from peer.algorithms.held_out import Fold, share_held_out
from peer.algorithms.learner import Ability, Fields, training_fields
from peer.algorithms.nearest import OF_IDLE, NearestCluster
from peer.algorithms.private import SampleUse
from peer.algorithms.seeding import EMPTY, HELD_OUT, Seeding, SeedingState
from peer.algorithms.workspace import Workspace
from peer.core.constants import DEFAULTS
from peer.core.decisions import AlgorithmState, Offer
from peer.core.effects import Target
from peer.core.messages import NO_NUMBERS, ModelHeader, Numbers, Pass, Select

STARTS = {"seeds": Seeding, "groups": Grouping}
LOSS_MAX = 1e30  # of relayed losses: the loss of a diverged model, or a false claim, times a mass must stay finite


OF_WARMUP = EffectiveWhen(lambda r: r.options.warmup_rounds > 0, "run.options.warmup_rounds is 0")
WarmupRounds = Annotated[
    int,
    EffectiveWhen(lambda r: r.options.initialization not in STARTS, "run.options.initialization is seeds or groups"),
]
SplitEmpty = Annotated[bool, OF_WARMUP]


class DfcaOptions(BaseModel):
    """``run.options`` of algorithm ``dfca``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    initialization: Literal["global", "local", "seeds", "groups"] = Field(
        "global",
        description="first models: equal on all peers (global, DFCA-GI), drawn by each peer (local, DFCA-LI), or, in k rounds, "
        "those of peers that the clusters so far fit worst (seeds), or of a peer of each group of alike first updates (groups)",
    )
    seed_epochs: Annotated[
        int,
        EffectiveWhen(
            lambda r: r.options.initialization in STARTS, "run.options.initialization is not seeds or groups"
        ),
    ] = Field(10, ge=1, description="seeds, groups: epochs that train a first model, before peers compare theirs")
    warmup_rounds: WarmupRounds = Field(0, ge=0, description="W: number of first rounds with relaying; 0 is the paper")
    relay_steps: Annotated[int, OF_WARMUP] = Field(3, ge=1, le=64, description="g: mixing steps in each warm-up round")
    split_empty: SplitEmpty = Field(
        False, description="in warm-up rounds, split the largest cluster if a cluster is trained by no peer"
    )
    idle_folds: Annotated[bool, OF_IDLE] = Field(
        True, description="a peer that sits a round out still folds arrivals; false is the paper"
    )


@dataclass(frozen=True)
class DfcaState(SeedingState):
    """State of DFCA; the masses and relayed losses are of each slot, and mean something in warm-up rounds only.

    Attributes:
        losses: mean training loss of each cluster that was looked at, when the cluster was chosen.
        masses: how much training is in each model of this peer.
        relayed_losses: mean loss of the peers that trained a cluster.
        losses_before: ``losses`` as this round began.
    """

    losses: tuple[float, ...] = ()
    masses: tuple[float, ...] = ()
    relayed_losses: tuple[float, ...] = ()
    losses_before: tuple[float, ...] = ()


DfcaOptionsT = TypeVar("DfcaOptionsT", bound=DfcaOptions, default=DfcaOptions)
DfcaStateT = TypeVar("DfcaStateT", bound=DfcaState, default=DfcaState)


class Dfca(NearestCluster[DfcaOptionsT, DfcaStateT]):
    """DFCA with global or local initialization, sequential or batch aggregation, and the optional relay warm-up."""

    name = "dfca"
    steps_out = True
    Options: ClassVar[type[BaseModel]] = DfcaOptions
    State: ClassVar[type[AlgorithmState]] = DfcaState

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return the losses of samples; with seeds or groups also training on a part of them."""
        needed = super().needs(manifest)
        return needed | {"subset", "losses"} if cls.parse_options(manifest).initialization in STARTS else needed

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        self.idle_folds = self.options.idle_folds
        self._seeding: Seeding | None = None
        if start := STARTS.get(self.options.initialization):
            self._seeding = start(manifest, self.options.seed_epochs, peer_id, graph)
            self.needs_one_graph = True

    # ---- decisions ----------------------------------------------------------------------------------------------

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return what the nearest cluster needs; splitting is not private."""
        if self.options.split_empty:
            raise self.not_private("it compares mean losses", "run.options.split_empty", True)
        return super().uses(round_index)

    @property
    @override
    def common_start(self) -> bool:
        """Whether ``initialization`` is not ``local``."""
        return self.options.initialization != "local"

    def warming_up(self, round_index: int) -> bool:
        """Return whether models are relayed in a round."""
        return round_index < self.options.warmup_rounds and self._seeding is None

    def seeding(self, round_index: int) -> Seeding | None:
        """Return what seeds a cluster in a round; None: it is an ordinary round."""
        return self._seeding if self._seeding and self._seeding.covers(round_index) else None

    @override
    def steps(self, round_index: int) -> int:
        """Return the number of steps of a round that seeds a cluster, of mixing steps in a warm-up round, else one."""
        if seeding := self.seeding(round_index):
            return seeding.steps
        return self.options.relay_steps if self.warming_up(round_index) else 1

    @override
    def offers(
        self, state: DfcaStateT, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer the trained cluster; when relaying, every cluster whose mass receivers accept (weight_min)."""
        if seeding := self.seeding(round_index):
            return seeding.offers(state, round_index, step)
        if not self.warming_up(round_index):
            return super().offers(state, round_index, step, neighbor, select)
        masses, losses = state.masses, state.relayed_losses
        return tuple(
            Offer(slot, state.sample_count, masses[slot], Numbers.of(losses[slot]))
            for slot in range(self.slots)
            if masses[slot] >= DEFAULTS.weight_min
        )

    @override
    def tells(self, state: DfcaStateT, round_index: int, step: int) -> Numbers:
        """Return what compares the peers while a cluster is seeded; else nothing."""
        seeding = self.seeding(round_index)
        return seeding.tells(state, step) if seeding else NO_NUMBERS

    @override
    def rejects_pass(self, state: DfcaStateT, message: Pass) -> Refusal | None:
        """Refuse numbers, but those that compare the peers while a cluster is seeded."""
        seeding = self.seeding(message.round_index)
        return seeding.rejects_pass(message) if seeding else super().rejects_pass(state, message)

    @override
    def rejects(self, state: DfcaStateT, header: ModelHeader, select: Select | None) -> Refusal | None:
        """Refuse unknown slots, masses above the number of peers, and relayed losses above `LOSS_MAX`."""
        rejection = super().rejects(state, header, select)
        if rejection is None and (seeding := self.seeding(header.round_index)):
            return seeding.rejects(header)
        if rejection is None and self.warming_up(header.round_index):
            if not 0 < header.mass <= len(self.graph.nodes):
                problem = (
                    f"mass: expected above 0, up to the number of peers, {len(self.graph.nodes)}, got {header.mass}"
                )
                return Refusal(RefusalCode.WEIGHT_OUT_OF_RANGE, problem)
            if len(header.numbers) != 1 or not abs(header.numbers[0]) <= LOSS_MAX:
                problem = f"relayed model: expected one loss of at most {LOSS_MAX:g}, got {header.numbers}"
                return Refusal(RefusalCode.MALFORMED, problem)
        return rejection

    @override
    def targets(self, state: DfcaStateT, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold into the header's cluster: with weight 1; when relaying, Metropolis weight times mass; a seed's model once."""
        if self.seeding(header.round_index) and header.slot == header.round_index:
            return None if state.holds else (Target(header.slot, 1.0),)
        if self.warming_up(header.round_index):
            return (Target(header.slot, self.metropolis(header.sender) * header.mass),)
        return super().targets(state, header)

    # ---- work ---------------------------------------------------------------------------------------------------

    @override
    def assign(self, workspace: Workspace[DfcaStateT]) -> DfcaStateT:
        state = workspace.state
        if seeding := self.seeding(workspace.round_index):
            state = seeding.begin(workspace, active=True)
            if not seeding.complete(state):
                return state
        if state.cluster_index is None or workspace.private:
            state = self.nearest(workspace, state, self.clusters)
        if not self.warming_up(workspace.round_index):
            return replace(state, trained=(state.cluster_index or 0,))
        if self.options.split_empty:
            state = self._split(workspace, state)
        return self._relaying(state)

    def _relaying(self, state: DfcaStateT) -> DfcaStateT:
        """Return the state with mass 1 in the chosen cluster, which trains, and none in the others."""
        cluster = state.cluster_index or 0
        own = 0.0 if self.manifest.privacy.is_on else float(np.clip(state.losses[cluster], -LOSS_MAX, LOSS_MAX))
        return replace(
            state,
            trained=(cluster,),
            masses=tuple(1.0 if slot == cluster else 0.0 for slot in range(self.slots)),
            losses_before=state.losses,
            relayed_losses=tuple(own if slot == cluster else 0.0 for slot in range(self.slots)),
        )

    @override
    def sit_out(self, workspace: Workspace[DfcaStateT]) -> DfcaStateT:
        """Train nothing; when relaying, hold mass 0 in every cluster."""
        if seeding := self.seeding(workspace.round_index):
            return seeding.begin(workspace, active=False)
        state = super().sit_out(workspace)
        if not self.warming_up(workspace.round_index):
            return state
        none = (0.0,) * self.slots
        return replace(state, masses=none, relayed_losses=none, losses_before=state.losses or none)

    @override
    def train(self, workspace: Workspace[DfcaStateT]) -> Fields:
        """Train the chosen cluster; while one is seeded, its first model, and compare it with the others."""
        if seeding := self.seeds_now(workspace):
            return training_fields([seeding.train(workspace, self.fold(workspace))])
        return super().train(workspace)

    def seeds_now(self, workspace: Workspace[DfcaStateT]) -> Seeding | None:
        """Return what seeds a cluster, if this peer trains a first model in this round."""
        seeding, trained = self.seeding(workspace.round_index), workspace.state.trained
        return seeding if workspace.round_index in trained else None

    @property
    def held_out(self) -> float:
        """The share of the training samples that `fold` holds out, without validation data."""
        return HELD_OUT

    def fold(self, workspace: Workspace[DfcaStateT]) -> Fold:
        """Return the samples that compare models while clusters are seeded, and those that train then."""
        draw = generator(self.manifest.seed, "held_out", self.peer_id)
        return share_held_out(workspace.learner, self.held_out, draw)

    @override
    def deferred_slots(self, state: DfcaStateT, round_index: int) -> frozenset[int]:
        """Return all slots when relaying or seeding, as `end_step` needs what came in a step; else as `Algorithm` does."""
        if self.warming_up(round_index) or self.seeding(round_index):
            return frozenset(range(self.slots))
        return super().deferred_slots(state, round_index)

    @override
    def end_step(self, workspace: Workspace[DfcaStateT]) -> DfcaStateT:
        """Mix masses and models, w the Metropolis weights: m <- sum w m, theta <- (sum w m theta) / m."""
        if seeding := self.seeding(workspace.round_index):
            return seeding.end_step(workspace)
        state = workspace.state
        own_share = 1.0 - sum(self.metropolis(neighbor) for neighbor in workspace.present)
        masses, losses = list(state.masses), list(state.relayed_losses)
        for slot in range(self.slots):
            own = own_share * masses[slot]
            total = own + workspace.models.deferred_weight(slot)
            relayed = [
                (self.metropolis(arrival.header.sender) * arrival.header.mass, arrival.header.numbers[0])
                for arrival in workspace.arrivals
                if arrival.header.slot == slot and arrival.header.numbers  # in async pace, some are of later rounds
            ]
            weight = own + sum(share for share, _ in relayed)
            if weight > 0:
                losses[slot] = (own * losses[slot] + sum(share * loss for share, loss in relayed)) / weight
            workspace.models.merge(slot, own)
            masses[slot] = total
        return replace(state, masses=tuple(masses), relayed_losses=tuple(losses))

    @override
    def close(self, workspace: Workspace[DfcaStateT]) -> DfcaStateT:
        if seeding := self.seeding(workspace.round_index):
            workspace.state = seeding.close(workspace)
            self.merge(workspace)
            known = range(workspace.round_index + 1)
            return seeding.placed(self.nearest(workspace, workspace.state, known), len(known))
        if self.warming_up(workspace.round_index) and workspace.state.masses:
            return self.reassigned(workspace, self.end_step(workspace), self.clusters)
        return super().close(workspace)

    @override
    def evaluate(self, workspace: Workspace[DfcaStateT]) -> Fields:
        """Return the metrics of the cluster's model, and the peers whose models seeded the clusters."""
        shown = self.shown_seeds(workspace)
        return super().evaluate(workspace) | ({"state": shown} if shown else {})

    def shown_seeds(self, workspace: Workspace[DfcaStateT]) -> Fields:
        """Return what the history says of the seeds."""
        return {"seeds": list(workspace.state.seeds)} if workspace.state.seeds else {}

    @override
    def nearest(self, workspace: Workspace[DfcaStateT], state: DfcaStateT, clusters: Sequence[int]) -> DfcaStateT:
        """Return a state with the cluster of lowest loss, among those that are not known to be empty, and their losses."""
        seeds = workspace.state.seeds
        candidates = [slot for slot in clusters if slot >= len(seeds) or seeds[slot] is not EMPTY]
        losses = self.losses(workspace, candidates)
        return replace(state, cluster_index=candidates[int(np.argmin(losses))], losses=tuple(losses))

    def _split(self, workspace: Workspace[DfcaStateT], state: DfcaStateT) -> DfcaStateT:
        """In rounds 2, 4, ...: copy the cluster of most mass over one without mass; its peers of high loss train the copy.

        High is above the gossiped mean. That is a mean of losses before the last round's training, so this peer's loss of that
        time is compared.
        """
        masses = [state.masses[slot] for slot in self.clusters] if state.masses else [1.0]
        if workspace.round_index < 2 or workspace.round_index % 2 or min(masses) > 0:
            return state
        empty, heaviest = int(np.argmin(masses)), int(np.argmax(masses))
        workspace.models.replace(empty, workspace.models.model(heaviest).copy())
        losses = list(state.losses)
        losses[empty] = losses[heaviest]
        before = state.losses_before[heaviest]
        moves = state.cluster_index == heaviest and before > state.relayed_losses[heaviest]
        return replace(state, losses=tuple(losses), cluster_index=empty if moves else state.cluster_index)

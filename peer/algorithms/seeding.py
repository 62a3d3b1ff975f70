"""The seeded start of clusters: the first model of each cluster is that of a peer which the earlier ones fit worst.

Round r < k seeds cluster r. Every peer trains the first model of cluster r, without a share H_i of its samples D_i. The peer with
the largest gain gives its model:

    gain_i = min_{j < r} loss(theta_j, D_i) - loss(trained_i, D_i)        round 0: a number drawn by the seed of the run

D steps, D the graph's diameter, carry (gain, peer, clear) and no model; each peer keeps the largest gain and its peer. In D more
steps the model of that peer goes from neighbor to neighbor. So the clusters mean the same everywhere, on a sparse graph too, for
as many bytes as rounds of plain DFCA. A peer that the model does not reach, because of deaths, keeps its own.

k may be larger than the number of groups. ``clear`` is 1 if at some peer the loss over H_i falls by more than sqrt(2 ln N)
standard errors of its mean, and more than 2: the largest of N normal numbers is about as large. If it does so at no peer, all
groups have a cluster: cluster r and those after it stay empty, and the remaining rounds of the start are like later rounds,
with models in the last step.

Source: OURS, after the farthest-first traversal of Teofilo F. Gonzalez, "Clustering to minimize the maximum intercluster
distance", 1985.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from coordinator_free_bootstrap.errors import ConfigError, Refusal, RefusalCode
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.ensemble import ERRORS, clearly_above
from peer.algorithms.held_out import Fold
from peer.algorithms.learner import TrainStats
from peer.algorithms.saved_state import array
from peer.algorithms.sketches import Ids, Sketches
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.decisions import AlgorithmState, Offer
from peer.core.messages import NO_NUMBERS, ModelHeader, Numbers, Pass

UNREACHED = -1  # in SeedingState.seeds: the model of the chosen peer did not arrive
EMPTY = None  # in SeedingState.seeds: no peer had a clear gain, so the cluster has no seed
HELD_OUT = (
    0.25  # share of the samples that compare models while clusters are seeded, without validation data; then they train
)


@dataclass(frozen=True)
class SeedingState(AlgorithmState):
    """What a peer knows of the start.

    Attributes:
        seeds: the peer that gave the model of each cluster so far, `UNREACHED` or `EMPTY`.
        best: of this round: the largest gain that the peer knows, whose it is, and 1 if any known gain is clear, else 0.
        sketch_ids, sketches: with groups: the first updates that this peer knows, int64 [n] and float32 [n, q].
        middles: with groups: the peer in the middle of each group, the largest group first; (): not known.
        group: with groups: that of this peer.
        holds: of this round: the peer has the model of the cluster.
        sends: of this round: it offers the model in the next step.
    """

    seeds: tuple[int | None, ...] = ()
    best: tuple[float, int, int] | None = None
    sketch_ids: Ids = array(np.int64, 1)
    sketches: Sketches = array(np.float32, 2)
    middles: tuple[int, ...] = ()
    group: int | None = None
    holds: bool = False
    sends: bool = False


StateT = TypeVar("StateT", bound=SeedingState)


def obstacle_to_seeds(manifest: Manifest) -> str | None:
    """Return what keeps a run from seeding its clusters, with the key and what is allowed; None: nothing."""
    for key, needed in (("pace", "lockstep"), ("edges", "all"), ("dynamic_edges", 0.0)):
        found = getattr(manifest, key)
        if found != needed:
            return (
                f"run.{key}: expected {needed!r} with options.initialization 'seeds' or 'groups', whose numbers must reach all "
                f"peers in a round, got {found!r}. Change it, or set initialization 'global' or 'local'."
            )
    if manifest.privacy.is_on:
        return (
            "run.privacy.clip_norm: expected null with options.initialization 'seeds' or 'groups', which compare samples, got "
            f"{manifest.privacy.clip_norm:g}. Set initialization 'global' or 'local'."
        )
    if manifest.rounds <= manifest.clusters:
        return (
            f"run.rounds: expected {manifest.clusters + 1} or more with options.initialization 'seeds' or "
            f"'groups' and {manifest.clusters} clusters, whose start takes a round for each cluster, got {manifest.rounds}"
        )
    return None


class Seeding:
    """The decisions and the tensor work of the rounds that seed the clusters.

    Args:
        manifest: ``clusters`` is k.
        epochs: how long a peer trains the first model of a cluster.
        peer_id: this peer.
        graph: all peers.

    Raises:
        ConfigError: the pace is not lockstep, an edge may be down, or no round is left after the start.
    """

    def __init__(self, manifest: Manifest, epochs: int, peer_id: int, graph: Graph) -> None:
        self.epochs, self.peer_id, self.graph, self.seed = epochs, peer_id, graph, manifest.seed
        self.clusters, self.distance = manifest.clusters, graph.diameter_bound
        self.errors = max(ERRORS, math.sqrt(2 * math.log(len(graph.nodes))))
        if obstacle := obstacle_to_seeds(manifest):
            raise ConfigError(obstacle)

    def covers(self, round_index: int) -> bool:
        """Return whether a round seeds a cluster."""
        return round_index < self.clusters

    @property
    def steps(self) -> int:
        """The exchange steps of such a round: the graph's diameter for the numbers, as many for the model; at least 2."""
        return 2 * max(1, self.distance)

    def comparing(self, step: int) -> bool:
        """Return whether a step carries numbers, and no model."""
        return 2 * step < self.steps

    # ---- decisions --------------------------------------------------------------------------------------------------

    def tells(self, state: SeedingState, step: int) -> Numbers:
        """Return the largest gain that this peer knows, whose it is, and whether any known gain is clear."""
        return Numbers.of(state.best) if state.best and self.comparing(step) else NO_NUMBERS

    def rejects_pass(self, message: Pass) -> Refusal | None:
        """Refuse numbers that are not a gain, a peer and 0 or 1, and numbers in a step that carries the model."""
        numbers = message.numbers
        usual = len(numbers) == 3 and numbers[1] in self.graph and numbers[2] in (0, 1)
        if not numbers or (self.comparing(message.step) and usual):
            return None
        expected = "a gain, a peer, and 0 or 1, in the first half of the steps of a round that seeds a cluster"
        return Refusal(RefusalCode.MALFORMED, f"numbers: expected {expected}, got {numbers} in step {message.step}")

    def offers(self, state: SeedingState, round_index: int, step: int) -> tuple[Offer, ...]:
        """Offer the chosen model in the step after this peer got it; in the last step the other models that it trained."""
        if self.comparing(step):
            return ()
        slots = [round_index] if state.sends else []
        if step + 1 == self.steps:
            slots += [slot for slot in state.trained if slot != round_index]
        return tuple(Offer(slot, state.sample_count) for slot in slots)

    def rejects(self, header: ModelHeader) -> Refusal | None:
        """Refuse a model in a step for numbers, and before the last step one of another cluster than the round's."""
        if self.comparing(header.step):
            return Refusal(RefusalCode.MALFORMED, f"step {header.step}: expected numbers only, got a model")
        if header.slot != header.round_index and header.step + 1 < self.steps:
            problem = (
                f"slot: expected {header.round_index} before the last step ({self.steps - 1}) of the round that seeds this "
                f"cluster, got {header.slot} in step {header.step}"
            )
            return Refusal(RefusalCode.SLOT_OUT_OF_RANGE, problem)
        return None

    # ---- work -------------------------------------------------------------------------------------------------------

    def complete(self, state: SeedingState) -> bool:
        """Return whether all groups have a cluster, as far as this peer knows."""
        return EMPTY in state.seeds

    def begin(self, workspace: Workspace[StateT], active: bool) -> StateT:
        """Return the state of a new round; a peer that sits it out passes numbers and the model on."""
        trained = (workspace.round_index,) if active else ()
        return replace(workspace.state, trained=trained, best=None, holds=False, sends=False)

    def train(self, workspace: Workspace[SeedingState], fold: Fold) -> TrainStats:
        """Train the first model of the round's cluster, and compare it.

        Args:
            workspace: the peer's tensors; changed.
            fold: the samples that compare the models, and those that train.
        """
        r, start = workspace.round_index, workspace.models.model(workspace.round_index)
        plan = replace(workspace.slot_plan(r), epochs=self.epochs, unit="epoch", indices=fold.rest)
        trained, stats = workspace.fit(start, plan)
        self.compare(workspace, fold, start, trained)
        workspace.models.replace(r, trained)
        return stats

    def compare(self, workspace: Workspace[SeedingState], fold: Fold, start: Vector, trained: Vector) -> None:
        """Set the state's ``best`` to the gain of this peer's first model of the round's cluster."""
        gain, clear = self._gain(workspace, fold, trained) if workspace.round_index else self._drawn()
        if math.isfinite(gain):
            workspace.state = replace(workspace.state, best=(gain, self.peer_id, int(clear)))

    def _drawn(self) -> tuple[float, bool]:
        return float(generator(self.seed, "first seed", self.peer_id).random()), True

    def _gain(self, workspace: Workspace, fold: Fold, trained: Vector) -> tuple[float, bool]:
        """Return by how much this peer's first model is better than the best cluster so far, and whether that is clear."""
        learner, models, r = workspace.learner, workspace.models, workspace.round_index
        losses = [learner.mean_loss(models.model(slot)) for slot in range(r)]
        nearest = min(range(r), key=losses.__getitem__)
        before, after = (
            learner.sample_losses(model, fold.part)[fold.held_out] for model in (models.model(nearest), trained)
        )
        return losses[nearest] - learner.mean_loss(trained), clearly_above(before, after, self.errors)

    def end_step(self, workspace: Workspace[StateT]) -> StateT:
        """Keep the numbers, or the model that has come; after the last numbers this peer knows whether it gives its model."""
        state, r = workspace.state, workspace.round_index
        if self.comparing(workspace.step):
            state = self.compared(workspace)
            if not self.comparing(workspace.step + 1):
                chosen = state.best is not None and self.seeded(state) and state.best[1] == self.peer_id
                return replace(state, holds=chosen, sends=chosen)
        elif state.holds:
            return replace(state, sends=False)
        elif workspace.models.deferred_weight(r) > 0:
            workspace.models.merge(r, 0.0)
            return replace(state, holds=True, sends=True)
        return state

    def close(self, workspace: Workspace[StateT]) -> StateT:
        """End the last step, and note whose model the cluster has."""
        state, r = self.end_step(workspace), workspace.round_index
        known = (*state.seeds, *[UNREACHED] * r)[:r]  # a peer that caught up was not there in all rounds
        seed = UNREACHED if self.seeded(state) or r == 0 else EMPTY
        if state.holds and state.best is not None:
            seed = state.best[1]
        return replace(state, best=None, holds=False, sends=False, seeds=(*known, seed))

    def compared(self, workspace: Workspace[StateT]) -> StateT:
        """Keep the largest gain."""
        state = workspace.state
        known = [best for best in (state.best, *map(tuple, workspace.neighbor_numbers.values())) if best]
        if known:
            gain, peer, _ = max(known)
            state = replace(state, best=(gain, int(peer), int(max(best[2] for best in known))))
        return state

    def seeded(self, state: SeedingState) -> bool:
        """Return whether the round's cluster gets a seed: a gain is clear somewhere."""
        return bool(state.best and state.best[2])

    def placed(self, state: StateT, clusters: int) -> StateT:
        """Return the state with what the start says of this peer's cluster, once there are ``clusters`` of them: nothing."""
        return state

"""The seeded start of clusters: the first model of each cluster is that of a peer which the earlier ones fit worst.

Round r < k seeds cluster r. Every peer trains the first model of cluster r; the one with the largest gain gives its model:

    gain_i = min_{j < r} loss(theta_j, D_i) - loss(trained_i, D_i)        round 0: a number drawn by the seed of the run

D steps, D the graph's diameter, carry (gain, peer) and no model; each peer keeps the largest pair. In D more steps the model of
that peer goes from neighbor to neighbor. So the clusters mean the same everywhere, on a sparse graph too, for as many bytes as
rounds of plain DFCA. A peer that the model does not reach, because of deaths, keeps its own.

Source: OURS, after the farthest-first traversal of Teofilo F. Gonzalez, "Clustering to minimize the maximum intercluster
distance", 1985.
"""

from __future__ import annotations

import math
from typing import Any

from coordinator_free_bootstrap.errors import ConfigError, Refusal
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.base import Workspace, training_fields
from peer.core.decisions import AlgorithmState, Offer, Rejection
from peer.core.effects import Target
from peer.core.messages import ModelHeader, Pass

ROUND_STATE = ("best", "holds", "sends")  # keys of the state that hold for one round only
UNREACHED = -1  # in state["seeds"]: the model of the chosen peer did not arrive


class Seeding:
    """The decisions and the tensor work of the rounds that seed the clusters.

    Args:
        manifest: ``clusters`` is k.
        epochs: how long a peer trains the first model of a cluster.
        peer_id: this peer.
        graph: all peers.

    Raises:
        ConfigError: the pace is not lockstep, edges are dynamic, or no round is left after the start.
    """

    def __init__(self, manifest: Manifest, epochs: int, peer_id: int, graph: Graph) -> None:
        self.epochs, self.peer_id, self.graph, self.seed = epochs, peer_id, graph, manifest.seed
        self.clusters, self.distance = manifest.clusters, graph.diameter_bound
        for key, found, needed in (("pace", manifest.pace, "lockstep"), ("dynamic_edges", manifest.dynamic_edges, 0.0)):
            if found != needed:
                raise ConfigError(
                    f"run.{key}: found {found!r} with options.initialization 'seeds', whose numbers must reach all peers in a "
                    f"round; allowed: {needed!r}, or initialization 'global' or 'local'"
                )
        if manifest.rounds <= self.clusters:
            raise ConfigError(
                f"run.rounds: found {manifest.rounds} with options.initialization 'seeds' and {self.clusters} clusters, whose "
                f"start takes a round for each cluster; allowed: {self.clusters + 1} or more"
            )

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

    def tells(self, state: AlgorithmState, step: int) -> tuple[float, ...]:
        """Return the largest gain that this peer knows, and whose it is."""
        best = state.get("best")
        return (float(best[0]), float(best[1])) if best and self.comparing(step) else ()

    def rejects_pass(self, message: Pass) -> Rejection | None:
        """Refuse numbers that are not a gain and a peer, and numbers in a step that carries the model."""
        numbers = message.scalars
        if not numbers or (self.comparing(message.step) and len(numbers) == 2 and numbers[1] in self.graph):
            return None
        found = f"{numbers} in step {message.step} of a round that seeds a cluster"
        return Rejection(Refusal.MALFORMED, f"{found}; allowed are a gain and a peer in the first half of the steps")

    def offers(self, state: AlgorithmState, round_index: int, step: int) -> tuple[Offer, ...]:
        """Offer the chosen model in the step after this peer got it."""
        if self.comparing(step) or not state.get("sends"):
            return ()
        return (Offer(round_index, state["sample_count"]),)

    def rejects(self, header: ModelHeader) -> Rejection | None:
        """Refuse a model of another cluster than the round's, or in a step for numbers."""
        if header.slot != header.round_index:
            return Rejection(
                Refusal.SLOT_OUT_OF_RANGE, f"slot {header.slot} in the round that seeds cluster {header.round_index}"
            )
        if self.comparing(header.step):
            return Rejection(Refusal.MALFORMED, f"a model in step {header.step}, which carries numbers only")
        return None

    def targets(self, state: AlgorithmState, header: ModelHeader) -> tuple[Target, ...] | None:
        """Take the model, unless this peer has it."""
        return None if state.get("holds") else (Target(header.slot, 1.0),)

    # ---- work -------------------------------------------------------------------------------------------------------

    def begin(self, workspace: Workspace, active: bool) -> AlgorithmState:
        """Return the state of a new round; a peer that sits it out passes numbers and the model on."""
        trained = [workspace.round_index] if active else []
        return {**workspace.state, "trained": trained, "best": None, "holds": False, "sends": False}

    def train(self, workspace: Workspace) -> dict[str, Any]:
        """Train the first model of the round's cluster, and set state["best"] to this peer's gain; return metrics."""
        r, learner, models = workspace.round_index, workspace.learner, workspace.models
        if not workspace.state["trained"]:
            return {}
        model, stats = workspace.fit(models.model(r), workspace.seed("train", r), epochs=self.epochs)
        models.replace(r, model)
        if r == 0:
            gain = float(generator(self.seed, "first seed", self.peer_id).random())
        else:
            others = min(learner.mean_loss(models.model(slot)) for slot in range(r))
            gain = others - learner.mean_loss(models.model(r))
        if math.isfinite(gain):
            workspace.state = {**workspace.state, "best": [gain, self.peer_id]}
        return training_fields([stats])

    def end_step(self, workspace: Workspace) -> AlgorithmState:
        """Keep the largest gain, or the model that has come."""
        state, r = dict(workspace.state), workspace.round_index
        if self.comparing(workspace.step):
            told = [[numbers[0], int(numbers[1])] for numbers in workspace.told.values() if numbers]
            state["best"] = max([pair for pair in (state["best"], *told) if pair], default=None)
            if not self.comparing(workspace.step + 1):
                state["holds"] = state["sends"] = bool(state["best"]) and state["best"][1] == self.peer_id
        elif state["holds"]:
            state["sends"] = False
        elif workspace.models.deferred_weight(r) > 0:
            workspace.models.merge(r, 0.0)
            state["holds"] = state["sends"] = True
        return state

    def close(self, workspace: Workspace) -> AlgorithmState:
        """End the last step; state["seeds"] has the peer that gave the model of each cluster so far."""
        state, r = self.end_step(workspace), workspace.round_index
        known = [*state.get("seeds", ()), *[UNREACHED] * r][:r]  # a peer that caught up was not there in all rounds
        seeds = [*known, state["best"][1] if state["holds"] else UNREACHED]
        return {key: value for key, value in state.items() if key not in ROUND_STATE} | {"seeds": seeds}

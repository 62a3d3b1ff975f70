"""The start of clusters by groups of peers whose first updates have like directions.

As `peer.algorithms.seeding`, but for who gives the first models. In round 0 every peer trains the same first model. The D steps
for numbers carry sketches of these updates (`peer.algorithms.sketches`), each with its peer's id, in place of gains. So all peers
of a connected graph know the same sketches and divide them in the same way (`peer.algorithms.division`): k-means on centered
sketches of length 1, with as many groups, up to k, as a rotation test finds. Round r seeds cluster r with the model of the peer
in the middle of group r; a cluster without a group stays empty. In round k each peer trains the cluster of its group.

A Byzantine neighbor can relay a false sketch of a peer. That puts peers into a wrong group until the end of round k, when each
takes the cluster that fits its samples best.

Source: OURS, after Felix Sattler, Klaus-Robert Müller and Wojciech Samek, "Clustered Federated Learning", 2019, arXiv 1910.01991,
which divides clients by the directions of their updates, with a server.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError, Refusal, RefusalCode
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.division import grouped
from peer.algorithms.held_out import Fold
from peer.algorithms.seeding import Seeding, SeedingState, StateT
from peer.algorithms.sketches import merge, refuse_rows, rows, sketch
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.messages import NO_NUMBERS, NUMBERS_MAX, Numbers, Pass

SKETCH_SIZE = 128


class Grouping(Seeding):
    """The decisions and the work of the rounds that seed the clusters with the peers in the middle of groups.

    Raises:
        ConfigError: as `Seeding`, or there are too many peers for their sketches to travel in one message.
    """

    def __init__(self, manifest: Manifest, epochs: int, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, epochs, peer_id, graph)
        if len(graph.nodes) > (most := NUMBERS_MAX // (1 + SKETCH_SIZE)):
            raise ConfigError(
                f"run.options.initialization: expected at most {most} peers with 'groups', which sends a sketch of each, got "
                f"{len(graph.nodes)}. Set 'seeds'."
            )

    # ---- decisions --------------------------------------------------------------------------------------------------

    @override
    def tells(self, state: SeedingState, step: int) -> Numbers:
        """Return the sketches that this peer knows, each after the id of its peer, until the groups are known."""
        if state.middles or not self.comparing(step) or not len(state.sketch_ids):
            return NO_NUMBERS
        return Numbers.of(np.column_stack([state.sketch_ids, state.sketches]))

    @override
    def rejects_pass(self, message: Pass) -> Refusal | None:
        """Refuse numbers that are not sketches of some peers, and numbers in another step than those of round 0 for them."""
        if not message.numbers:
            return None
        if message.round_index > 0 or not self.comparing(message.step):
            expected = "numbers: expected none but in the first half of the steps of round 0"
            return Refusal(RefusalCode.MALFORMED, f"{expected}, got {len(message.numbers)} in step {message.step}")
        count = max(1, len(message.numbers) // (1 + SKETCH_SIZE))
        if wrong := refuse_rows(message.numbers.array, count, 1 + SKETCH_SIZE):
            return wrong
        ids = message.numbers.array[:: 1 + SKETCH_SIZE].tolist()
        if sorted(set(ids)) != ids or not all(peer in self.graph for peer in ids):
            problem = f"sketches: expected one of each of some peers of the graph, ascending, got those of {ids}"
            return Refusal(RefusalCode.MALFORMED, problem)
        return None

    # ---- work -------------------------------------------------------------------------------------------------------

    @override
    def begin(self, workspace: Workspace[StateT], active: bool) -> StateT:
        """Return the state of a new round: after round 0 the peer that gives its model is known."""
        state, r = super().begin(workspace, active), workspace.round_index
        return replace(state, best=self._giver(state, r)) if r else state

    def _giver(self, state: SeedingState, cluster: int) -> tuple[float, int, int] | None:
        return (0.0, state.middles[cluster], 1) if cluster < len(state.middles) else None

    @override
    def compare(self, workspace: Workspace[SeedingState], fold: Fold, start: Vector, trained: Vector) -> None:
        """Keep the sketch of this peer's first update."""
        if workspace.round_index:
            return
        part = workspace.models.part
        made = sketch([part.of(trained)], part.of(start), SKETCH_SIZE, self.seed)
        if np.isfinite(made).all():
            own = np.array([self.peer_id], np.int64)
            workspace.state = replace(workspace.state, sketch_ids=own, sketches=made)

    @override
    def compared(self, workspace: Workspace[StateT]) -> StateT:
        """Keep the sketches that have come; in the last of these steps, divide the peers."""
        state = workspace.state
        if workspace.round_index:
            return state
        ids, known = state.sketch_ids, state.sketches.reshape(-1, SKETCH_SIZE)
        for _, numbers in sorted(workspace.neighbor_numbers.items()):
            if len(numbers):
                table = rows(numbers.array, len(numbers) // (1 + SKETCH_SIZE))
                other = numbers.array[:: 1 + SKETCH_SIZE].astype(np.int64)
                ids, known = merge(ids, known, other, table[:, 1:])
        state = replace(state, sketch_ids=ids, sketches=known)
        if self.comparing(workspace.step + 1) or not len(ids):
            return state
        group, middles = grouped(ids, known, self.clusters, self.seed)
        state = replace(state, middles=middles, group=group.get(self.peer_id), sketch_ids=ids[:0], sketches=known[:0])
        return replace(state, best=self._giver(state, 0))

    @override
    def seeded(self, state: SeedingState) -> bool:
        """Return whether the round's cluster has a group, as far as this peer knows."""
        return not state.middles or state.best is not None

    @override
    def placed(self, state: StateT, clusters: int) -> StateT:
        """Return the state with the cluster of this peer's group, once all clusters have their first models."""
        return state if state.group is None or clusters < self.clusters else replace(state, cluster_index=state.group)

"""Random gossip: the algorithm of this package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from peer import Algorithm, AlgorithmState, Offer, Select, Workspace, generator, training_fields


class GossipOptions(BaseModel):
    """``run.options`` of algorithm ``gossip``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partners: int = Field(1, ge=1, description="neighbors that get the model in a round")


@dataclass(frozen=True)
class GossipState(AlgorithmState):
    """What a peer knows from round to round, also after a restart: in how many rounds it has trained."""

    trainings: int = 0


class Gossip(Algorithm[GossipOptions, GossipState]):
    """Train one model, send it to a few neighbors drawn anew in each round, and average what arrives.

    The draw depends on (seed, peer, round) only, so that every run gives the same models.
    """

    name = "gossip"
    clustered = False  # one model, whatever ``run.clusters`` says
    Options = GossipOptions
    State = GossipState

    def partners(self, round_index: int) -> list[int]:
        """Return the neighbors that get this peer's model in a round."""
        neighbors = self.graph.neighbors(self.peer_id)
        draw = generator(self.manifest.seed, "gossip", self.peer_id, round_index)
        return [int(n) for n in draw.choice(neighbors, min(self.options.partners, len(neighbors)), replace=False)]

    def offers(
        self, state: GossipState, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer the model to the partners and nothing to the others, which get a pass."""
        if neighbor not in self.partners(round_index):
            return ()
        return super().offers(state, round_index, step, neighbor, select)

    def train(self, workspace: Workspace[GossipState]) -> dict[str, Any]:
        """Train at half the rate from the second training on."""
        state = workspace.state
        plan = workspace.slot_plan(0)
        if state.trainings:
            plan = replace(plan, learning_rate=plan.learning_rate / 2)
        stats = workspace.fit_slot(0, plan)
        workspace.state = replace(state, trainings=state.trainings + 1)
        return training_fields([stats])

"""Random gossip: the algorithm of this package."""

from __future__ import annotations

from peer import Algorithm, AlgorithmState, Manifest, Offer, Select, generator


class Gossip(Algorithm):
    """Train one model, send it to one neighbor drawn anew in each round, and average what arrives.

    The draw depends on (seed, peer, round) only, so that every run gives the same models.
    """

    name = "gossip"

    @classmethod
    def slot_count(cls, manifest: Manifest) -> int:
        """Return 1: one model, whatever ``run.clusters`` says."""
        return 1

    def partner(self, round_index: int) -> int:
        """Return the neighbor that gets this peer's model in a round."""
        draw = generator(self.manifest.seed, "gossip", self.peer_id, round_index)
        return int(draw.choice(self.graph.neighbors(self.peer_id)))

    def offers(
        self, state: AlgorithmState, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Offer the model to the partner and nothing to the others, which get a pass."""
        if neighbor != self.partner(round_index):
            return ()
        return super().offers(state, round_index, step, neighbor, select)

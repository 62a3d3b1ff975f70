"""Training alone: no messages. The floor that every exchange has to beat (specification, section 6.1)."""

from __future__ import annotations

from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm


class Local(Algorithm):
    """tau epochs a round on the own samples."""

    name = "local"

    @classmethod
    def slot_count(cls, manifest: Manifest) -> int:
        """One model, whatever ``clusters`` says."""
        return 1

    def steps(self, round_index: int) -> int:
        """Nothing is exchanged."""
        return 0

"""Local training without exchange: the baseline of all other algorithms."""

from __future__ import annotations

from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm


class Local(Algorithm):
    """Local epochs on the own samples in each round; no model is sent."""

    name = "local"

    @classmethod
    def slot_count(cls, manifest: Manifest) -> int:
        """Return 1: ``run.clusters`` has no effect."""
        return 1

    def steps(self, round_index: int) -> int:
        """Return 0: no exchange step."""
        return 0

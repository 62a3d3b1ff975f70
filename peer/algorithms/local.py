"""Local training without exchange: the baseline of all other algorithms."""

from __future__ import annotations

from typing_extensions import override

from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm
from peer.algorithms.private import SampleUse


class Local(Algorithm):
    """Local epochs on the own samples in each round; no model is sent."""

    name = "local"
    clustered = False

    @classmethod
    @override
    def exchanges(cls, manifest: Manifest) -> bool:
        return False

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return one training."""
        return SampleUse(local=self.manifest.local_epochs)

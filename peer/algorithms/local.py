"""Local training without exchange: the baseline of all other algorithms."""

from __future__ import annotations

from peer.algorithms.base import Algorithm


class Local(Algorithm):
    """Local epochs on the own samples in each round; no model is sent."""

    name = "local"
    clustered = False

    def steps(self, round_index: int) -> int:
        """Return 0: no exchange step."""
        return 0

"""Local training without exchange: the baseline of all other algorithms."""

from __future__ import annotations

from typing_extensions import override

from peer.algorithms.base import Algorithm


class Local(Algorithm):
    """Local epochs on the own samples in each round; no model is sent."""

    name = "local"
    clustered = False

    @override
    def steps(self, round_index: int) -> int:
        """Return 0: no exchange step."""
        return 0

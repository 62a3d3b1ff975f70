"""What a peer counts, and how much of it belongs to one record of the history. Pure."""

from __future__ import annotations

from collections import Counter

COUNTED = (
    "models_sent",
    "models_folded",
    "duplicates_dropped",
    "stale_dropped",
    "payload_bytes_sent",
    "control_messages_sent",
    "selections_sent",
    "passes_sent",
    "sketch_bytes_sent",
    "models_unused",
    "models_rejected",
    "rounds_alone",
)


class Totals:
    """The differences of a peer's counters from record to record.

    Args:
        totals: of all incarnations; only read.
    """

    def __init__(self, totals: Counter[str]) -> None:
        self._totals = totals
        self._before = Counter(totals)

    def since_last(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        counted = {key: self._totals[key] - self._before[key] for key in COUNTED}
        self._before = Counter(self._totals)
        return counted

"""What `peer privacy leak` has measured on the sent models of a peer, as its file says it; report and model card read it."""

from __future__ import annotations

import json
from typing import TypedDict

from coordinator_free_bootstrap.ordinary_file import text_of
from peer.store.state_dir import StateDir


class Leak(TypedDict):
    """What the models of one slot that a peer sent in a round tell; counts are of samples."""

    round_index: int
    slot: int
    auc: float
    low: float
    high: float
    train: int
    test: int


def last_leak(place: StateDir) -> Leak | None:
    """Return the largest measured leak of the last measured round of a peer; None if nothing was measured, or is not readable."""
    try:
        rows: list[Leak] = json.loads(text_of(place.leak))
        last = max(row["round_index"] for row in rows)
        return max((row for row in rows if row["round_index"] == last), key=lambda row: row["auc"])
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return None


def shown(leak: Leak) -> str:
    """Return a leak as a phrase."""
    return f"AUC {leak['auc']:.3f} ({leak['low']:.3f} to {leak['high']:.3f}) in round {leak['round_index'] + 1}"

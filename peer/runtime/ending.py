"""Whether the run that a state directory holds has ended."""

from __future__ import annotations

import json

from coordinator_free_bootstrap.ordinary_file import content_of
from peer.store.state_dir import StateDir


def is_completed(state_dir: StateDir) -> bool:
    """Return whether the summary of a state directory says that all rounds are done; False if it cannot be read."""
    try:
        summary = json.loads(content_of(state_dir.summary))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(summary, dict):
        return False
    rounds = summary.get("rounds_completed")
    return summary.get("status") == "completed" or (
        summary.get("status") == "alone" and rounds is not None and rounds == summary.get("rounds_total")
    )

"""What a run loses by waiting, and for which peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from peer.view.state.run_files import RunFiles

PASSED_ON = 0.5  # of a wait: a neighbor that waited for so long itself is late for that reason


class RoundWait(NamedTuple):
    """A peer's wait in one round."""

    seconds: float
    awaited: int | None


def waiting(run: RunFiles) -> dict[str, Any] | None:
    """Return the share of the peers' time in which they waited, and the share of that time by peer waited for; None: no rounds.

    A neighbor that waited itself passes its delay on: such a wait counts for the one that it waited for.
    """
    waits: dict[tuple[int, int], RoundWait] = {}
    spent_s = 0.0
    for peer in run.peers:
        spent_s += sum(peer.state.phase_seconds().values())
        for line in peer.round_lines:
            seconds = (line.get("seconds") or {}).get("wait") or 0.0
            waits[peer.peer_id, line["round_index"]] = RoundWait(seconds, line.get("awaited"))
    if not spent_s:
        return None
    waited_s = sum(wait.seconds for wait in waits.values())
    caused_s: defaultdict[int, float] = defaultdict(float)
    for (_, t), wait in waits.items():
        if wait.awaited is not None:
            caused_s[_cause(wait.awaited, t, wait.seconds, waits)] += wait.seconds
    ranked = sorted(caused_s, key=lambda peer_id: (-caused_s[peer_id], peer_id))
    shares = [{"peer_id": peer_id, "share": caused_s[peer_id] / waited_s} for peer_id in ranked if waited_s]
    return {"share": waited_s / spent_s, "for": shares}


def _cause(peer_id: int, round_index: int, seconds: float, waits: Mapping[tuple[int, int], RoundWait]) -> int:
    """Return the peer for which a neighbor came late: itself, or whom it waited for in that round or the one before."""
    seen = {peer_id}
    while True:
        for t in (round_index, round_index - 1):
            wait = waits.get((peer_id, t), RoundWait(0.0, None))
            if wait.awaited is not None and wait.awaited not in seen and wait.seconds >= PASSED_ON * seconds:
                peer_id, round_index = wait.awaited, t
                seen.add(peer_id)
                break
        else:
            return peer_id

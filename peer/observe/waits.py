"""Whom a peer waits for, why, and until when: from the last status that it gave to an observer."""

from __future__ import annotations

from dataclasses import dataclass

from peer.observe.peer_state import PeerState
from peer.observe.peer_status import PeerStatus


@dataclass(frozen=True)
class Wait:
    """What a peer waits for.

    Attributes:
        stage: of its run, "" if it never answered.
        neighbors: whose models are missing, or who has not accepted its models.
        reasons: one for each of them.
        until_s: seconds until the last of the suspect ones is marked dead, as of the answer; None if no limit is known.
    """

    stage: str = ""
    neighbors: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    until_s: float | None = None


def waits(peer: PeerState) -> Wait:
    """Return what a running peer waits for; nothing if it has completed a round since it answered."""
    if not peer.answer or peer.status != "running" or peer.round_at > peer.answer_at:
        return Wait()
    status = PeerStatus.model_construct(**peer.answer)
    neighbors = tuple(sorted({*status.waiting_for, *status.owed_to}))
    return Wait(status.stage.replace("_", " "), neighbors, tuple(reasons(status)), until_s(status))


def until_s(status: PeerStatus) -> float | None:
    """Return the seconds until the suspect neighbors that a peer waits for are marked dead."""
    left = [
        status.suspicion_s - (status.silent_s.get(n) or 0.0)
        for n in map(str, status.waiting_for)
        if status.neighbors.get(n) == "suspect"
    ]
    return round(max(0.0, *left), 3) if left else None


def reasons(status: PeerStatus) -> list[str]:
    """Return one reason for each neighbor that has not sent its models or not accepted ours."""
    found = []
    for n in map(str, status.waiting_for):
        text = f"models of {n}, in round {status.neighbor_rounds.get(n, '?')}"
        if status.neighbors.get(n) == "suspect":
            silent, limit = status.silent_s.get(n) or 0.0, status.suspicion_s
            text = f"models of {n}, silent for {silent:.1f} s and marked dead after {limit:g} s"
        found.append(text)
    return found + [f"{n} to accept our models" for n in status.owed_to]

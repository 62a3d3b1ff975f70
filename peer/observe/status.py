"""What a peer says of itself when asked: the answer of the Status call and the source of `peer status`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class NeighborStatus:
    """One neighbor as this peer sees it; seconds are monotonic ages, so that no two clocks are compared."""

    neighbor: int
    state: str
    incarnation: int = 0
    round_index: int = -1  # the round it said it is in; -1: never heard
    silent_s: float | None = None  # since it was last heard; None: never
    models_received: int = 0
    models_sent: int = 0
    refusals: int = 0
    pinned: bool = False  # whether its key was checked against a pin


@dataclass(frozen=True)
class PeerStatus:
    """One peer at one moment.

    Attributes:
        phase: `peer.core.messages.Phase` in words.
        activity: what the engine does now (training, exchanging, ...).
        waiting_for: neighbors whose delivery this round still needs.
        waiting_s: for how long it has been waiting; 0 when it is not.
        counters: totals of this process, with the names of history's ``round`` lines.
        problems: sentences about storage and neighbors that a person should read; [] when all is well.
    """

    peer_id: int
    incarnation: int
    phase: str
    round_index: int
    rounds_total: int
    activity: str = ""
    waiting_for: tuple[int, ...] = ()
    waiting_s: float = 0.0
    accuracy: float | None = None
    cluster_index: int | None = None
    persisted_round: int = -1
    uptime_s: float = 0.0
    neighbors: tuple[NeighborStatus, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def sentence(self) -> str:
        """Return one line for people: where it is, and what it waits for."""
        alive = sum(1 for neighbor in self.neighbors if neighbor.state == "alive")
        line = f"peer {self.peer_id} {self.phase}, round {self.round_index} of {self.rounds_total}"
        if self.activity:
            line += f", {self.activity}"
        if self.waiting_for:
            line += f", waiting {self.waiting_s:.1f} s for {', '.join(map(str, self.waiting_for))}"
        line += f"; {alive} of {len(self.neighbors)} neighbors alive"
        return line + "".join(f"; {problem}" for problem in self.problems)

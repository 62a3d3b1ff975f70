"""What the engine asks an algorithm, and nothing more: five questions about bookkeeping, none about tensors. Pure.

Answers depend only on the arguments (and on the constants given to the constructor), so that both ends of an edge, a
restarted peer and the simulator come to the same ones. The tensor work stands in `peer.algorithms.base`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from coordinator_free_bootstrap.errors import Refusal
from peer.core.effects import Target
from peer.core.messages import Announce, ModelHeader

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Offer:
    """One model for one neighbor in one exchange step."""

    slot: int
    sample_count: int = 1
    mass: float = 1.0
    scalars: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why the algorithm does not take a model or an announcement; state stays unchanged."""

    code: Refusal
    reason: str


class Decisions(Protocol):
    """The decisions of one algorithm, at one peer."""

    slots: int

    def steps(self, round_index: int) -> int:
        """Return the number of exchange steps of a round; 0: nothing is exchanged."""

    def selects(self, facts: Facts, round_index: int) -> Announce | None:
        """Return what to announce before training (sender and incarnation are filled in), or None."""

    def offers(
        self, facts: Facts, round_index: int, step: int, neighbor: int, announced: Announce | None
    ) -> tuple[Offer, ...]:
        """Return what this neighbor gets in this step. ``announced``: what it said before training, if anything."""

    def expected(self, facts: Facts, round_index: int, step: int, announced: Announce) -> int | None:
        """Return how many models will come after an announcement with ``total = -1``; None: not known yet."""

    def agrees(self, facts: Facts, round_index: int, announced: dict[int, Announce]) -> Facts:
        """Return what all announcements of a round together add to the facts until its end (sender -> announcement)."""

    def rejects_announce(self, facts: Facts, announce: Announce) -> Rejection | None:
        """Return why an announcement cannot be right; place, range and contradiction are checked already."""

    def rejects(self, facts: Facts, header: ModelHeader, announced: Announce | None) -> Rejection | None:
        """Return why a header cannot be right, before any byte of its model is read."""

    def targets(self, facts: Facts, header: ModelHeader) -> tuple[Target, ...] | None:
        """Return the slots that an arrival is folded into, with weights; (): keep it for the close; None: not wanted."""

"""What the engine asks an algorithm: decisions about bookkeeping, none about tensors. Pure.

Answers depend only on the arguments and on the constructor's constants, so that both ends of an edge, a restarted peer and
the simulation come to the same ones. The tensor work stands in `peer.algorithms.base`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordinator_free_bootstrap.errors import Refusal
from peer.core.effects import Target
from peer.core.messages import NO_NUMBERS, ModelHeader, Numbers, Pass, Select


@dataclass(frozen=True)
class AlgorithmState:
    """What an algorithm knows at one peer: decisions read it, work replaces it as a whole, checkpoints keep it.

    A subclass adds fields with defaults (`peer.algorithms.saved_state` says of which types); everyone may read these:

    Attributes:
        trained: the slots that train in this round; none if the peer sits it out.
        sample_count: as sent to neighbors.
        cluster_index: the slot of the evaluation model, where it is one of several.
        mixture: the weight of each model, where predictions or models are mixed.
    """

    trained: tuple[int, ...] = ()
    sample_count: int = 1
    cluster_index: int | None = None
    mixture: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """One model for one neighbor in one exchange step."""

    slot: int
    sample_count: int = 1
    mass: float = 1.0
    numbers: Numbers = NO_NUMBERS


class Decisions(Protocol):
    """The decisions of one algorithm at one peer."""

    slots: int
    idle_folds: bool  # a peer that sits a round out still folds arrivals

    def steps(self, round_index: int) -> int:
        """Return the number of exchange steps of a round; 0: nothing is exchanged."""

    def selects(self, state: AlgorithmState, round_index: int) -> Select | None:
        """Return what to announce before training (sender, incarnation and round are filled in), or None."""

    def asking(self, round_index: int) -> bool:
        """Return whether peers ask for the models of chosen neighbors in a round, and get no others."""

    def asks(self, state: AlgorithmState, round_index: int) -> frozenset[int]:
        """Return the neighbors whose models this peer asks for, in a round with `asking`."""

    def rejects_select(self, state: AlgorithmState, select: Select) -> Refusal | None:
        """Return why a selection cannot be right; round, range and contradiction are checked already."""

    def agrees(self, state: AlgorithmState, round_index: int, selections: dict[int, Select]) -> AlgorithmState:
        """Return the state with what all selections of a round together add to it until its end (sender -> selection)."""

    def offers(
        self, state: AlgorithmState, round_index: int, step: int, neighbor: int, select: Select | None
    ) -> tuple[Offer, ...]:
        """Return what a neighbor gets in a step; ``select`` is what it selected, if known."""

    def tells(self, state: AlgorithmState, round_index: int, step: int) -> Numbers:
        """Return the numbers that go with the pass to each neighbor that gets no model in a step."""

    def rejects_pass(self, state: AlgorithmState, message: Pass) -> Refusal | None:
        """Return why a pass cannot be right; its round and step are checked already."""

    def expected(self, state: AlgorithmState, select: Select) -> int | None:
        """Return how many models follow a neighbor's selection; None: not known yet."""

    def rejects(self, state: AlgorithmState, header: ModelHeader, select: Select | None) -> Refusal | None:
        """Return why a header cannot be right, before any byte of its model is read."""

    def targets(self, state: AlgorithmState, header: ModelHeader) -> tuple[Target, ...] | None:
        """Return the slots and weights to fold an arrival with; (): keep it until the close; None: not wanted."""

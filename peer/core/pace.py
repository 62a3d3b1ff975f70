"""What the engine asks the pace of a run: whom a step counts on, which messages count in it, when it may close. Pure.

Two classes answer, independent of each other: `peer.core.lockstep` and `peer.core.asynchronous`. What both need is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from peer.core.arrivals import Arrival
from peer.core.messages import ModelHeader, Numbers, Select
from peer.core.neighbor import Neighbor, RoundStep


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """What a pace says about a step when it closes.

    Attributes:
        present: neighbors that have delivered or passed, over an edge that is up.
        missing: neighbors of the exchange that have not; async misses none.
        unused: arrivals whose models are not folded any more.
        with_neighbors: a neighbor took part.
    """

    present: tuple[int, ...]
    missing: list[int]
    unused: list[Arrival]
    with_neighbors: bool


class Pace(Protocol):
    """One pace of one peer; it reads the shared state.

    Attributes:
        waits: a step waits for the neighbors that it counts on. So a neighbor that gets no model gets a pass; a round's offers
            stay open for another round; a peer that falls behind skips rounds; and no round needs to be announced.
        folds_in_order: models are folded by ascending neighbor id, each neighbor in its `turn`.
        stale_rounds_max: the oldest age, in rounds, of a model that is still folded.
        rounds_ahead_max: how many rounds ahead a message may be; None: any number.
        models_per_round_max: how many models of one sender and slot are folded in a round; None: all that it announces.
    """

    waits: bool
    folds_in_order: bool
    stale_rounds_max: int
    rounds_ahead_max: int | None
    models_per_round_max: int | None

    # ---- neighbors ------------------------------------------------------------------------------------------------------

    def counted_on(self) -> Iterator[int]:
        """Yield the neighbors that the present step counts on, ascending.

        Those that sit the round out, or whose edge is down, are among them: they pass, and so no peer runs ahead of them.
        """

    def missing_selections(self) -> list[int]:
        """Return the neighbors whose selection this round still waits for."""

    def oldest_wanted(self, neighbor: Neighbor) -> int:
        """Return the oldest round whose messages a neighbor can use."""

    def repost_from(self, neighbor: Neighbor) -> int:
        """Return the oldest round whose messages a restarted neighbor gets again."""

    # ---- messages -------------------------------------------------------------------------------------------------------

    def is_closed(self, round_step: RoundStep) -> bool:
        """Return whether a step is closed: its models are older than the step that this peer is in."""

    def age(self, header: ModelHeader) -> int:
        """Return how many rounds old a model is."""

    def may_read(self, round_step: RoundStep, *, selections_known: bool) -> bool:
        """Return whether a model of a step may be read now."""

    def turn(self) -> int | None:
        """Return the neighbor whose models are folded next: -1 if none is left, None if any may be."""

    def selection_of(self, neighbor: Neighbor, round_index: int) -> Select | None:
        """Return what a neighbor selected, to decide what it is offered in a round."""

    def selections(self) -> list[Select]:
        """Return the neighbors' selections that count in the present step."""

    def numbers(self) -> tuple[tuple[int, Numbers], ...]:
        """Return the neighbors whose passes have numbers that count in the present step, with these."""

    # ---- the end of a step ----------------------------------------------------------------------------------------------

    def may_close(self, now: float) -> bool:
        """Return whether the present step may close, its offers being out."""

    def close_step(self) -> ClosedStep:
        """Note the end of the present step and return who took part."""

    def close_round(self, now: float) -> None:
        """Note the end of a round."""

    def next_time(self, now: float) -> Sequence[float]:
        """Return the times at which the present step may close by itself."""

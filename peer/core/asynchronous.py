"""The async pace: a step closes at once, and arrivals fold whenever they come, in whichever round that is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from peer.core.messages import ModelHeader, Numbers, Select
from peer.core.neighbor import Neighbor, RoundStep
from peer.core.pace import ClosedStep
from peer.core.state import State


class Async:
    """A round waits for no neighbor. Implements `peer.core.pace.Pace`."""

    waits, folds_in_order = False, False

    def __init__(self, state: State) -> None:
        m = state.manifest
        self._state = state
        self.stale_rounds_max = state.constants.stale_rounds if m.rho else 0
        self.rounds_ahead_max: int | None = None
        self.models_per_round_max: int | None = 1 if m.screening.trimmed_mean else state.constants.models_per_round

    # ---- neighbors ------------------------------------------------------------------------------------------------------

    def counted_on(self) -> Iterator[int]:
        """Yield the neighbors that are here; no step waits for them."""
        return self._state.reachable_and_near()

    def missing_selections(self) -> list[int]:
        """Wait for none."""
        return []

    def oldest_wanted(self, neighbor: Neighbor) -> int:
        """Return 0: an old model is folded with less weight."""
        return 0

    def repost_from(self, neighbor: Neighbor) -> int:
        """Return the round of whichever end is behind."""
        return min(neighbor.round_index, self._state.round.index)

    # ---- messages -------------------------------------------------------------------------------------------------------

    def is_closed(self, round_step: RoundStep) -> bool:
        """Return whether this peer is in a later step."""
        return round_step < self._state.round.current

    def age(self, header: ModelHeader) -> int:
        """Return how many rounds old a model is: by our own count, or by its sender's if that is less.

        Peers of different speed drift apart for good, and a slower neighbor's newest model is not old for that. A sender is in
        the next round at least: no round waits for the answers.
        """
        senders_round = max(self._state.neighbors[header.sender].round_index, header.round_index + 1)
        return max(0, min(self._state.round.index, senders_round) - header.round_index)

    def may_read(self, round_step: RoundStep, *, selections_known: bool) -> bool:
        """Read every model, also of a later round."""
        return True

    def turn(self) -> int | None:
        """Return None: models are folded as they come."""
        return None

    def selection_of(self, neighbor: Neighbor, round_index: int) -> Select | None:
        """Return the last one."""
        return neighbor.last_selection()

    def selections(self) -> list[Select]:
        """Return the newest one of each neighbor that is not too old."""
        oldest = self._state.round.index - self.stale_rounds_max
        newest = (neighbor.newest_selection(oldest) for neighbor in self._state.neighbors.values())
        return [select for select in newest if select is not None]

    def numbers(self) -> tuple[tuple[int, Numbers], ...]:
        """Return the newest ones of each neighbor."""
        newest = []
        for n, neighbor in self._state.neighbors.items():
            if steps := [round_step for round_step, numbers in neighbor.passed.items() if numbers]:
                newest.append((n, neighbor.passed[max(steps)]))
        return tuple(newest)

    # ---- the end of a step ----------------------------------------------------------------------------------------------

    def may_close(self, now: float) -> bool:
        """Return whether no fold is under way."""
        return not self._state.arrivals.folding

    def close_step(self) -> ClosedStep:
        """Return the present neighbors; folds continue in the next step."""
        present = self._state.note_delivery(list(self.counted_on()))
        return ClosedStep(present, [], [], with_neighbors=bool(self._state.live()))

    def close_round(self, now: float) -> None:
        """Do nothing."""

    def next_time(self, now: float) -> Sequence[float]:
        """Return no time: a step waits for nothing."""
        return ()

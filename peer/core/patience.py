"""How long lockstep waits for a live neighbor that does not do its part: it delivers nothing, or takes nothing. Pure.

The first round waits until its deadline, as for any slow neighbor. A neighbor that made a round wait in vain again is waited for
less: not at all in some rounds, ever more of them, and for a few usual rounds in the next. Each round in which it does its part
counts in its favor, and what it delivers in time is folded in every case. A neighbor whose transfers stop twice in a step is
not waited for any longer in it.
"""

from __future__ import annotations

from peer.core.neighbor import Neighbor
from peer.core.state import State

FORGIVEN = 1 / 4  # of a miss, for each step in which the neighbor did its part
FULL = 2.0  # misses below which a neighbor is waited for until the deadline
SKIPPED_MAX = 16  # rounds in a row in which a neighbor is not waited for
STALLS_MAX = 2  # transfers in a step that stopped or were too slow
USUAL_ROUNDS = 4.0  # how long a neighbor with `FULL` misses is waited for; a suspicion time at least


class Patience:
    """Whom a step of lockstep no longer waits for.

    Args:
        state: the shared state.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def waits_for(self, neighbor: Neighbor) -> bool:
        """Return whether the present step counts on a neighbor; always on one that did its part, or whose model is complete."""
        if self._state.round.index >= neighbor.waited_from or self.did_its_part(neighbor):
            return True
        return self._state.arrivals.is_complete_from(neighbor.id, self._state.round.current)

    def did_its_part(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor has delivered, and has taken what is offered to it."""
        return self._state.has_delivered(neighbor.id) and not self._state.owes(neighbor.id)

    def look(self, neighbors: list[int], usual_s: float, now: float) -> None:
        """Give up those of the neighbors that are waited for long enough."""
        until = self.until(usual_s)
        for neighbor in (self._state.neighbors[n] for n in neighbors):
            tired = neighbor.stalls >= STALLS_MAX or (neighbor.misses >= FULL and now >= until)
            if tired and not self.did_its_part(neighbor):
                self._give_up(neighbor)

    def until(self, usual_s: float) -> float:
        """Return until when the present step waits for a neighbor that has missed before."""
        if usual_s <= 0:
            return self._state.deadline
        least_s = self._state.manifest.timeouts.suspicion_s
        return min(self._state.deadline, self._state.round.exchange_began_at + max(least_s, USUAL_ROUNDS * usual_s))

    def step_closes(self, neighbors: list[int]) -> None:
        """Note what the neighbors that the step counted on have done."""
        for neighbor in (self._state.neighbors[n] for n in neighbors):
            neighbor.stalls = 0
            if self.did_its_part(neighbor):
                neighbor.misses = max(0.0, neighbor.misses - FORGIVEN)
            elif not self._state.leaving:
                self._give_up(neighbor)

    def _give_up(self, neighbor: Neighbor) -> None:
        neighbor.misses, neighbor.stalls = neighbor.misses + 1, 0
        skipped = min(SKIPPED_MAX, 2 ** int(neighbor.misses - FULL)) if neighbor.misses >= FULL else 0
        neighbor.waited_from = self._state.round.index + 1 + skipped
        self._state.round.lost_neighbor = True

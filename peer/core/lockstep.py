"""The lockstep pace: a step waits for its live neighbors, and models are folded in the order of neighbor ids. Pure.

A step is over when each live and near neighbor has delivered all that it announced and has taken all that is offered to it, or
at the round deadline. So the result of a round does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from peer.core.messages import ModelHeader, Numbers, Select
from peer.core.neighbor import Neighbor
from peer.core.outbox import RoundStep
from peer.core.pace import ClosedStep, is_near, note_delivery, reachable_and_near
from peer.core.partition import Partition, RoundRate
from peer.core.patience import FULL, Patience
from peer.core.stages import Stage
from peer.core.state import State


class Lockstep:
    """A round waits for its live neighbors. Implements `peer.core.pace.Pace`."""

    waits = True

    def __init__(self, state: State) -> None:
        m = state.manifest
        self._state = state
        self.folds_in_order = m.fold_order != "arrival"
        self.stale_rounds_max = m.stale_rounds_max if m.stale == "fold" else 0
        self.rounds_ahead_max: int | None = state.constants.rounds_ahead
        self.models_per_round_max: int | None = None
        self.rate = RoundRate(state.constants.rate_window_rounds, state.round_seconds)
        self.partition = Partition(state, self.rate)
        self._patience = Patience(state)

    # ---- neighbors ------------------------------------------------------------------------------------------------------

    def counted_on(self) -> Iterator[int]:
        """Also one that left before the end, for the suspicion time: a restart costs no more than after a kill.

        Not those that made rounds wait in vain.
        """
        if self._state.plan.steps:
            for n, neighbor in self._state.neighbors.items():
                here = neighbor.is_reachable or neighbor.returns_until is not None
                if here and is_near(self._state, neighbor) and self._patience.waits_for(neighbor):
                    yield n

    def _connected(self) -> Iterator[int]:
        """Yield the neighbors of `counted_on` that messages reach now."""
        for n in reachable_and_near(self._state):
            if self._patience.waits_for(self._state.neighbors[n]):
                yield n

    def missing_selections(self) -> list[int]:
        """Where the algorithm selects, offers and weights depend on what each live neighbor selected."""
        state = self._state
        if state.plan.selection is None:
            return []
        senders, first = state.plan.senders, (state.round.index, 0)
        return [n for n in self.counted_on() if n in senders and not state.neighbors[n].announced(first)]

    def oldest_wanted(self, neighbor: Neighbor) -> int:
        """Return its own round: it has closed earlier ones."""
        return neighbor.round_index

    def repost_from(self, neighbor: Neighbor) -> int:
        """Return its own round."""
        return neighbor.round_index

    # ---- messages -------------------------------------------------------------------------------------------------------

    def is_closed(self, round_step: RoundStep) -> bool:
        """Return whether a step is over, or is being closed."""
        closing = self._state.stage in (Stage.ENDING_STEP, Stage.CLOSING)
        return round_step < self._state.round.current or (round_step == self._state.round.current and closing)

    def age(self, header: ModelHeader) -> int:
        """Return how many rounds old a model is, by the one count that all peers share."""
        return max(0, self._state.round.index - header.round_index)

    def may_read(self, round_step: RoundStep, *, selections_known: bool) -> bool:
        """A model of the present step waits for the selections, and one of a later step for that step."""
        return round_step <= self._state.round.current and (selections_known or self.is_closed(round_step))

    def turn(self) -> int | None:
        """Return the first neighbor that has not delivered."""
        if not self.folds_in_order:
            return None
        return next((n for n in self.counted_on() if not self._state.has_delivered(n)), -1)

    def selection_of(self, neighbor: Neighbor, round_index: int) -> Select | None:
        """Return that of the same round."""
        return neighbor.selections.get(round_index)

    def selections(self) -> list[Select]:
        """Return those of the present round, in its first step."""
        if self._state.round.step:
            return []
        present = (neighbor.selections.get(self._state.round.index) for neighbor in self._state.neighbors.values())
        return [select for select in present if select is not None]

    def numbers(self) -> tuple[tuple[int, Numbers], ...]:
        """Return those of the present step."""
        current, neighbors = self._state.round.current, self._state.neighbors.items()
        return tuple((n, neighbor.passed[current]) for n, neighbor in neighbors if neighbor.passed.get(current))

    # ---- the end of a step ----------------------------------------------------------------------------------------------

    def may_close(self, now: float) -> bool:
        """Return whether all models have come and been taken, or the deadline is over; a partitioned peer waits longer."""
        return self._is_over(now) and not self._state.arrivals.folding and not self.partition.keeps_rate(now)

    def _is_over(self, now: float) -> bool:
        """All that is expected has come, and live neighbors have taken all that they expect of us; or the deadline is over.

        A peer that is killed after the checkpoint of its next round could not repeat an offer of this one.
        """
        state = self._state
        self._patience.look(list(self._connected()), self.rate.duration_min_s(), now)
        return state.deadline_over(now) or all(state.has_delivered(n) and not state.owes(n) for n in self.counted_on())

    def close_step(self) -> ClosedStep:
        """Models of this step that are not folded are not used; a neighbor that did not deliver is a straggler."""
        state, current = self._state, self._state.round.current
        neighbors = state.neighbors
        company = any(state.has_delivered(n) or neighbor.announced(current) for n, neighbor in neighbors.items())
        counted_on = list(self.counted_on())
        present = note_delivery(state, counted_on)
        self._patience.step_closes(counted_on)
        delivered = {n for n in counted_on if not neighbors[n].is_straggler}
        missing = sorted(set(state.plan.senders) - delivered) if state.plan.steps else []
        unread = [*state.arrivals.reading.values(), *state.arrivals.complete.values()]
        unused = [each for each in unread if (each.header.round_index, each.header.step) <= current]
        return ClosedStep(present, missing, unused, company)

    def close_round(self, now: float) -> None:
        """Measure the round rate, except in rounds alone, or that a lost neighbor, a partition or the deadline made long."""
        state = self._state
        if self.partition.goes_on():
            return
        if state.round.company and not state.round.lost_neighbor and not state.deadline_over(now):
            self.rate.add(now - state.round.began_at)

    def next_time(self, now: float) -> Sequence[float]:
        """At the round deadline; for a partitioned peer also when its round has lasted long enough."""
        state = self._state
        if state.deadline_over(now):
            return ()
        times = [state.deadline]
        patient_until = self._patience.until(self.rate.duration_min_s())
        if now < patient_until < state.deadline and any(state.neighbors[n].misses >= FULL for n in self._connected()):
            times.append(patient_until)
        if (until := self.partition.until()) > now:
            times.append(until)
        return times

"""The lockstep pace: a step waits for its live neighbors, and models are folded in the order of neighbor ids. Pure.

A step is over when each live and near neighbor has delivered all that it announced and has taken all that is offered to it, or
at the round deadline. So the result of a round does not depend on timing; with ``run.aggregation`` on_arrival, where models are
folded as they come, up to rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from peer.core.messages import ModelHeader, Numbers, Phase, Select
from peer.core.neighbor import Neighbor, RoundStep
from peer.core.pace import ClosedStep
from peer.core.stages import Stage
from peer.core.state import State


class Lockstep:
    """A round waits for its live neighbors. Implements `peer.core.pace.Pace`."""

    waits = True

    def __init__(self, state: State) -> None:
        m = state.manifest
        self._state = state
        self.folds_in_order = m.aggregation != "on_arrival" and m.secure_sum is None  # sums are the same in any order
        self.stale_rounds_max = state.constants.stale_rounds if m.rho else 0
        self.rounds_ahead_max: int | None = state.constants.rounds_ahead
        self.models_per_round_max: int | None = None
        self.rate = RoundRate(state.constants.rate_window_rounds, state.round_seconds)
        self.partition = Partition(state, self.rate)
        self._patience = Patience(state, self.rate)

    # ---- neighbors ------------------------------------------------------------------------------------------------------

    def counted_on(self) -> Iterator[int]:
        """Include a neighbor that left before the end, for the suspicion time: a restart costs no more than after a kill.

        Exclude neighbors that rounds waited for without a result, and those whose graph file has fewer rounds.
        """
        if self._state.plan.steps:
            for n, neighbor in self._state.neighbors.items():
                here = neighbor.is_reachable or neighbor.returns_until is not None
                here &= neighbor.phase is not Phase.FINISHED or neighbor.round_index > self._state.round.index
                if here and self._state.is_near(neighbor) and self._patience.waits_for(neighbor):
                    yield n

    def _connected(self) -> Iterator[int]:
        """Yield the neighbors of `counted_on` that messages reach now."""
        for n in self._state.reachable_and_near():
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
        self._patience.look(self._connected(), now)
        awaited = None
        if now < state.round.deadline:
            awaited = next((n for n in self.counted_on() if not state.has_delivered(n) or state.owes(n)), None)
        state.round.wait_for(awaited, now)
        return awaited is None

    def close_step(self) -> ClosedStep:
        """Models of this step that are not folded are not used; a neighbor that did not deliver is a straggler."""
        state, current = self._state, self._state.round.current
        neighbors = state.neighbors
        with_neighbors = any(state.has_delivered(n) or neighbor.announced(current) for n, neighbor in neighbors.items())
        counted_on = list(self.counted_on())
        present = state.note_delivery(counted_on)
        self._patience.step_closes(counted_on)
        delivered = {n for n in counted_on if not neighbors[n].is_straggler}
        missing = sorted(set(state.plan.senders) - delivered) if state.plan.steps else []
        unread = [*state.arrivals.reading.values(), *state.arrivals.complete.values()]
        unused = [each for each in unread if (each.header.round_index, each.header.step) <= current]
        return ClosedStep(present, missing, unused, with_neighbors)

    def close_round(self, now: float) -> None:
        """Measure the round rate, except of rounds alone, or prolonged by a lost neighbor, a partition or the deadline."""
        state = self._state
        if self.partition.goes_on():
            return
        if state.round.with_neighbors and not state.round.lost_neighbor and now < state.round.deadline:
            self.rate.add(now - state.round.began_at)

    def next_time(self, now: float) -> Sequence[float]:
        """At the round deadline; for a partitioned peer also when its round has lasted long enough."""
        state = self._state
        if now >= state.round.deadline:
            return ()
        times = [state.round.deadline]
        if any(neighbor.misses >= FULL for neighbor in self._patience.slow(self._connected())):
            patient_until = self._patience.until()
            if now < patient_until < state.round.deadline:
                times.append(patient_until)
        if (until := self.partition.until()) > now:
            times.append(until)
        return times


FORGIVEN = 1 / 4  # of a miss, for each step in which the neighbor did its part
FULL = 2.0  # misses below which a neighbor is waited for until the deadline
SKIPPED_MAX = 16  # rounds in a row in which a neighbor is not waited for
STALLS_MAX = 2  # transfers in a step that stopped or were too slow
USUAL_ROUNDS = 4.0  # how long a neighbor with `FULL` misses is waited for; a suspicion time at least


class Patience:
    """How long lockstep waits for a live neighbor that does not do its part: it delivers nothing, or takes nothing.

    The first round waits until its deadline, as for any slow neighbor. If another round waits for a neighbor without a result,
    the next rounds do not wait for it, a growing number of them, and then one waits for the time of a few usual rounds. Each
    round in which it does its part counts in its favor, and what it delivers in time is always folded. After two stopped
    transfers in a step, that step no longer waits for the neighbor.

    Args:
        state: the shared state.
        rate: of this peer's rounds.
    """

    def __init__(self, state: State, rate: RoundRate) -> None:
        self._state = state
        self._rate = rate

    def waits_for(self, neighbor: Neighbor) -> bool:
        """Return whether the present step counts on a neighbor; always on one that did its part, or whose model is complete."""
        if self._state.round.index >= neighbor.waited_from or self.did_its_part(neighbor):
            return True
        return self._state.arrivals.is_complete_from(neighbor.id, self._state.round.current)

    def did_its_part(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor has delivered, and has taken what is offered to it."""
        return self._state.has_delivered(neighbor.id) and not self._state.owes(neighbor.id)

    def slow(self, neighbors: Iterator[int]) -> list[Neighbor]:
        """Return those of the neighbors that the step does not wait for as long as for others; in most steps there are none."""
        slow = {
            n: each for n, each in self._state.neighbors.items() if each.stalls >= STALLS_MAX or each.misses >= FULL
        }
        return [slow[n] for n in neighbors if n in slow] if slow else []

    def look(self, neighbors: Iterator[int], now: float) -> None:
        """Give up on neighbors that the step has waited for long enough."""
        for neighbor in self.slow(neighbors):
            exceeded = neighbor.stalls >= STALLS_MAX or now >= self.until()
            if exceeded and not self.did_its_part(neighbor):
                self._give_up(neighbor)

    def until(self) -> float:
        """Return until when the present step waits for a neighbor that has missed before."""
        usual_s = self._rate.duration_min_s()
        if usual_s <= 0:
            return self._state.round.deadline
        least_s = self._state.manifest.timeouts.suspicion_s
        return min(
            self._state.round.deadline, self._state.round.exchange_began_at + max(least_s, USUAL_ROUNDS * usual_s)
        )

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


class RoundRate:
    """The durations of recent rounds, seconds, except the first of an incarnation, which is slow.

    Args:
        window: how many rounds count.
        durations: those of earlier incarnations; changed from now on.

    Attributes:
        first_s: the duration of the first round, 0 before it.
    """

    def __init__(self, window: int, durations: deque[float] | None = None) -> None:
        self._warm = False
        self.first_s = 0.0
        self._durations: deque[float] = deque(maxlen=window) if durations is None else durations

    def add(self, seconds: float) -> None:
        """Add a round that closed with most neighbors present."""
        if self._warm:
            self._durations.append(seconds)
        else:
            self._warm, self.first_s = True, seconds

    def duration_min_s(self) -> float:
        """Return the least duration of a round apart from the others: the upper quartile, 0 before the first round.

        It errs on the long side: a peer that returns behind the others skips rounds itself, one ahead makes them all skip. A
        single outlier, or two of eight, do not raise the estimate: a neighbor may have waited for a neighbor of its own.
        """
        durations = sorted(self._durations)
        return durations[3 * (len(durations) - 1) // 4] if durations else 0.0


class Partition:
    """Whether a peer is likely partitioned from its neighbors, and how long its rounds last then.

    Otherwise rounds without neighbors are short: a peer that is partitioned for ten seconds could be fifty rounds ahead at their
    return, and all others would skip those rounds to catch up. So a peer on the small side keeps its rate.

    Args:
        state: the shared state.
        rate: of this peer's rounds.

    Attributes:
        holds_rate: rounds are drawn out; logged when it begins.
    """

    def __init__(self, state: State, rate: RoundRate) -> None:
        self._state = state
        self._rate = rate
        self.holds_rate = False

    def keeps_rate(self, now: float) -> bool:
        """Return whether the round must last longer because this peer is partitioned from its neighbors."""
        state = self._state
        due = state.round.began_at + self._round_s()
        if state.plan.steps == 0 or state.round.step + 1 < state.plan.steps or now >= due or not self.is_likely():
            return False
        if not self.holds_rate:
            self.holds_rate = True
            seconds = self._round_s()
            state.log(
                "info",
                f"partitioned from half of the neighbors or more; keeping the previous round rate, {seconds:.1f} s",
            )
        return True

    def goes_on(self) -> bool:
        """Return whether the partition continues after the round that closes."""
        likely = self.is_likely()
        self.holds_rate &= likely
        return likely

    def until(self) -> float:
        """Return when a round that is drawn out has lasted long enough; 0 if none is."""
        return self._state.round.began_at + self._round_s() if self.holds_rate else 0.0

    def _round_s(self) -> float:
        """Return the least duration of a round: the usual one, or that of the first round if no other is known."""
        first_s = min(self._rate.first_s, self._state.manifest.timeouts.suspicion_s)
        return self._rate.duration_min_s() or first_s

    def is_likely(self) -> bool:
        """Return whether this is likely a partition's small side: half of the neighbors or more are absent, and one was lost.

        Those that were never met are absent too, and alone count where there are no others: those over the edges of a later graph
        file. Nothing changes at the start of a run: it has no rate yet.
        """
        neighbors = self._state.neighbors
        absent = [neighbor for neighbor in neighbors.values() if self._is_absent(neighbor)]
        lost = any(neighbor.liveness.is_live or neighbor.was_lost for neighbor in absent)
        return bool(absent) and (lost or len(absent) == len(neighbors)) and 2 * len(absent) >= len(neighbors)

    def _is_absent(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor is missed: it is dead, has left, was never met, or is far behind.

        A neighbor that has finished, or is ahead of us, is not missed.
        """
        if self._state.has_finished(neighbor):
            return False
        if neighbor.liveness.is_live:
            behind = self._state.round.index - neighbor.round_index
            return behind > self._state.constants.wait_rounds_behind and not neighbor.is_straggler
        return True

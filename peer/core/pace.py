"""The two paces of a run: whom a round waits for, how late a model may come, when a peer catches up. Pure.

Lockstep: a step is over when each live and near neighbor has delivered all that it announced and has taken all that is offered
to it, or at the round deadline. Models are folded in the order of neighbor ids, so that the result does not depend on timing.
Async: a step is over at once, and folding goes on in the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from coordinator_free_bootstrap.errors import Refusal
from peer.core.decisions import Rejection
from peer.core.messages import ModelHeader, Select
from peer.core.neighbor import Neighbor
from peer.core.outbox import RoundStep
from peer.core.patience import FULL, Patience
from peer.core.stages import Stage
from peer.core.state import State


class Pace:
    """The async pace: a round waits for no neighbor. It reads the shared ``state``.

    Attributes:
        folds_in_order: models are folded by ascending neighbor id.
        stale_rounds_max: the oldest age, in rounds, of a model that is still folded.
        sends_passes: a neighbor is told when a step brings it no models.
        rounds_open: how many rounds' offers a selection that comes late can still get.
        tells_rounds: a neighbor is told each round that this peer begins, by a heartbeat.
    """

    sends_passes, rounds_open, tells_rounds = False, 1, True

    def __init__(self, state: State) -> None:
        self.state = state
        self.folds_in_order = False
        self.stale_rounds_max = 0 if state.manifest.stale == "drop" else state.manifest.stale_rounds_max

    # ---- whom a step waits for ----------------------------------------------------------------------------------------

    def expected(self) -> list[int]:
        """Return the neighbors that the present step counts on, ascending: reachable and near.

        Those that sit the round out, or whose edge is down, are among them: they pass, and so no peer runs ahead of them.
        """
        return list(self._expected())

    def _expected(self) -> Iterator[int]:
        if self.state.steps:
            for n, neighbor in self.state.neighbors.items():
                if neighbor.is_reachable and self._is_near(neighbor):
                    yield n

    def awaited(self) -> Iterator[int]:
        """Yield the neighbors that the present step waits for, ascending: those that it counts on."""
        return self._expected()

    def _is_near(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor is at most one round ahead and not too far behind; a late one may be one round behind."""
        behind = self.state.round.index - neighbor.round_index
        return -1 <= behind <= (1 if neighbor.late else self.state.manifest.lockstep.wait_rounds_behind)

    def turn(self) -> int | None:
        """Return the neighbor whose models are folded next: -1 if none is left, None if any may be."""
        if not self.folds_in_order:
            return None
        return next((n for n in self.awaited() if not self.state.has_delivered(n)), -1)

    def ahead(self) -> list[int]:
        """Return the live neighbors for which our round is over, if it is: for most of them, or long ago for some.

        A few that are a little ahead wait for us: if we skipped rounds to join them, our other neighbors would follow. Not so
        at the start of an incarnation: neighbors that restarted too can no longer send what we have lost.
        """
        return self._ahead_by(self.credible_round)

    def claims_ahead(self) -> list[int]:
        """Return the live neighbors that `ahead` would name if every claim were believed."""
        return self._ahead_by(lambda neighbor: neighbor.round_index)

    def credible_round(self, neighbor: Neighbor) -> int:
        """Return the round of a neighbor as far as it is believed: what another neighbor or its own models confirm.

        One neighbor alone must not make a peer skip rounds by a claim. A peer with one neighbor has no other to ask.
        """
        if len(self.state.neighbors) == 1:
            return neighbor.round_index
        others = [other.round_index for other in self.state.live() if other is not neighbor]
        return min(neighbor.round_index, max([neighbor.proven_round, *others]))

    def _ahead_by(self, round_of: Callable[[Neighbor], int]) -> list[int]:
        state = self.state
        if state.steps == 0:
            return []
        live = state.live()
        rounds = {neighbor.id: round_of(neighbor) for neighbor in live}
        ahead = [n for n, reached in rounds.items() if reached >= state.round.index + 2]
        long_ago = any(rounds[n] > state.round.index + state.manifest.lockstep.wait_rounds_behind for n in ahead)
        over = not state.has_begun or long_ago or 2 * len(ahead) >= len(live)
        return ahead if over else []

    # ---- what lockstep answers differently -----------------------------------------------------------------------------

    def catches_up(self) -> bool:
        """Return whether a peer that is behind skips rounds now."""
        return not self.state.has_begun

    def too_far_ahead(self, round_index: int) -> Rejection | None:
        """Return why a message of a later round is refused."""
        return None

    def is_late(self, round_step: RoundStep) -> bool:
        """Return whether a step is over (or being closed)."""
        return round_step < self.state.round.current

    def age(self, header: ModelHeader) -> int:
        """Return how many rounds old a model is: by our own count, or by its sender's if that is less.

        In async pace peers of different speed drift apart for good, and a slower neighbor's newest model is not old for that. A
        sender is in the next round at least: no round waits for the answers.
        """
        senders_round = max(self.state.neighbors[header.sender].round_index, header.round_index + 1)
        return max(0, min(self.state.round.index, senders_round) - header.round_index)

    def is_unwanted(self, header: ModelHeader) -> bool:
        """Return whether the sender's models of this round are enough."""
        m = self.state.manifest
        most = 1 if m.screening.trimmed_mean else m.limits.models_per_round
        return self.state.arrivals.count_in_round(header) >= most

    def may_read(self, header: ModelHeader, *, selections_known: bool) -> bool:
        """Return whether an offered model may be read now."""
        return True

    def missing_selections(self) -> list[int]:
        """Return the neighbors whose selection this round still waits for."""
        return []

    def selections(self) -> list[Select]:
        """Return the neighbors' selections that count in the present step."""
        oldest = self.state.round.index - self.stale_rounds_max
        found = (neighbor.newest_selection(oldest) for neighbor in self.state.neighbors.values())
        return [select for select in found if select is not None]

    def told(self) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Return the numbers that count in the present step, by neighbor: in async pace the newest ones."""
        found = []
        for n, neighbor in self.state.neighbors.items():
            if spoken := [round_step for round_step, numbers in neighbor.passed.items() if numbers]:
                found.append((n, neighbor.passed[max(spoken)]))
        return tuple(found)

    def selection_of(self, neighbor: Neighbor, round_index: int) -> Select | None:
        """Return what a neighbor selected, to decide what it is offered in a round."""
        return neighbor.last_selection()

    def selections_kept_from(self) -> int:
        """Return the oldest round whose selections are kept."""
        return 0

    def oldest_wanted(self, neighbor: Neighbor) -> int:
        """Return the oldest round whose messages a neighbor can use."""
        return 0

    def repost_from(self, neighbor: Neighbor) -> int:
        """Return the oldest round whose messages a restarted neighbor gets again."""
        return min(neighbor.round_index, self.state.round.index)

    def before_offers(self, neighbor: Neighbor) -> None:
        """Prepare a neighbor's outbox for the offers of a step."""
        neighbor.outbox.supersede(self.state.round.index)

    def has_company(self) -> bool:
        """Return whether a neighbor takes part in the present step: in async pace, whether one is live."""
        return bool(self.state.live())

    def step_is_over(self, now: float) -> bool:
        """Return whether the present step may close, as far as the exchange goes."""
        return True

    def keeps_rate(self, now: float) -> bool:
        """Return whether the round must last longer because this peer is partitioned from its neighbors."""
        return False

    def waiting_for(self) -> list[int]:
        """Return the neighbors whose models the present step waits for."""
        return []

    def owed_to(self) -> list[int]:
        """Return the neighbors that have not yet taken what this peer offers in the present step."""
        return []

    def step_closes(self) -> tuple[list[int], list[int]]:
        """Note the closing of the present step; return the streams to answer `unused`, and the missing neighbors."""
        for n in self.expected():
            self.state.neighbors[n].late = not self.state.has_delivered(n)
        return [], []

    def round_closes(self, now: float) -> None:
        """Note the end of a round."""

    def next_time(self, now: float) -> Sequence[float]:
        """Return the times at which the present step may close by itself."""
        return ()


class Lockstep(Pace):
    """A round waits for its live neighbors."""

    sends_passes, rounds_open, tells_rounds = True, 2, False

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.folds_in_order = state.manifest.fold_order != "arrival"
        self.stale_rounds_max = state.manifest.stale_rounds_max if state.manifest.stale == "fold" else 0
        self.rate = RoundRate(state.manifest.lockstep.rate_window_rounds, state.round_seconds)
        self.holds_rate = False  # rounds are drawn out while this peer is partitioned
        self.patience = Patience(state)

    def _expected(self) -> Iterator[int]:
        """Not those that made rounds wait in vain."""
        for n in super()._expected():
            if self.patience.waits_for(self.state.neighbors[n]):
                yield n

    def awaited(self) -> Iterator[int]:
        """Also for one that left before the end, for the suspicion time: a restart costs no more than after a kill."""
        if self.state.steps:
            for n, neighbor in self.state.neighbors.items():
                here = neighbor.is_reachable or neighbor.returns_until is not None
                if here and self._is_near(neighbor) and self.patience.waits_for(neighbor):
                    yield n

    def catches_up(self) -> bool:
        """Between any two rounds."""
        return True

    def too_far_ahead(self, round_index: int) -> Rejection | None:
        """A neighbor cannot be further ahead unless this peer was away; heartbeats tell it so, not models."""
        state = self.state
        if round_index <= state.round.index + state.manifest.limits.rounds_ahead:
            return None
        found = f"round {round_index}, while peer {state.peer_id} is in round {state.round.index}"
        return Rejection(Refusal.ROUND_TOO_FAR_AHEAD, found)

    def is_late(self, round_step: RoundStep) -> bool:
        """Also while the step itself is being closed."""
        closing = self.state.stage in (Stage.ENDING_STEP, Stage.CLOSING)
        return round_step < self.state.round.current or (round_step == self.state.round.current and closing)

    def age(self, header: ModelHeader) -> int:
        """By the one count that all peers share."""
        return max(0, self.state.round.index - header.round_index)

    def is_unwanted(self, header: ModelHeader) -> bool:
        """Each neighbor sends what it announced."""
        return False

    def may_read(self, header: ModelHeader, *, selections_known: bool) -> bool:
        """A model of the present step waits for the selections, and one of a later step for that step."""
        round_step = (header.round_index, header.step)
        return round_step <= self.state.round.current and (selections_known or self.is_late(round_step))

    def missing_selections(self) -> list[int]:
        """Where the algorithm selects, offers and weights depend on what each live neighbor selected."""
        state = self.state
        if state.selection() is None:
            return []
        scheduled, round_step = state.scheduled(), (state.round.index, 0)
        return [n for n in self.awaited() if n in scheduled and not state.neighbors[n].announced(round_step)]

    def selections(self) -> list[Select]:
        """Those of the present round, in its first step."""
        if self.state.round.step:
            return []
        found = (neighbor.selections.get(self.state.round.index) for neighbor in self.state.neighbors.values())
        return [select for select in found if select is not None]

    def told(self) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Those of the present step."""
        round_step, neighbors = self.state.round.current, self.state.neighbors.items()
        return tuple((n, neighbor.passed[round_step]) for n, neighbor in neighbors if neighbor.passed.get(round_step))

    def selection_of(self, neighbor: Neighbor, round_index: int) -> Select | None:
        """Of the same round."""
        return neighbor.selections.get(round_index)

    def selections_kept_from(self) -> int:
        """As old as a model that is still folded."""
        return self.state.round.index - self.stale_rounds_max

    def oldest_wanted(self, neighbor: Neighbor) -> int:
        """Its own round: it has closed earlier ones."""
        return neighbor.round_index

    def repost_from(self, neighbor: Neighbor) -> int:
        """Its own round."""
        return neighbor.round_index

    def before_offers(self, neighbor: Neighbor) -> None:
        """Every message of a step stays due."""

    def step_is_over(self, now: float) -> bool:
        """All that is expected has come, and live neighbors have taken all that they expect of us; or the deadline is over.

        A peer that is killed after the checkpoint of its next round could not repeat an offer of this one.
        """
        state, round_step = self.state, self.state.round.current
        self.patience.look(self.expected(), self.rate.duration_min_s(), now)
        return state.deadline_over(now) or all(
            state.has_delivered(n) and not state.neighbors[n].outbox.owes(round_step) for n in self.awaited()
        )

    def has_company(self) -> bool:
        """Whether one has delivered, passed, or said what it selected."""
        round_step, neighbors = self.state.round.current, self.state.neighbors.items()
        return any(self.state.has_delivered(n) or neighbor.announced(round_step) for n, neighbor in neighbors)

    def keeps_rate(self, now: float) -> bool:
        """A partitioned peer keeps its previous round rate, so that it does not run ahead of the others.

        Otherwise rounds without neighbors are short; a peer that is partitioned for ten seconds could be fifty rounds ahead at
        their return, and all others would skip those rounds to catch up.
        """
        state = self.state
        due = state.round.began_at + self._least_s()
        if state.steps == 0 or state.round.step + 1 < state.steps or now >= due or not self._is_partitioned():
            return False
        if not self.holds_rate:
            self.holds_rate = True
            seconds = self._least_s()
            state.log(
                "info",
                f"partitioned from half of the neighbors or more; keeping the previous round rate, {seconds:.1f} s",
            )
        return True

    def _least_s(self) -> float:
        """Return how long a round lasts at least: as long as usual; where only one is known, it has warmed up as well."""
        first_s = min(self.rate.first_s, self.state.manifest.timeouts.suspicion_s)
        return self.rate.duration_min_s() or first_s

    def _is_partitioned(self) -> bool:
        """Return whether this is likely a partition's small side: one was lost, and half of the neighbors or more are absent.

        Those that were never met are absent too, but nothing changes at the start of a run: it has no rate yet.
        """
        absent = [neighbor for neighbor in self.state.neighbors.values() if self._is_absent(neighbor)]
        lost = any(neighbor.liveness.is_live or neighbor.was_lost for neighbor in absent)
        return lost and 2 * len(absent) >= len(self.state.neighbors)

    def _is_absent(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor is missed: it is dead, has left, was never met, or is far behind.

        Not one that has finished, which need not come back, nor one that is ahead of us.
        """
        if self.state.has_finished(neighbor):
            return False
        if neighbor.liveness.is_live:
            behind = self.state.round.index - neighbor.round_index
            return behind > self.state.manifest.lockstep.wait_rounds_behind and not neighbor.late
        return True

    def waiting_for(self) -> list[int]:
        """Those that have not delivered."""
        if self.state.stage is not Stage.EXCHANGING:
            return []
        return [n for n in self.awaited() if not self.state.has_delivered(n)]

    def owed_to(self) -> list[int]:
        """Those whose outbox still holds a message of the step."""
        state = self.state
        if state.stage is not Stage.EXCHANGING:
            return []
        return [n for n in self.expected() if state.neighbors[n].outbox.owes(state.round.current)]

    def step_closes(self) -> tuple[list[int], list[int]]:
        """Models of this step that are not folded are not used; who did not deliver is late."""
        state, expected = self.state, list(self.awaited())
        for n in expected:
            state.neighbors[n].late = not state.has_delivered(n)
        self.patience.step_closes(expected)
        present = {n for n in expected if not state.neighbors[n].late}
        missing = sorted(set(state.scheduled()) - present) if state.steps else []
        headers = {**state.arrivals.reading, **state.arrivals.complete}
        unused = [stream for stream, h in headers.items() if (h.round_index, h.step) <= state.round.current]
        return unused, missing

    def round_closes(self, now: float) -> None:
        """Measure the round rate, except in rounds alone, or that a lost neighbor, a partition or the deadline made long."""
        state = self.state
        if self._is_partitioned():
            return
        self.holds_rate = False
        if state.round.company and not state.round.lost_neighbor and not state.deadline_over(now):
            self.rate.add(now - state.round.began_at)

    def next_time(self, now: float) -> Sequence[float]:
        """At the round deadline; for a partitioned peer also when its round has lasted long enough."""
        state = self.state
        if state.deadline_over(now):
            return ()
        times = [state.deadline]
        patient_until = self.patience.until(self.rate.duration_min_s())
        if now < patient_until < state.deadline and any(state.neighbors[n].misses >= FULL for n in self._expected()):
            times.append(patient_until)
        if self.holds_rate and (until := state.round.began_at + self._least_s()) > now:
            times.append(until)
        return times


class RoundRate:
    """The durations of recent rounds, seconds, except the first of an incarnation, in which everything warms up.

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

        Rather too long than too short: a peer that returns behind the others skips rounds alone; one ahead makes them skip.
        Yet one long round of two, or two of eight, do not count: a neighbor may have waited for a neighbor of its own.
        """
        durations = sorted(self._durations)
        return durations[3 * (len(durations) - 1) // 4] if durations else 0.0


def pace_of(state: State) -> Pace:
    """Return the pace that the manifest names."""
    return Lockstep(state) if state.manifest.pace == "lockstep" else Pace(state)

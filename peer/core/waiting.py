"""Waiting for neighbors: at the start, in a step, and where a peer would train alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from peer.core.neighbor import Neighbor
from peer.core.pace import Pace
from peer.core.stages import EXCHANGE, Stage
from peer.core.state import State

ABSENCE_SUSPICIONS = 6  # upper bound on a restart, in suspicion times; 30 s by default


class Isolation:
    """The part of the engine that counts rounds without any neighbor, and waits instead where the manifest says so.

    Attributes:
        absence_s: upper bound on a restart: a restarted peer waits this long for others, and a finished peer for it.
    """

    def __init__(self, state: State, pace: Pace) -> None:
        self._state = state
        self._pace = pace
        self.absence_s = min(state.manifest.start.deadline_s, ABSENCE_SUSPICIONS * state.manifest.timeouts.suspicion_s)
        self._streak = 0  # rounds without any neighbor up to now
        self._alone_since: float | None = None  # no neighbor is live since then, though some have not finished
        self._wait_logged = False
        self._chose = False  # its algorithm selects or asks: it may have chosen no neighbor's model

    # ---- neighbors that may return -------------------------------------------------------------------------------------------

    def may_return_until(self, neighbor: Neighbor) -> float:
        """Return how long a neighbor that has died or left is expected back: as long as a restart may take."""
        return 0.0 if self._state.has_finished(neighbor) else neighbor.liveness.heard_at + self.absence_s

    def absent_at_start(self, now: float) -> list[int]:
        """Return the neighbors that a start waits for: not met yet, or gone again, but not for longer than a restart takes."""
        neighbors = self._state.neighbors.items()
        gone = [n for n, neighbor in neighbors if neighbor.was_lost and now < self.may_return_until(neighbor)]
        return sorted({*self._state.unmet(), *gone})

    # ---- counting -------------------------------------------------------------------------------------------------------

    def step_closes(self, with_neighbors: bool) -> None:
        """Note whether a neighbor took part in the step that closes."""
        self._state.round.with_neighbors |= with_neighbors or bool(self._state.round.notes.folded)

    def round_closes(self) -> None:
        """Count a round of an exchange in which no neighbor took part; log the first one, and the end of such rounds."""
        state = self._state
        self._chose |= state.plan.selection is not None
        if state.leaving or not state.neighbors or not state.plan.steps:
            return
        if not state.round.with_neighbors:
            state.totals["rounds_alone"] += 1
            self._streak += 1
            if self._streak == 1:
                state.log(
                    "warning",
                    f"round {state.round.index} was without any neighbor: training alone ({self._absent()}) "
                    "(docs/trouble.md#training-alone)",
                )
        elif self._streak:
            state.log("info", f"round {state.round.index} was with neighbors again, after {self._streak} rounds alone")
            self._streak = 0

    def verdict(self) -> str:
        """Return why this peer, all rounds done, has trained alone; "" if it has not.

        It has not if nothing is exchanged, or if the algorithm chose no neighbor's model, or sends numbers only.
        """
        state, rounds = self._state, self._state.manifest.rounds
        totals = state.totals
        if not state.neighbors or not any(state.planner.plan(t).brings_models for t in range(rounds)):
            return ""
        if 2 * totals["rounds_alone"] > rounds:
            return f"{totals['rounds_alone']} of {rounds} rounds were without any neighbor ({self._absent()})"
        chose = totals["models_unused"] or totals["selections_sent"] or self._chose or totals["models_adopted"]
        tells = totals["passes_sent"] and not (self._pace.waits and totals["models_sent"])
        if not totals["models_folded"] and (totals["models_rejected"] or not (chose or tells)):
            return f"no model of a neighbor was folded in {rounds} rounds ({totals['models_rejected']} were rejected)"
        return ""

    def _absent(self) -> str:
        """Return the state of each neighbor, or why it does not agree on the run."""
        return _states_of(self._state.neighbors.values())

    # ---- wait_for = "never_alone" ----------------------------------------------------------------------------------------

    def note(self, now: float) -> None:
        """Note since when no neighbor is live; called after every event."""
        state = self._state
        waits = (
            state.manifest.start.wait_for == "never_alone" and state.neighbors and state.plan.steps and not state.live()
        )
        if (
            not waits
            or state.round.index >= state.manifest.rounds
            or all(map(state.has_finished, state.neighbors.values()))
        ):
            self._alone_since, self._wait_logged = None, False
        elif self._alone_since is None:
            self._alone_since = now

    def is_awaited(self) -> bool:
        """Return whether this peer waits for a neighbor, whichever comes; log the beginning of the wait."""
        state = self._state
        if self._alone_since is None:
            return False
        if not self._wait_logged and state.stage is Stage.EXCHANGING:
            self._wait_logged, wait_s = True, state.manifest.start.deadline_s
            state.log("warning", f"no neighbor is live: waiting up to {wait_s:g} s for one ({self._absent()})")
        return True

    def given_up(self, now: float) -> str:
        """Return why this peer ends before its last round, "" if it continues."""
        until = self.waits_until()
        if until is None or now < until:
            return ""
        wait_s = self._state.manifest.start.deadline_s
        return f"no neighbor was live for {wait_s:g} s, and run.start.wait_for is never_alone ({self._absent()})"

    def waits_until(self) -> float | None:
        """Return when a wait for any neighbor ends this peer; None if it does not wait."""
        return None if self._alone_since is None else self._alone_since + self._state.manifest.start.deadline_s


def _states_of(neighbors: Iterable[Neighbor]) -> str:
    return "; ".join(f"peer {each.id} {each.refusal or each.liveness.state}" for each in neighbors)


class Start:
    """The part of the engine that decides when the first round of an incarnation may begin, and when the start is given up.

    Attributes:
        began_at: of the first event; 0 before it.
    """

    def __init__(self, state: State, isolation: Isolation) -> None:
        self._state = state
        self._isolation = isolation
        self.began_at = 0.0
        self._begun = False
        self._log_after_s = state.manifest.timeouts.suspicion_s  # how long the wait must last to be logged (again)

    def begin(self, now: float) -> None:
        """Note the first event."""
        if not self._begun:
            self._begun, self.began_at = True, now
            wait_s, then = self.deadline - now, ", and ends then if one is missing" if self.needs_everyone else ""
            self._state.log("info", f"waiting up to {wait_s:g} s for neighbors {list(self._state.neighbors)}{then}")

    @property
    def needs_everyone(self) -> bool:
        """Whether the run begins with all neighbors or not at all; a restarted or new peer takes part in one that has begun."""
        return self._state.manifest.start.wait_for == "everyone" and not self._state.run_has_begun

    def absent(self, now: float) -> list[int]:
        """Return the neighbors that the start waits for, ascending."""
        if not self.needs_everyone:
            return self._isolation.absent_at_start(now)
        neighbors = self._state.neighbors.items()
        return [n for n, each in neighbors if not (each.liveness.is_live or self._state.has_finished(each))]

    @property
    def deadline(self) -> float:
        """When the wait for neighbors ends: soon in a run that has begun, and sooner once a neighbor is met or the run is over.

        Not before those have come that change in the same round.

        A peer that continues alone is ahead of all others soon, and they would skip rounds to catch up with it.
        """
        state = self._state
        wait_s = state.manifest.start.deadline_s
        if state.run_has_begun:
            met = bool(state.live()) or state.round.index >= state.manifest.rounds
            if state.changing():
                return self.began_at + wait_s
            wait_s = state.manifest.timeouts.suspicion_s if met else min(wait_s, self._isolation.absence_s)
        return self.began_at + wait_s

    def fails(self, now: float) -> Literal["refused", "alone"] | None:
        """Return how a peer ends that must not begin, None if it may begin now or later; log why.

        Every neighbor has refused it, or one is missing at the deadline where run.start.wait_for wants everyone.
        """
        state, start = self._state, self._state.manifest.start
        if start.wait_for != "deadline" and state.refused_by_all():
            reasons = "; ".join(f"peer {n}: {neighbor.refusal}" for n, neighbor in state.neighbors.items())
            state.log(
                "error",
                f'refused by all neighbors; run.start.wait_for = "deadline" would train alone: {reasons} '
                "(docs/trouble.md#refused-by-all)",
            )
            return "refused"
        if self.needs_everyone and now >= self.deadline and (absent := self.absent(now)):
            why = f"{start.deadline_s:g} s, and run.start.wait_for is everyone"
            states = _states_of(state.neighbors[n] for n in absent)
            state.log("error", f"not started: neighbors {absent} were missing after {why} ({states})")
            return "alone"
        return None

    def may_begin(self, now: float) -> bool:
        """Return whether enough neighbors are met, or the wait is over; log the absent ones then."""
        state, absent = self._state, self.absent(now)
        count = len(state.neighbors)
        only_new = not state.run_has_begun and state.changing()
        enough = count - len(absent) >= state.manifest.start.share * count and not only_new
        if not enough and (now < self.deadline or self._isolation.is_awaited()):
            return False
        if absent:
            waited_s = now - self.began_at
            state.log("warning", f"starting without {absent}, not met in {waited_s:.0f} s; run.start sets this wait")
        return True

    def log_wait(self, now: float) -> None:
        """Log what a long start waits for, at growing intervals."""
        state, waited_s = self._state, now - self.began_at
        if now >= self.began_at + self._log_after_s:  # the time of the timer
            left_s = max(0.0, self.deadline - now)
            absent = self.absent(now)
            sites = f" and word of peers {state.sites.missing}" if state.sites and state.sites.missing else ""
            state.log(
                "info", f"waiting for neighbors {absent}{sites}: {waited_s:.0f} s so far, {left_s:.0f} s at most to go"
            )
            self._log_after_s = max(2 * waited_s, state.manifest.timeouts.suspicion_s)

    def next_time(self, now: float) -> Iterator[float]:
        """Yield the times at which something is due here by itself."""
        yield self.deadline
        yield self.began_at + self._log_after_s
        yield from (at for at in map(self._isolation.may_return_until, self._state.neighbors.values()) if at > now)


class Waits:
    """The part of the engine that knows what the start or a step waits for: the status shows it, and steps log long waits."""

    def __init__(self, state: State, pace: Pace, isolation: Isolation, start: Start) -> None:
        self._state = state
        self._pace = pace
        self._isolation = isolation
        self._start = start
        self._log_first_s = state.constants.retry_after_suspicions * state.manifest.timeouts.suspicion_s
        self._log_after_s = self._log_first_s  # how long the wait must last to be logged (again)
        self._step_began_at = 0.0

    def waiting_for(self, now: float) -> list[int]:
        """Return the neighbors that are waited for: those of `undelivered`, or all if any one of them suffices."""
        if self._state.stage is Stage.JOINING:
            return self._start.absent(now)
        return list(self._state.neighbors) if self._isolation.is_awaited() else self.undelivered()

    def since(self) -> float:
        """Return when the wait began."""
        joining = self._state.stage is Stage.JOINING
        return self._start.began_at if joining else self._state.round.exchange_began_at

    def until(self) -> float:
        """Return when the wait ends without those that are missing then."""
        return self._start.deadline if self._state.stage is Stage.JOINING else self._state.round.deadline

    def undelivered(self) -> list[int]:
        """Return the neighbors whose models the present step waits for."""
        return [n for n in self._counted_on() if not self._state.has_delivered(n)]

    def owed_to(self) -> list[int]:
        """Return the neighbors that have not yet taken what this peer offers in the present step."""
        return [n for n in self._counted_on() if self._state.owes(n)]

    def _counted_on(self) -> Iterable[int]:
        return self._pace.counted_on() if self._pace.waits and self._state.stage in EXCHANGE else ()

    def log(self, now: float) -> None:
        """Log what a long wait is for, at growing intervals."""
        state, began_at = self._state, self._state.round.exchange_began_at
        if began_at != self._step_began_at:
            self._step_began_at, self._log_after_s = began_at, self._log_first_s
        waited_s = now - began_at
        if state.stage not in EXCHANGE or waited_s < self._log_after_s:
            return
        here, owed = state.arrivals.senders_at(state.round.current), self.owed_to()
        silent = [n for n in self.undelivered() if n not in here]  # a model that has come only waits for its turn
        reasons = [f"models from {silent}"] * bool(silent) + [f"{owed} to take ours"] * bool(owed)
        if reasons:
            self._log_after_s = 2 * waited_s
            state.log("info", f"round {state.round.index} has waited {waited_s:.0f} s for {' and for '.join(reasons)}")

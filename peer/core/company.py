"""Whether a peer learns with its neighbors or alone: who is expected back, rounds without any neighbor, `never_alone`. Pure."""

from __future__ import annotations

from peer.core.neighbor import Neighbor
from peer.core.pace import Pace
from peer.core.stages import Stage
from peer.core.state import State

ABSENCE_SUSPICIONS = 6  # a restart takes less than so many suspicion times, 30 s by default


class Company:
    """The part of the engine that counts rounds without any neighbor, and waits instead where the manifest says so.

    Attributes:
        absence_s: how long a restart may take: so long a restarted peer waits for others, and a finished one for it.
    """

    def __init__(self, state: State, pace: Pace) -> None:
        self._state = state
        self._pace = pace
        self.absence_s = min(state.manifest.start.deadline_s, ABSENCE_SUSPICIONS * state.manifest.timeouts.suspicion_s)
        self._streak = 0  # rounds without any neighbor up to now
        self._alone_since: float | None = None  # no neighbor is live since then, though some have not finished
        self._wait_logged = False
        self._chose = False  # its algorithm selects or asks: it may have chosen no neighbor's model

    # ---- who is expected back -------------------------------------------------------------------------------------------

    def may_return_until(self, neighbor: Neighbor) -> float:
        """Return how long a neighbor that has died or left is expected back: as long as a restart may take."""
        return 0.0 if self._state.has_finished(neighbor) else neighbor.liveness.heard_at + self.absence_s

    def absent_at_start(self, now: float) -> list[int]:
        """Return the neighbors that a start waits for: not met yet, or gone again, but not for longer than a restart takes."""
        neighbors = self._state.neighbors.items()
        gone = [n for n, neighbor in neighbors if neighbor.was_lost and now < self.may_return_until(neighbor)]
        return sorted({*self._state.unmet(), *gone})

    # ---- counting -------------------------------------------------------------------------------------------------------

    def step_closes(self, company: bool) -> None:
        """Note whether a neighbor took part in the step that closes."""
        self._state.round.company |= company or bool(self._state.round.record.get("folded"))

    def round_closes(self) -> None:
        """Count a round of an exchange in which no neighbor took part; log the first one, and the end of such rounds."""
        state = self._state
        self._chose |= state.plan.selection is not None
        if state.leaving or not state.neighbors or not state.plan.steps:
            return
        if not state.round.company:
            state.totals["rounds_alone"] += 1
            self._streak += 1
            if self._streak == 1:
                state.log(
                    "warning", f"round {state.round.index} was without any neighbor: training alone ({self._absent()})"
                )
        elif self._streak:
            state.log("info", f"round {state.round.index} was with neighbors again, after {self._streak} rounds alone")
            self._streak = 0

    def verdict(self) -> str:
        """Return why this peer, all rounds done, has trained alone; "" if it has not.

        Not where nothing is exchanged, and not where the algorithm chose no neighbor's model, or tells numbers.
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
        neighbors = self._state.neighbors.values()
        return "; ".join(f"peer {each.id} {each.refusal or each.liveness.state}" for each in neighbors)

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
        """Return why this peer ends before its last round, "" if it goes on."""
        until = self.waits_until()
        if until is None or now < until:
            return ""
        wait_s = self._state.manifest.start.deadline_s
        return f"no neighbor was live for {wait_s:g} s, and run.start.wait_for is never_alone ({self._absent()})"

    def waits_until(self) -> float | None:
        """Return when a wait for any neighbor ends this peer; None if it does not wait."""
        return None if self._alone_since is None else self._alone_since + self._state.manifest.start.deadline_s

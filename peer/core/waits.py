"""What the present step waits for: shown by the status, and logged when it takes long. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from peer.core.company import Company
from peer.core.pace import Pace
from peer.core.stages import EXCHANGE
from peer.core.state import State


class Waits:
    """The part of the engine that tells what a step waits for."""

    def __init__(self, state: State, pace: Pace, company: Company) -> None:
        self._state = state
        self._pace = pace
        self._company = company
        self._log_first_s = state.constants.retry_after_suspicions * state.manifest.timeouts.suspicion_s
        self._log_after_s = self._log_first_s  # how long the wait must last to be logged (again)
        self._step_began_at = 0.0

    def waiting_for(self) -> list[int]:
        """Return the neighbors that are waited for: those of `undelivered`, or all where any one would do."""
        return list(self._state.neighbors) if self._company.is_awaited() else self.undelivered()

    def undelivered(self) -> list[int]:
        """Return the neighbors whose models the present step waits for."""
        return [n for n in self._counted_on() if not self._state.has_delivered(n)]

    def owed_to(self) -> list[int]:
        """Return the neighbors that have not yet taken what this peer offers in the present step."""
        return [n for n in self._counted_on() if self._state.owes(n)]

    def _counted_on(self) -> Iterable[int]:
        return self._pace.counted_on() if self._pace.waits and self._state.stage in EXCHANGE else ()

    def log(self, now: float) -> None:
        """Log what a long wait is for, ever more rarely."""
        state, began_at = self._state, self._state.round.exchange_began_at
        if began_at != self._step_began_at:
            self._step_began_at, self._log_after_s = began_at, self._log_first_s
        waited_s = now - began_at
        if state.stage not in EXCHANGE or waited_s < self._log_after_s:
            return
        here, owed = state.arrivals.senders_at(state.round.current), self.owed_to()
        silent = [n for n in self.undelivered() if n not in here]  # what is here only waits for its turn
        reasons = [f"models from {silent}"] * bool(silent) + [f"{owed} to take ours"] * bool(owed)
        if reasons:
            self._log_after_s = 2 * waited_s
            state.log("info", f"round {state.round.index} has waited {waited_s:.0f} s for {' and for '.join(reasons)}")

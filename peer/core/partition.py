"""How long rounds of lockstep last: a peer on the small side of a partition keeps its rate, and does not run ahead. Pure.

Otherwise rounds without neighbors are short; a peer that is partitioned for ten seconds could be fifty rounds ahead at their
return, and all others would skip those rounds to catch up.
"""

from __future__ import annotations

from collections import deque

from peer.core.neighbor import Neighbor
from peer.core.state import State


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


class Partition:
    """Whether a peer is likely partitioned from its neighbors, and how long its rounds last then.

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
        """Return whether the partition outlasts the round that closes."""
        likely = self.is_likely()
        self.holds_rate &= likely
        return likely

    def until(self) -> float:
        """Return when a round that is drawn out has lasted long enough; 0 if none is."""
        return self._state.round.began_at + self._round_s() if self.holds_rate else 0.0

    def _round_s(self) -> float:
        """Return how long a round lasts at least: as long as usual; where only one is known, it has warmed up as well."""
        first_s = min(self._rate.first_s, self._state.manifest.timeouts.suspicion_s)
        return self._rate.duration_min_s() or first_s

    def is_likely(self) -> bool:
        """Return whether this is likely a partition's small side: one was lost, and half of the neighbors or more are absent.

        Those that were never met are absent too, but nothing changes at the start of a run: it has no rate yet.
        """
        absent = [neighbor for neighbor in self._state.neighbors.values() if self._is_absent(neighbor)]
        lost = any(neighbor.liveness.is_live or neighbor.was_lost for neighbor in absent)
        return lost and 2 * len(absent) >= len(self._state.neighbors)

    def _is_absent(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor is missed: it is dead, has left, was never met, or is far behind.

        Not one that has finished, which need not come back, nor one that is ahead of us.
        """
        if self._state.has_finished(neighbor):
            return False
        if neighbor.liveness.is_live:
            behind = self._state.round.index - neighbor.round_index
            return behind > self._state.constants.wait_rounds_behind and not neighbor.is_straggler
        return True

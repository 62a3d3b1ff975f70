"""Failure detection against a simple model that keeps each neighbor's last contact and reads its state off the clock.

Times are multiples of a quarter heartbeat, so that all sums are exact.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coordinator_free_bootstrap import Timeouts
from peer.core.liveness import Liveness, NeighborState, check_all, next_check

HEARTBEAT, SUSPICION = 1.0, 5.0
NEIGHBORS = (0, 1, 2)
NEIGHBOR, RESTARTED = st.sampled_from(NEIGHBORS), st.booleans()


@dataclass
class Known:
    """What is known of one neighbor; its state follows from these and the time of the last check."""

    heard: float = 0.0
    met: bool = False
    left: bool = False
    failed: bool = False
    dead: bool = False
    excused: bool = False
    failing: float | None = None
    failed_at: float = 0.0

    def state(self, now: float) -> NeighborState:
        if self.left:
            return NeighborState.LEFT
        if not self.met:
            return NeighborState.UNKNOWN
        if self.dead or now - self.heard >= SUSPICION:
            return NeighborState.DEAD
        late = now - self.heard >= SUSPICION / 2
        return NeighborState.SUSPECT if late or self.failed else NeighborState.ALIVE

    def due(self, now: float) -> float | None:
        waits = {NeighborState.ALIVE: SUSPICION / 2, NeighborState.SUSPECT: SUSPICION}
        state = self.state(now)
        return self.heard + waits[state] if state in waits else None


class LivenessMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.checked_at = self.now  # silences count up to the last check
        timeouts = Timeouts(suspicion_s=SUSPICION)
        self.neighbors = {n: Liveness(timeouts) for n in NEIGHBORS}
        self.known = {n: Known() for n in NEIGHBORS}
        self.followed = dict.fromkeys(NEIGHBORS, NeighborState.UNKNOWN)

    def follow(self, n, change):
        """The changes alone must tell all states."""
        if change is not None:
            assert change.before is self.followed[n]
            assert change.before is not change.after or change.reason.startswith("restarted")
            self.followed[n] = change.after

    @rule(n=NEIGHBOR, restarted=RESTARTED)
    def heard(self, n, restarted):
        self.follow(n, self.neighbors[n].heard(self.now, 7 if restarted else None))
        known = self.known[n]
        if restarted or not known.left:
            absent = known.state(self.checked_at) is NeighborState.DEAD
            self.known[n] = Known(self.now, met=known.met and not known.left, dead=absent)
            if not restarted:
                self.known[n].failing, self.known[n].failed_at = known.failing, known.failed_at

    @rule(n=NEIGHBOR, restarted=RESTARTED)
    def answered(self, n, restarted):
        self.follow(n, self.neighbors[n].answered(self.now, 7 if restarted else None))
        if restarted or not self.known[n].left:
            self.known[n] = Known(self.now, met=True)

    @rule(n=NEIGHBOR)
    def leaves(self, n):
        self.follow(n, self.neighbors[n].left(self.now))
        self.known[n] = Known(self.now, met=True, left=True)

    @rule(n=NEIGHBOR)
    def call_fails(self, n):
        self.follow(n, self.neighbors[n].call_failed(self.now))
        known = self.known[n]
        if known.state(self.checked_at) in (NeighborState.ALIVE, NeighborState.SUSPECT):
            known.failed = True
            paused = self.now - known.failed_at >= 2 * SUSPICION
            known.failing = self.now if known.failing is None or paused else known.failing
            known.failed_at = self.now
            known.dead = self.now - known.failing >= 2 * SUSPICION

    @rule(quarters=st.integers(0, 40))
    def time_passes(self, quarters):
        """No check meanwhile: beyond the named time, this is a pause of this process."""
        self.now += quarters / 4

    @rule(quarters=st.integers(0, 60))
    def waits_and_checks_in_time(self, quarters):
        until = self.now + quarters / 4
        while (due := next_check(self.neighbors.values())) is not None and due <= until:
            self.now = max(self.now, due)
            self.check()
        self.now = until

    @rule()
    def check(self):
        dues = [due for known in self.known.values() if (due := known.due(self.checked_at)) is not None]
        if dues and self.now > min(dues) + HEARTBEAT:
            for known in self.known.values():
                if known.due(self.checked_at) is not None and not known.excused:
                    # A suspect stays suspect until it is heard: only its death is delayed.
                    known.failed |= known.state(self.checked_at) is NeighborState.SUSPECT
                    known.heard, known.excused = self.now, True
        changes = check_all(self.neighbors, self.now, HEARTBEAT)
        due = next_check(self.neighbors.values())
        assert due is None or due > self.now  # checks at each named time make progress
        self.checked_at = self.now
        for known in self.known.values():
            known.dead |= known.state(self.now) is NeighborState.DEAD
        for n, change in changes.items():
            assert change is not None
            self.follow(n, change)

    @invariant()
    def agrees_with_the_model(self):
        found = {n: neighbor.state for n, neighbor in self.neighbors.items()}
        assert found == {n: known.state(self.checked_at) for n, known in self.known.items()} == self.followed

    @invariant()
    def next_check_is_that_of_the_model(self):
        dues = [due for known in self.known.values() if (due := known.due(self.checked_at)) is not None]
        assert next_check(self.neighbors.values()) == min(dues, default=None)


TestLiveness = LivenessMachine.TestCase
TestLiveness.settings = settings(max_examples=100, stateful_step_count=40)

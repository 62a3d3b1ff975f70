"""Membership against a dumb model that keeps each neighbor's last sign of life and reads its state off the clock.

Times are multiples of a quarter heartbeat, so that all sums are exact.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coordinator_free_bootstrap import Membership, NeighborState, Timeouts

HEARTBEAT, SUSPICION = 1.0, 6.0
NEIGHBORS = (0, 1, 2)
WHO, LIVES = st.sampled_from(NEIGHBORS), st.integers(1, 4)


@dataclass
class Facts:
    """What is known of one neighbor; its state follows from these and the time of the last tick."""

    life: int = 0
    heard: float = 0.0
    met: bool = False
    goodbye: bool = False
    failed: bool = False
    buried: bool = False
    excused: bool = False
    failing: float | None = None
    failed_at: float = 0.0

    def state(self, now: float) -> NeighborState:
        if self.goodbye:
            return NeighborState.LEFT
        if not self.met:
            return NeighborState.UNKNOWN
        if self.buried or now - self.heard >= SUSPICION:
            return NeighborState.DEAD
        late = now - self.heard >= SUSPICION / 2
        return NeighborState.SUSPECT if late or self.failed else NeighborState.ALIVE

    def due(self, now: float) -> float | None:
        waits = {NeighborState.ALIVE: SUSPICION / 2, NeighborState.SUSPECT: SUSPICION}
        state = self.state(now)
        return self.heard + waits[state] if state in waits else None


class MembershipMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.judged_at = self.now  # silences count up to the last tick: between ticks nobody looks
        self.members = Membership(NEIGHBORS, Timeouts(heartbeat_s=HEARTBEAT, suspicion_s=SUSPICION))
        self.facts = {neighbor: Facts() for neighbor in NEIGHBORS}
        self.told = self.members.states
        self.lives = dict.fromkeys(NEIGHBORS, 0)

    def follow(self, changes):
        """Whoever only listens to the changes knows all states."""
        for change in changes:
            assert change.before is self.told[change.neighbor]
            assert change.old_incarnation == self.lives[change.neighbor] <= change.incarnation
            assert (change.before, change.old_incarnation) != (change.after, change.incarnation)
            self.told[change.neighbor], self.lives[change.neighbor] = change.after, change.incarnation

    @rule(who=WHO, life=LIVES)
    def heard(self, who, life):
        self.follow(self.members.heard(who, life, self.now))
        facts = self.facts[who]
        if life > facts.life or (life == facts.life and not facts.goodbye):
            absent = facts.state(self.judged_at) is NeighborState.DEAD
            self.facts[who] = Facts(life, self.now, met=facts.met and not facts.goodbye, buried=absent)
            if life == facts.life:
                self.facts[who].failing, self.facts[who].failed_at = facts.failing, facts.failed_at

    @rule(who=WHO, life=LIVES)
    def answered(self, who, life):
        self.follow(self.members.answered(who, life, self.now))
        facts = self.facts[who]
        if life > facts.life or (life == facts.life and not facts.goodbye):
            self.facts[who] = Facts(life, self.now, met=True)

    @rule(who=WHO, life=LIVES)
    def says_goodbye(self, who, life):
        self.follow(self.members.left(who, life, self.now))
        if life >= self.facts[who].life:
            self.facts[who] = Facts(life, self.now, met=True, goodbye=True)

    @rule(who=WHO)
    def contact_fails(self, who):
        self.follow(self.members.contact_failed(who, self.now))
        facts = self.facts[who]
        if facts.state(self.judged_at) in (NeighborState.ALIVE, NeighborState.SUSPECT):
            facts.failed = True
            paused = self.now - facts.failed_at >= 2 * SUSPICION
            facts.failing = self.now if facts.failing is None or paused else facts.failing
            facts.failed_at = self.now
            facts.buried = self.now - facts.failing >= 2 * SUSPICION

    @rule(quarters=st.integers(0, 40))
    def time_passes(self, quarters):
        """Nobody ticks meanwhile: beyond the deadline, this is a pause of this process."""
        self.now += quarters / 4

    @rule(quarters=st.integers(0, 60))
    def waits_and_ticks_in_time(self, quarters):
        until = self.now + quarters / 4
        while (due := self.members.next_deadline(self.now)) is not None and due <= until:
            self.now = due
            self.tick()
        self.now = until

    @rule()
    def tick(self):
        dues = [due for facts in self.facts.values() if (due := facts.due(self.judged_at)) is not None]
        if dues and self.now > min(dues) + HEARTBEAT:
            for facts in self.facts.values():
                if facts.due(self.judged_at) is not None and not facts.excused:
                    # Who was suspect stays so until it is heard: only its death is put off.
                    facts.failed |= facts.state(self.judged_at) is NeighborState.SUSPECT
                    facts.heard, facts.excused = self.now, True
        changes = self.members.tick(self.now)
        deadline = self.members.next_deadline(self.now)
        assert deadline is None or deadline > self.now  # whoever ticks at each deadline gets on
        self.judged_at = self.now
        for facts in self.facts.values():
            facts.buried |= facts.state(self.now) is NeighborState.DEAD
        self.follow(changes)

    @invariant()
    def agrees_with_the_model(self):
        assert self.members.states == {who: facts.state(self.judged_at) for who, facts in self.facts.items()}
        assert {who: self.members.incarnation(who) for who in NEIGHBORS} == {w: f.life for w, f in self.facts.items()}

    @invariant()
    def changes_tell_everything(self):
        assert self.told == self.members.states
        assert self.lives == {who: self.members.incarnation(who) for who in NEIGHBORS}

    @invariant()
    def deadline_is_that_of_the_model(self):
        dues = [due for facts in self.facts.values() if (due := facts.due(self.judged_at)) is not None]
        expected = max(self.now, min(dues)) if dues else None
        assert self.members.next_deadline(self.now) == expected

    @invariant()
    def survives_its_own_dict(self):
        timeouts = Timeouts(heartbeat_s=HEARTBEAT, suspicion_s=SUSPICION)
        copy = Membership.from_dict(self.members.as_dict(self.now), timeouts, self.now)
        assert copy.as_dict(self.now) == self.members.as_dict(self.now)
        assert copy.next_deadline(self.now) == self.members.next_deadline(self.now)


TestMembership = MembershipMachine.TestCase
TestMembership.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

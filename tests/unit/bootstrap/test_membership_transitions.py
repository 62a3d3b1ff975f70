"""Membership, one test per transition. Heartbeat 1 s, suspicion 8 s: suspect after 4 s of silence, dead after 8 s."""

import json

import pytest

from coordinator_free_bootstrap import Change, Manifest, Membership, NeighborState, Timeouts
from coordinator_free_bootstrap.errors import LocalProtocolError

UNKNOWN, ALIVE, SUSPECT, DEAD, LEFT = NeighborState
TIMEOUTS = Timeouts(heartbeat_s=1.0, suspicion_s=8.0)


@pytest.fixture
def members():
    return Membership((2, 1), TIMEOUTS)


def alive(members, incarnation=5, now=100.0):
    members.answered(1, incarnation, now)
    return members


def suspect(members):
    alive(members).tick(104.0)
    return members


def dead(members):
    suspect(members).tick(108.0)
    return members


def gone(members):
    alive(members).left(1, 5, 101.0)
    return members


def test_all_are_unknown_at_first(members):
    assert members.states == {1: UNKNOWN, 2: UNKNOWN}
    assert members.live == ()
    assert members.next_deadline(0.0) is None
    assert members.tick(1e9) == []


def test_unknown_heard_is_still_unknown_but_for_its_life(members):
    """It has to answer first: whoever is heard and cannot be reached would hold up every round."""
    assert members.heard(1, 5, 99.0) == [Change(1, UNKNOWN, UNKNOWN, 0, 5, "heard")]
    assert members.heard(1, 5, 100.0) == []
    assert members.live == () and members.next_deadline(100.0) is None


def test_unknown_that_answers_is_alive(members):
    assert members.answered(1, 5, 100.0) == [Change(1, UNKNOWN, ALIVE, 0, 5, "answered")]
    assert members.states == {1: ALIVE, 2: UNKNOWN}
    assert members.live == (1,)
    assert members.incarnation(1) == 5
    assert members.next_deadline(100.0) == 104.0


def test_alive_heard_again_changes_nothing_but_the_deadline(members):
    assert alive(members).heard(1, 5, 103.0) == []
    assert members.tick(106.9) == []
    assert members.next_deadline(106.9) == 107.0


def test_alive_silent_for_half_the_suspicion_time_is_suspect(members):
    assert alive(members).tick(103.9) == []
    assert members.tick(104.0) == [Change(1, ALIVE, SUSPECT, 5, 5, "silent for 4.0 s")]
    assert members.live == (1,)
    assert members.next_deadline(104.0) == 108.0


def test_alive_contact_failed_is_suspect_and_no_sooner_dead(members):
    (change,) = alive(members).contact_failed(1, 101.0)
    assert (change.before, change.after) == (ALIVE, SUSPECT)
    assert members.tick(107.9) == []
    assert [change.after for change in members.tick(108.0)] == [DEAD]


@pytest.mark.parametrize("state", [lambda members: members, suspect, dead, gone])
def test_contact_failed_changes_nobody_else(members, state):
    before = state(members).states
    assert members.contact_failed(1, 109.0) == []
    assert members.states == before


def test_who_is_heard_and_answers_no_call_for_twice_the_suspicion_time_is_dead(members):
    alive(members)
    for now in range(101, 117):
        members.contact_failed(1, float(now))
        members.heard(1, 5, now + 0.5)
        assert members.is_live(1)
    (change,) = members.contact_failed(1, 117.0)
    assert (change.after, change.reason) == (DEAD, "heard, but answers no call for 16.0 s")
    assert members.heard(1, 5, 117.5) == []
    assert [change.after for change in members.answered(1, 5, 118.0)] == [ALIVE]


def test_a_call_that_fails_before_and_one_after_a_pause_of_ones_own_bury_nobody(members):
    alive(members).contact_failed(1, 101.0)
    assert members.contact_failed(1, 131.0) == []
    assert members.is_live(1)


@pytest.mark.parametrize("sign", [lambda m: m.answered(1, 5, 110.0), lambda m: m.heard(1, 6, 110.0)])
def test_an_answer_and_a_new_life_forget_the_calls_that_failed(members, sign):
    alive(members).contact_failed(1, 101.0)
    members.heard(1, 5, 105.0)
    sign(members)
    assert [change.after for change in members.contact_failed(1, 117.5)] == [SUSPECT]


@pytest.mark.parametrize("sign", ["heard", "answered"])
def test_suspect_heard_or_answering_refutes(members, sign):
    assert getattr(suspect(members), sign)(1, 5, 107.0) == [Change(1, SUSPECT, ALIVE, 5, 5, sign)]
    assert members.tick(110.9) == []
    assert members.next_deadline(110.9) == 111.0


def test_suspect_silent_for_the_suspicion_time_is_dead(members):
    assert suspect(members).tick(107.9) == []
    assert members.tick(108.0) == [Change(1, SUSPECT, DEAD, 5, 5, "silent for 8.0 s")]
    assert members.live == ()
    assert members.next_deadline(108.0) is None


def test_dead_heard_stays_dead(members):
    assert dead(members).heard(1, 5, 120.0) == []
    (change,) = members.heard(1, 6, 121.0)
    assert (change.before, change.after, change.restarted) == (DEAD, DEAD, True)


def test_dead_that_answers_refutes_its_own_death(members):
    (change,) = dead(members).answered(1, 5, 120.0)
    assert (change.before, change.after, change.restarted) == (DEAD, ALIVE, False)


def test_dead_that_answers_in_a_new_incarnation_is_alive_and_restarted(members):
    assert dead(members).answered(1, 6, 120.0) == [Change(1, DEAD, ALIVE, 5, 6, "restarted as incarnation 6")]


def test_dead_stays_dead(members):
    assert dead(members).tick(500.0) == []
    assert members.states[1] is DEAD


def test_alive_new_incarnation_is_a_change_too(members):
    (change,) = alive(members).heard(1, 6, 101.0)
    assert (change.before, change.after, change.restarted) == (ALIVE, ALIVE, True)
    assert members.incarnation(1) == 6


@pytest.mark.parametrize("state", [alive, suspect, dead, gone])
def test_an_old_incarnation_is_ignored_and_counted(members, state):
    before = state(members).as_dict(110.0)["neighbors"]
    assert members.heard(1, 4, 110.0) == []
    assert members.left(1, 4, 110.0) == []
    assert members.as_dict(110.0)["neighbors"] == before
    assert members.ignored_count == 2


@pytest.mark.parametrize("state", [lambda members: members, alive, suspect, dead])
def test_a_goodbye_is_left(members, state):
    (change,) = state(members).left(1, 5, 110.0)
    assert change.after is LEFT
    assert members.tick(500.0) == []
    assert members.next_deadline(500.0) is None


def test_left_is_not_revived_by_its_own_incarnation(members):
    assert gone(members).heard(1, 5, 102.0) == []
    assert members.states[1] is LEFT
    assert members.ignored_count == 1


def test_left_heard_in_a_higher_incarnation_may_come_back(members):
    (change,) = gone(members).heard(1, 6, 102.0)
    assert (change.before, change.after, change.restarted) == (LEFT, UNKNOWN, True)
    (change,) = members.answered(1, 6, 102.1)
    assert (change.before, change.after, change.restarted) == (UNKNOWN, ALIVE, False)


def test_left_that_answers_in_a_higher_incarnation_is_back(members):
    (change,) = gone(members).answered(1, 6, 102.0)
    assert (change.before, change.after, change.restarted) == (LEFT, ALIVE, True)


def test_left_twice_is_one_change(members):
    assert gone(members).left(1, 5, 102.0) == []


def test_a_peer_that_was_paused_buries_nobody(members):
    alive(members).answered(2, 1, 100.5)
    members.contact_failed(2, 101.0)
    assert members.tick(160.0) == []
    assert members.states == {1: ALIVE, 2: SUSPECT}
    assert members.pause_count == 1
    assert members.next_deadline(160.0) == 164.0


def test_a_tick_up_to_a_heartbeat_late_is_no_pause(members):
    assert [change.after for change in alive(members).tick(105.0)] == [SUSPECT]
    assert members.pause_count == 0


def test_a_pause_excuses_a_silence_only_once(members):
    alive(members).tick(160.0)
    assert [change.after for change in members.tick(220.0)] == [DEAD]
    members.answered(1, 5, 221.0)
    assert members.tick(280.0) == []
    assert members.pause_count == 2


def test_after_a_pause_a_really_dead_neighbor_is_found_in_the_suspicion_time(members):
    alive(members).tick(160.0)
    members.tick(164.0)
    assert [change.after for change in members.tick(168.0)] == [DEAD]


def test_ticking_at_each_deadline_always_gets_on():
    # 0.1 + 0.7 / 2 and the like are not exact: a deadline that is reached must be over.
    members = Membership(range(50), Timeouts(heartbeat_s=0.1, suspicion_s=0.7))
    now = 0.1
    for neighbor in range(50):
        members.answered(neighbor, 1, now + neighbor / 77)
    steps = 0
    while (deadline := members.next_deadline(now)) is not None:
        now = deadline
        assert members.tick(now)
        steps += 1
    assert set(members.states.values()) == {DEAD}
    assert steps <= 100


def test_a_deadline_is_never_in_the_past(members):
    assert alive(members).next_deadline(300.0) == 300.0


def test_a_stranger_is_a_bug_of_the_caller(members):
    for call in (
        lambda: members.heard(7, 1, 0.0),
        lambda: members.answered(7, 1, 0.0),
        lambda: members.left(7, 1, 0.0),
        lambda: members.contact_failed(7, 0.0),
    ):
        with pytest.raises(LocalProtocolError, match="peer 7"):
            call()


@pytest.mark.parametrize("state", [lambda members: members, alive, suspect, dead, gone])
def test_as_dict_goes_through_json_and_back(members, state):
    data = state(members).as_dict(110.0)
    copy = Membership.from_dict(json.loads(json.dumps(data)), Manifest(timeouts=TIMEOUTS).timeouts, 10.0)
    assert copy.as_dict(10.0) == data
    assert copy.states == members.states

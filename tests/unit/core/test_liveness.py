"""Failure detection, one test per transition. Heartbeat 1.6 s, suspicion 8 s: suspect after 4 s of silence, dead after 8 s."""

import pytest

from coordinator_free_bootstrap import Timeouts
from peer.core.liveness import Change, Liveness, NeighborState, check_all, next_check

UNKNOWN, ALIVE, SUSPECT, DEAD, LEFT = NeighborState
TIMEOUTS = Timeouts(suspicion_s=8.0)


@pytest.fixture
def neighbors():
    return {1: Liveness(TIMEOUTS), 2: Liveness(TIMEOUTS)}


def check(neighbors, now):
    return check_all(neighbors, now, TIMEOUTS.heartbeat_s)


def due(neighbors):
    return next_check(neighbors.values())


def unknown(neighbors):
    return neighbors[1]


def alive(neighbors):
    neighbors[1].answered(100.0)
    return neighbors[1]


def suspect(neighbors):
    alive(neighbors)
    check(neighbors, 104.0)
    return neighbors[1]


def dead(neighbors):
    suspect(neighbors)
    check(neighbors, 108.0)
    return neighbors[1]


def left(neighbors):
    alive(neighbors).left(101.0)
    return neighbors[1]


@pytest.mark.parametrize(
    ("state", "expected"), [(unknown, UNKNOWN), (alive, ALIVE), (suspect, SUSPECT), (dead, DEAD), (left, LEFT)]
)
def test_states_that_are_live_and_that_must_answer(neighbors, state, expected):
    neighbor = state(neighbors)
    assert neighbor.state is expected
    assert neighbor.is_live == (expected in (ALIVE, SUSPECT))
    assert neighbor.must_answer == (expected in (UNKNOWN, DEAD))
    assert neighbors[2].state is UNKNOWN, "the other neighbor is not affected"


def test_neighbors_are_unknown_at_first(neighbors):
    assert due(neighbors) is None
    assert check(neighbors, 1e9) == {}
    assert {neighbor.state for neighbor in neighbors.values()} == {UNKNOWN}


def test_unknown_neighbor_that_is_heard_stays_unknown(neighbors):
    """It must answer first: a neighbor that is heard but cannot be reached would delay every round."""
    assert unknown(neighbors).heard(99.0) is None
    assert neighbors[1].state is UNKNOWN and due(neighbors) is None


def test_unknown_neighbor_that_answers_is_alive(neighbors):
    assert unknown(neighbors).answered(100.0) == Change(UNKNOWN, ALIVE, "answered")
    assert due(neighbors) == 104.0


def test_alive_neighbor_that_is_heard_again_is_checked_later(neighbors):
    assert alive(neighbors).heard(103.0) is None
    assert check(neighbors, 106.9) == {}
    assert due(neighbors) == 107.0


def test_alive_neighbor_silent_for_half_the_suspicion_time_is_suspect(neighbors):
    alive(neighbors)
    assert check(neighbors, 103.9) == {}
    assert check(neighbors, 104.0) == {1: Change(ALIVE, SUSPECT, "silent for 4.0 s")}
    assert due(neighbors) == 108.0


def test_alive_neighbor_is_suspect_after_a_failed_call_and_dead_after_the_suspicion_time(neighbors):
    change = alive(neighbors).call_failed(101.0)
    assert (change.before, change.after) == (ALIVE, SUSPECT)
    assert check(neighbors, 107.9) == {}
    assert check(neighbors, 108.0)[1].after is DEAD


@pytest.mark.parametrize("state", [unknown, suspect, dead, left])
def test_one_failed_call_changes_no_other_state(neighbors, state):
    neighbor = state(neighbors)
    before = neighbor.state
    assert neighbor.call_failed(107.5) is None
    assert neighbor.state is before


def test_neighbor_that_is_heard_but_answers_no_call_for_twice_the_suspicion_time_is_dead(neighbors):
    neighbor = alive(neighbors)
    for now in range(101, 117):
        neighbor.call_failed(float(now))
        neighbor.heard(now + 0.5)
        assert neighbor.is_live
    change = neighbor.call_failed(117.0)
    assert (change.after, change.reason) == (DEAD, "heard, but answers no call for 16.0 s")
    assert neighbor.heard(117.5) is None
    assert neighbor.answered(118.0).after is ALIVE


def test_two_failed_calls_with_a_pause_between_them_do_not_add_up(neighbors):
    neighbor = alive(neighbors)
    neighbor.call_failed(101.0)
    assert neighbor.call_failed(131.0) is None
    assert neighbor.is_live


@pytest.mark.parametrize(
    "contact", [lambda neighbor: neighbor.answered(110.0), lambda neighbor: neighbor.heard(110.0, restarted_as=6)]
)
def test_an_answer_or_a_restart_ends_a_series_of_failed_calls(neighbors, contact):
    neighbor = alive(neighbors)
    neighbor.call_failed(101.0)
    neighbor.heard(105.0)
    neighbor.call_failed(109.0)
    contact(neighbor)
    assert neighbor.call_failed(117.5).after is SUSPECT


@pytest.mark.parametrize("how", ["heard", "answered"])
def test_suspect_neighbor_that_is_heard_or_answers_is_alive(neighbors, how):
    assert getattr(suspect(neighbors), how)(107.0) == Change(SUSPECT, ALIVE, how)
    assert check(neighbors, 110.9) == {}
    assert due(neighbors) == 111.0


def test_suspect_neighbor_silent_for_the_suspicion_time_is_dead(neighbors):
    suspect(neighbors)
    assert check(neighbors, 107.9) == {}
    assert check(neighbors, 108.0) == {1: Change(SUSPECT, DEAD, "silent for 8.0 s")}
    assert due(neighbors) is None


def test_dead_neighbor_that_is_heard_stays_dead(neighbors):
    assert dead(neighbors).heard(120.0) is None
    assert neighbors[1].heard(121.0, restarted_as=6) == Change(DEAD, DEAD, "restarted as incarnation 6")


def test_dead_neighbor_that_answers_is_alive(neighbors):
    assert dead(neighbors).answered(120.0) == Change(DEAD, ALIVE, "answered")


def test_dead_neighbor_that_answers_in_a_new_incarnation_is_alive(neighbors):
    assert dead(neighbors).answered(120.0, restarted_as=6) == Change(DEAD, ALIVE, "restarted as incarnation 6")


def test_dead_neighbor_stays_dead_in_silence(neighbors):
    neighbor = dead(neighbors)
    assert check(neighbors, 500.0) == {}
    assert neighbor.state is DEAD


def test_restart_of_an_alive_neighbor_is_a_change(neighbors):
    assert alive(neighbors).heard(101.0, restarted_as=6) == Change(ALIVE, ALIVE, "restarted as incarnation 6")


@pytest.mark.parametrize("state", [unknown, alive, suspect, dead])
def test_neighbor_that_says_goodbye_has_left(neighbors, state):
    assert state(neighbors).left(110.0).after is LEFT
    assert check(neighbors, 500.0) == {}
    assert due(neighbors) is None


@pytest.mark.parametrize("how", ["heard", "answered"])
def test_neighbor_that_left_does_not_return_in_the_same_incarnation(neighbors, how):
    assert getattr(left(neighbors), how)(102.0) is None
    assert neighbors[1].state is LEFT


def test_neighbor_that_left_and_is_heard_in_a_new_incarnation_is_unknown_until_it_answers(neighbors):
    assert left(neighbors).heard(102.0, restarted_as=6) == Change(LEFT, UNKNOWN, "restarted as incarnation 6")
    assert neighbors[1].answered(102.1) == Change(UNKNOWN, ALIVE, "answered")


def test_neighbor_that_left_and_answers_in_a_new_incarnation_is_alive(neighbors):
    assert left(neighbors).answered(102.0, restarted_as=6) == Change(LEFT, ALIVE, "restarted as incarnation 6")


def test_second_goodbye_is_no_change(neighbors):
    assert left(neighbors).left(102.0) is None


def test_check_after_a_pause_of_this_peer_marks_no_neighbor_dead(neighbors):
    alive(neighbors)
    neighbors[2].answered(100.5)
    neighbors[2].call_failed(101.0)
    assert check(neighbors, 160.0) == {}
    assert [neighbor.state for neighbor in neighbors.values()] == [ALIVE, SUSPECT]
    assert due(neighbors) == 164.0


def test_check_up_to_a_heartbeat_late_is_no_pause(neighbors):
    alive(neighbors)
    assert check(neighbors, 104.0 + TIMEOUTS.heartbeat_s)[1].after is SUSPECT


def test_pause_restarts_a_silence_only_once(neighbors):
    alive(neighbors)
    check(neighbors, 160.0)
    assert check(neighbors, 220.0)[1].after is DEAD
    neighbors[1].answered(221.0)
    assert check(neighbors, 280.0) == {}


def test_neighbor_that_died_during_a_pause_is_dead_after_the_suspicion_time(neighbors):
    alive(neighbors)
    check(neighbors, 160.0)
    check(neighbors, 164.0)
    assert check(neighbors, 168.0)[1].after is DEAD


def test_check_at_each_named_time_always_makes_progress():
    # 0.1 + 0.7 / 2 and the like are not exact: a time that is reached must count as over.
    timeouts = Timeouts(suspicion_s=0.7)
    neighbors = {n: Liveness(timeouts) for n in range(50)}
    for n, neighbor in neighbors.items():
        neighbor.answered(0.1 + n / 77)
    checks = 0
    while (now := due(neighbors)) is not None:
        assert check_all(neighbors, now, 0.1)
        checks += 1
    assert {neighbor.state for neighbor in neighbors.values()} == {DEAD}
    assert checks <= 100

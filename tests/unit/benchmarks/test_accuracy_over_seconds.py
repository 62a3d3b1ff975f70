"""Stragglers on a virtual clock: training takes time, lockstep waits for the slow peer, async does not."""

import pytest
from accuracy import LOCKSTEP, PACES, PEERS, SLOW, Run

SECONDS = 12.0
FAST = [p for p in range(PEERS) if p != SLOW]


def run(algorithm, pace):
    return Run(algorithm, PACES[pace], seed=1, seconds=SECONDS)


def test_in_lockstep_no_peer_is_more_than_a_round_ahead_of_the_slow_one():
    rounds = run("dfedavg", LOCKSTEP).rounds
    assert len(rounds[SLOW]) == 2
    assert {len(rounds[p]) for p in FAST} <= {2, 3}  # three at those that are not its neighbors


@pytest.mark.parametrize(("algorithm", "pace"), [("dfedavg", "async"), ("local", LOCKSTEP)])
def test_a_peer_that_does_not_wait_has_rounds_of_its_own_training_alone(algorithm, pace):
    found = run(algorithm, pace)
    assert found.rounds_of([SLOW]) == 2
    assert all(SECONDS / 1.1 - 1 <= len(found.rounds[p]) <= SECONDS / 0.9 for p in FAST)


def test_a_round_deadline_frees_the_fast_peers():
    short = next(name for name in PACES if "deadline" in name)
    assert run("dfedavg", short).rounds_of(FAST) > 3 * run("dfedavg", LOCKSTEP).rounds_of(FAST)


def test_equal_runs_have_equal_figures():
    first, second = (run("dfedavg", "async") for _ in range(2))
    assert first.megabytes == second.megabytes > 0
    assert first.accuracy(SECONDS) == second.accuracy(SECONDS)


def test_accuracy_is_that_of_a_moment():
    found = run("local", LOCKSTEP)
    assert found.accuracy(0.5) == [0.0] * PEERS
    there = found.seconds_to(found.mean(SECONDS))
    assert 0 < there <= SECONDS and found.mean(there) >= found.mean(SECONDS)
    assert found.seconds_to(101.0) == float("inf")

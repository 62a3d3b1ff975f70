"""What still has to be said: in order, one at a time, repeated until answered or obsolete."""

import pytest

from peer.core.messages import Announce
from peer.core.outbox import RETRY_MAX_S, Outbox, backoff_s


def said(round_index, step=0):
    return Announce(0, 1, round_index, step, total=0)


@pytest.fixture
def outbox():
    box = Outbox((1, 2), peer_id=0)
    for t in range(3):
        box.post(1, said(t))
    return box


def test_one_message_at_a_time_in_order(outbox):
    assert outbox.next(1, 0.0, 0) == said(0)
    assert outbox.next(1, 0.0, 0) is None, "the first is under way"
    assert outbox.answered(1) == said(0)
    assert outbox.next(1, 0.0, 0) == said(1)
    assert outbox.next(2, 0.0, 0) is None


def test_what_failed_goes_first_again_after_a_pause(outbox):
    outbox.next(1, 0.0, 0)
    outbox.failed(1, now=10.0)
    at = outbox.next_retry(1)
    assert 10.05 <= at <= 10.15
    assert outbox.next(1, at - 1e-6, 0) is None
    assert outbox.next(1, at, 0) == said(0)
    outbox.failed(1, now=20.0)
    outbox.retry_now(1)
    assert outbox.next(1, 20.0, 0) == said(0), "it was heard: no reason to wait"


def test_rounds_that_the_neighbor_has_closed_are_dropped(outbox):
    assert outbox.next(1, 0.0, 2) == said(2)


def test_a_new_life_is_told_everything_of_its_round_again(outbox):
    for _ in range(3):
        outbox.next(1, 0.0, 0)
        outbox.answered(1)
    assert outbox.pending(1) == 0
    assert outbox.repost(1, 1) == 2
    assert outbox.next(1, 0.0, 0) == said(1)


def test_what_is_forgotten_is_not_repeated_even_if_it_was_under_way(outbox):
    outbox.next(1, 0.0, 0)
    outbox.forget(1)
    outbox.failed(1, now=0.0)
    assert outbox.next(1, 100.0, 0) == said(1)
    assert outbox.repost(1, 0) == 2


def test_who_leaves_is_told_nothing_more_but_finds_it_when_it_returns(outbox):
    outbox.clear(1)
    assert outbox.next(1, 0.0, 0) is None
    assert outbox.repost(1, 2) == 1


def test_a_step_is_owed_until_it_is_answered(outbox):
    assert outbox.owes(1, (0, 0)) and not outbox.owes(1, (0, 1)) and not outbox.owes(2, (0, 0))
    outbox.next(1, 0.0, 0)
    assert outbox.owes(1, (0, 0)), "under way is not answered"
    outbox.answered(1)
    assert not outbox.owes(1, (0, 0)) and outbox.owes(1, (1, 0))


def test_async_pace_leaves_out_what_a_newer_model_replaces(outbox):
    outbox.supersede(1, 2)
    assert outbox.next(1, 0.0, 0) == said(2)


@pytest.mark.parametrize(
    ("failures", "least", "most"), [(1, 0.05, 0.15), (3, 0.2, 0.6), (9, 1.0, 3.0), (10_000, 1.0, 3.0)]
)
def test_pauses_double_up_to_a_limit(failures, least, most):
    assert backoff_s(failures, 0.0) == pytest.approx(least)
    assert backoff_s(failures, 1.0) == pytest.approx(most) and most <= 1.5 * RETRY_MAX_S

"""The outbox of one neighbor: messages in order, one in flight, retried until answered or obsolete."""

import pytest

from peer.core.backoff import RETRY_MAX_S, backoff_s
from peer.core.messages import ModelHeader, Pass, Select
from peer.core.neighbor import Outbox


def message(round_index, step=0):
    return Pass(0, 1, round_index, step)


@pytest.fixture
def outbox():
    box = Outbox(0, 1)
    for t in range(3):
        box.post(message(t))
    return box


def test_one_message_is_in_flight_at_a_time_in_order(outbox):
    assert outbox.next(0.0, 0) == message(0)
    assert outbox.next(0.0, 0) is None, "the first is in flight"
    assert outbox.answered() == message(0)
    assert outbox.next(0.0, 0) == message(1)


def test_failed_message_is_sent_first_again_after_a_pause(outbox):
    outbox.next(0.0, 0)
    outbox.failed(10.0)
    at = outbox.next_retry()
    assert 10.05 <= at <= 10.15
    assert outbox.next(at - 1e-6, 0) is None
    assert outbox.next(at, 0) == message(0)
    outbox.failed(20.0)
    outbox.retry_now()
    assert outbox.next(20.0, 0) == message(0), "the neighbor was heard: the pause is over"


def test_jitter_differs_between_neighbors():
    pauses = set()
    for neighbor in range(1, 9):
        outbox = Outbox(0, neighbor)
        outbox.post(message(0))
        outbox.next(0.0, 0)
        outbox.failed(0.0)
        pauses.add(outbox.next_retry())
    assert len(pauses) == 8


def test_messages_of_rounds_that_the_neighbor_has_closed_are_dropped(outbox):
    assert outbox.next(0.0, 2) == message(2)


@pytest.mark.parametrize(("neighbor_round", "sent"), [(3, True), (4, True), (5, False)])
def test_selection_of_the_round_before_the_neighbors_is_still_sent(neighbor_round, sent):
    outbox = Outbox(0, 1)
    select = Select(0, 1, 3, 1)
    outbox.post(select)
    assert outbox.next(0.0, neighbor_round) == (select if sent else None)


def test_restarted_neighbor_gets_all_messages_from_its_round_again(outbox):
    for _ in range(3):
        outbox.next(0.0, 0)
        outbox.answered()
    assert outbox.pending() == 0
    outbox.repost(1)
    assert outbox.pending() == 2
    assert outbox.next(0.0, 0) == message(1)


def test_dropped_messages_are_not_sent_again_even_if_one_was_in_flight(outbox):
    outbox.next(0.0, 0)
    outbox.drop_before(1)
    outbox.failed(0.0)
    assert outbox.next(100.0, 0) == message(1)
    outbox.answered()
    outbox.repost(0)
    assert outbox.pending() == 2


def test_neighbor_that_left_gets_kept_messages_when_it_returns(outbox):
    outbox.clear()
    assert outbox.next(0.0, 0) is None
    outbox.repost(2)
    assert outbox.next(0.0, 0) == message(2)


def test_step_is_owed_until_its_messages_are_answered(outbox):
    assert outbox.owes((0, 0), 0) and not outbox.owes((0, 1), 0)
    outbox.next(0.0, 0)
    assert outbox.owes((0, 0), 0), "a message in flight is not answered"
    outbox.answered()
    assert not outbox.owes((0, 0), 0) and outbox.owes((1, 0), 0)


def test_async_pace_drops_unsent_models_of_earlier_rounds(outbox):
    outbox.supersede(2)
    assert outbox.next(0.0, 0) == message(2)


def test_only_a_model_in_flight_is_overdue_and_after_a_stall_at_doubling_times(outbox):
    outbox.next(0.0, 0)
    assert not outbox.is_overdue(1e9, 5.0), "a pass is small; its call has a deadline"
    outbox.answered()
    outbox = Outbox(0, 1)
    outbox.post(ModelHeader(0, 1, 0, 0, 0, 0, 1, 4, 1.0, 24, "float32"))
    outbox.next(100.0, 0)
    found = [at for at in range(100, 118) if outbox.is_overdue(float(at), 5.0)]
    assert found == [105, 110, 115], "it still moves"
    found = []
    for at in range(118, 200):
        if outbox.is_overdue(float(at), 5.0):
            outbox.stalled(0.0)
            assert outbox.next(float(at), 0) is not None
            found.append(at)
    assert found == [120, 130, 150, 190]


@pytest.mark.parametrize(
    ("failures", "least", "most"), [(1, 0.05, 0.15), (3, 0.2, 0.6), (9, 1.0, 3.0), (10_000, 1.0, 3.0)]
)
def test_backoff_doubles_up_to_a_limit(failures, least, most):
    assert backoff_s(failures, 0.0) == pytest.approx(least)
    assert backoff_s(failures, 1.0) == pytest.approx(most) and most <= 1.5 * RETRY_MAX_S

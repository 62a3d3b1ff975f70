"""Bookkeeping of arrivals: each model is folded once, each stream is in one table."""

import pytest

from peer.core.arrivals import Arrival, Arrivals
from peer.core.messages import ModelHeader


def header(sender=1, round_index=0, step=0, slot=0, incarnation=1):
    return ModelHeader(sender, incarnation, round_index, step, slot, 0, 1, 4, 1.0, 24, "float32")


@pytest.mark.parametrize(
    ("place", "duplicate"),
    [((3, 1), True), ((3, 0), True), ((2, 5), True), ((3, 2), False), ((4, 0), False)],
)
def test_model_up_to_the_last_folded_step_is_a_duplicate(place, duplicate):
    arrivals = Arrivals()
    arrivals.mark_folded(header(round_index=3, step=1))
    assert arrivals.is_duplicate(header(round_index=place[0], step=place[1])) == duplicate


def test_folded_models_are_remembered_by_sender_and_slot_over_incarnations_and_restarts():
    arrivals = Arrivals()
    arrivals.mark_folded(header(round_index=3))
    resumed = Arrivals()
    resumed.restore(arrivals.as_rows())
    for known in (arrivals, resumed):
        assert known.is_duplicate(header(round_index=3, incarnation=9))
        assert not known.is_duplicate(header(sender=2, round_index=3))
        assert not known.is_duplicate(header(slot=1, round_index=3))


def test_stream_is_forgotten_from_any_table():
    arrivals = Arrivals()
    tables = (arrivals.offered, arrivals.reading, arrivals.complete, arrivals.folding)
    for stream, table in enumerate(tables):
        table[stream] = Arrival(header(sender=stream), stream=stream)
    assert arrivals.buffers() == 3, "an unread stream holds no buffer"
    assert [each.stream for each in arrivals.unanswered()] == [0, 1, 2], "a stream that is being folded is answered"
    known = [arrival for table in tables for arrival in table.values()]
    assert all(map(arrivals.forget, known)) and not any(tables)
    assert not any(map(arrivals.forget, known))


def test_only_unread_streams_can_be_replaced_or_ended():
    arrivals = Arrivals()
    unread, read, complete = (Arrival(header(slot=slot), stream=slot) for slot in range(3))
    arrivals.offered[0], arrivals.reading[1], arrivals.complete[2] = unread, read, complete
    assert arrivals.unread_of(1) == [unread, read] and arrivals.unread_of(2) == []
    assert [arrivals.unread_copy(header(slot=slot)) for slot in range(3)] == [unread, read, None]
    assert arrivals.unread_copy(header(slot=0, incarnation=2)) is None, "another incarnation's model is another model"
    assert arrivals.has_complete(header(slot=2)) and not arrivals.has_complete(header(slot=1))


def test_senders_of_a_step_are_those_with_an_offered_or_complete_model():
    arrivals = Arrivals()
    arrivals.offered[1], arrivals.complete[2] = Arrival(header(sender=1)), Arrival(header(sender=2))
    arrivals.reading[3], arrivals.offered[4] = Arrival(header(sender=3)), Arrival(header(sender=4, round_index=1))
    assert arrivals.senders_at((0, 0)) == {1, 2}


def test_models_folded_in_a_round_are_counted_by_sender_slot_and_step():
    arrivals = Arrivals()
    for t in range(2):
        arrivals.mark_folded(header(round_index=t))
    arrivals.mark_folded(header(slot=1))
    assert [arrivals.count_in_round(header(slot=slot)) for slot in range(3)] == [2, 1, 0]

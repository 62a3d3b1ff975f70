"""Bookkeeping of arrivals: each folded once, each stream in one place."""

import pytest

from peer.core.inbox import Inbox
from peer.core.messages import ModelHeader


def header(sender=1, round_index=0, step=0, slot=0, incarnation=1):
    return ModelHeader(sender, incarnation, round_index, step, slot, 0, 1, 4, 2, 1.0, (), 24, "float32")


@pytest.mark.parametrize(
    ("place", "duplicate"),
    [((3, 1), True), ((3, 0), True), ((2, 5), True), ((3, 2), False), ((4, 0), False)],
)
def test_marks_only_grow(place, duplicate):
    inbox = Inbox()
    inbox.mark(header(round_index=3, step=1))
    assert inbox.is_duplicate(header(round_index=place[0], step=place[1])) == duplicate


def test_marks_are_per_sender_and_slot_and_outlive_incarnations_and_restarts():
    inbox = Inbox()
    inbox.mark(header(round_index=3))
    again = Inbox()
    again.restore(inbox.as_rows())
    for known in (inbox, again):
        assert known.is_duplicate(header(round_index=3, incarnation=9))
        assert not known.is_duplicate(header(sender=2, round_index=3))
        assert not known.is_duplicate(header(slot=1, round_index=3))


def test_a_stream_is_forgotten_wherever_it_is():
    inbox = Inbox()
    tables = (inbox.held, inbox.reading, inbox.waiting, inbox.folding)
    for stream, table in enumerate(tables):
        table[stream] = header(sender=stream)
    assert inbox.buffers() == 3, "an unread stream holds no buffer"
    assert [inbox.forget(stream).sender for stream in range(4)] == [0, 1, 2, 3]
    assert inbox.forget(0) is None and not any(tables)


def test_only_unread_and_half_read_streams_can_be_replaced_or_hung_up():
    inbox = Inbox()
    inbox.held[1], inbox.reading[2], inbox.waiting[3] = header(slot=0), header(slot=1), header(slot=2)
    assert inbox.streams_of(1) == [1, 2] and inbox.streams_of(2) == []
    assert [inbox.same(header(slot=slot)) for slot in range(3)] == [1, 2, None]
    assert inbox.same(header(slot=0, incarnation=2)) is None, "another life's model is another model"

"""Peers that finished on another machine: their neighbors know it."""

import pytest
from test_ask import line_of, text_of
from tools.fake_run import STATUS

from peer.view.live.ask import answered, has_no_answer, in_json, view_of
from peer.view.state.events import LoggedEvent
from peer.view.state.hearsay import with_endings
from peer.view.state.peer_status import read_status


def said(peer_id, **changes):
    return answered(read_status(STATUS | {"peer_id": peer_id} | changes))


def silent(peer_id):
    return LoggedEvent(1.0, peer_id, {"kind": "silent", "reason": "connection refused"})


def left(peer_id, rounds):
    return {"neighbors": {str(peer_id): "left"}, "neighbor_rounds": {str(peer_id): rounds}}


@pytest.mark.parametrize(("rounds", "ending"), [(60, "completed"), (34, "left")])
def test_a_neighbor_tells_how_a_silent_peer_ended(rounds, ending):
    view = view_of(None, [said(3, **left(1, rounds)), said(4, **left(1, rounds)), silent(1)], {})
    found = view.log.peers[1]
    assert found.status == ending and not has_no_answer(found)
    assert line_of(view, 1) == f"{ending} after {rounds} rounds, as peer 3, 4 says"
    assert in_json(found) == {"status": ending, "rounds_completed": rounds, "told_by": [3, 4]}
    assert text_of(view).splitlines()[2].split()[:3] == ["1", ending, f"{rounds}/?"]


def test_a_silent_peer_of_which_nobody_knows_an_end_has_no_answer():
    for word in ("alive", "dead", "suspect", "unknown"):
        view = view_of(None, [said(3, neighbors={"1": word}, neighbor_rounds={"1": 60}), silent(1)], {})
        assert has_no_answer(view.log.peers[1]) and line_of(view, 1) == "connection refused"


def test_a_peer_that_a_neighbor_hears_has_not_ended():
    news = [said(3, **left(1, 60)), said(4, neighbors={"1": "alive"}, neighbor_rounds={"1": 35}), silent(1)]
    for told in (news, [news[1], news[0], news[2]]):
        assert [event.kind for event in with_endings(told)] == ["status", "status", "silent"]


def test_one_neighbor_that_knows_the_last_round_is_enough():
    for rounds in ((34, 60), (60, 34)):
        news = [said(3 + i, **left(1, done)) for i, done in enumerate(rounds)]
        event = with_endings([*news, silent(1)])[2]
        assert event.data == {"status": "completed", "rounds_completed": 60, "told_by": [3, 4]}

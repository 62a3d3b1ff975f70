"""Peers that finished on another machine: their neighbors know it, and `peer status --watch` ends."""

import pytest
import typer
from test_ask import line_of, text_of
from tools.fake_run import STATUS, write_graph
from typer.testing import CliRunner

import peer.view.verbs.status
from peer.view.live import ask as asking
from peer.view.live.ask import answered, has_no_answer, in_json, view_of
from peer.view.state.events import LoggedEvent
from peer.view.state.hearsay import Hearsay
from peer.view.state.peer_status import read_status
from peer.view.verbs.status import status


def said(peer_id, **changes):
    return answered(read_status(STATUS | {"peer_id": peer_id} | changes))


def silent(peer_id):
    return LoggedEvent(1.0, peer_id, {"kind": "silent", "reason": "connection refused"})


def left(peer_id, rounds):
    return {"neighbors": {str(peer_id): "left"}, "neighbor_rounds": {str(peer_id): rounds}}


@pytest.mark.parametrize(("rounds", "ending"), [(60, "completed"), (34, "left")])
def test_a_neighbor_tells_how_a_silent_peer_ended(rounds, ending):
    """Before, such a peer was "silent" for ever, and the watch never ended."""
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


def test_what_was_heard_is_kept_until_the_peer_returns():
    heard = Hearsay()
    heard.take([said(3, **left(1, 34)), silent(1)])
    assert [event.kind for event in heard.take([silent(3), silent(1)])] == ["silent", "summary"]
    heard.take([said(3, neighbors={"1": "alive"}, neighbor_rounds={"1": 35}), silent(1)])
    assert heard.take([silent(1)])[0].kind == "silent"
    heard.take([said(1, phase="finished", round_index=60)])
    (event,) = heard.take([silent(1)])
    assert event.data["summary"] == {"status": "completed", "rounds_completed": 60, "told_by": []}
    heard.take([said(1, round_index=2)])  # a new run
    assert heard.take([silent(1)])[0].kind == "silent"


def run_of(*polls):
    """Return a function that gives the answers of one poll after the other, then silence."""
    left_over = iter(polls)

    async def answers(graph, *_):
        now = next(left_over, {})
        return [said(i, **now[i]) if i in now else silent(i) for i in graph.ids]

    return answers


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Return a function that watches a run with these polls, and gives its exit code and lines."""
    write_graph(tmp_path)
    clock = [0.0]
    monkeypatch.setattr("time.sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    app = typer.Typer()
    app.command()(status)

    def run(*polls):
        monkeypatch.setattr(asking, "answers", run_of(*polls))
        done = CliRunner().invoke(app, [str(tmp_path / "graph.json"), "--watch"])
        return done.exit_code, done.stdout.splitlines(), clock[0]

    return run


def everyone(count=4, **changes):
    return {i: changes for i in range(count)}


def test_the_watch_ends_when_a_neighbor_knows_the_end_of_the_others(watch):
    running, last = everyone(), {0: {"phase": "finished", "round_index": 60}}
    for other in (1, 2, 3):
        last[0].setdefault("neighbors", {})[str(other)] = "left"
        last[0].setdefault("neighbor_rounds", {})[str(other)] = 60
    code, lines, _ = watch(running, last)
    assert code == 0
    assert sorted(lines[-4:]) == [
        "peer 0: completed after 60 rounds",
        *(f"peer {i}: completed after 60 rounds, as peer 0 says" for i in (1, 2, 3)),
    ]


def test_the_watch_waits_for_peers_that_have_not_started_and_ends_when_nobody_is_left(watch):
    code, _, seconds = watch(*[{}] * 100, everyone())
    assert code == 40
    assert 100 * peer.view.verbs.status.WATCH_S + peer.view.verbs.status.GONE_S <= seconds < 300

"""`peer status`: the validation of answers, the line about one peer, the table, and words in place of gRPC's text."""

import io
import json
import math
import socket
from datetime import UTC, datetime, timedelta

import pytest
import typer
from rich.console import Console
from tools.fake_run import ACCURACY, STATUS, write_graph, write_peer
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import NeighborUnavailable, RemoteProtocolError, UsageError
from peer.store.files import write_json
from peer.view.live.ask import answered, ask, in_json, view_of
from peer.view.live.status_table import age, sentence, status_table
from peer.view.state.events import LoggedEvent
from peer.view.state.peer_status import read_status
from peer.view.state.run_files import PeerRun
from peer.view.state.tail import RunTail
from peer.view.state.view import View
from peer.view.verbs.status import status

MAE = {"name": "mae", "higher_is_better": False, "share": False}


def said(*changes, silent=()) -> View:
    """Return the state of peers that answered with these changes, and of those that did not."""
    news = [answered(read_status(STATUS | each)) for each in changes]
    return view_of(
        None, news + [LoggedEvent(1.0, peer_id, {"kind": "silent", "reason": reason}) for peer_id, reason in silent], {}
    )


def text_of(view, width=80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(status_table(view))
    return console.file.getvalue()


def line_of(view, peer_id) -> str:
    state = view.log.state()
    return sentence(view, state, state.peers[peer_id])


@pytest.fixture
def app():
    app = typer.Typer()
    app.command()(status)
    return app


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, "1 of 2 neighbors alive (2 suspect)"),
        ({"waiting_for": [1], "waiting_s": 4.04}, "; has waited 4.0 s for models of 1, in round 6"),
        (
            {"waiting_for": [1, 2], "waiting_s": 4.0},
            "; has waited 4.0 s for models of 1, in round 6; for models of 2, silent for 3.2 s and marked dead after 5 s",
        ),
        ({"owed_to": [1], "waiting_s": 4.0}, "; has waited 4.0 s for 1 to accept our models"),
        (
            {"waiting_for": [2], "waiting_s": 4.0, "neighbors": {"1": "alive", "2": "left"}},
            "; has waited 4.0 s for models of 2, in round 7, which left 3.2 s ago and may be restarting",
        ),
        ({"storage_error": "no space\n\u202eleft"}, "; no space\\n\\u202eleft"),
    ],
)
def test_the_line_has_round_stage_neighbors_and_what_the_peer_waits_for(changes, end):
    line = line_of(said(changes), 3)
    assert line.startswith("round 7 of 60, exchanging; 1 of 2 neighbors alive")
    assert line.endswith(end)


def test_a_peer_that_trains_alone_is_said_to():
    view = said({"neighbors": {"1": "left", "2": "dead"}, "totals": {"rounds_alone": 5}})
    assert line_of(view, 3).endswith(
        "0 of 2 neighbors alive (1 left, 2 dead); no neighbor is live; 5 of 7 rounds alone so far"
    )
    assert "peer 3: no neighbor is live; 5 of 7 rounds alone so far" in text_of(view)
    (row,) = view.everything()["peers"]
    assert row["alone"] == "no neighbor is live; 5 of 7 rounds alone so far"
    back = said({"totals": {"rounds_alone": 5}})
    assert [each["alone"] for each in back.everything()["peers"]] == [""]
    assert "alone" not in line_of(back, 3) and "alone" not in text_of(back)


def test_before_it_has_met_a_neighbor_none_is_alive():
    view = said({"neighbors": {"1": "unknown", "2": "unknown"}})
    assert "0 of 2 neighbors alive (1 unknown, 2 unknown)" in line_of(view, 3)
    assert " 0/2 " in text_of(view) and view.peer(view.log.state().peers[3], view.log.state()).alive == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round_index": None}, "round_index: expected an integer, got null"),
        ({"round_index": "7"}, 'round_index: expected an integer, got "7"'),
        ({"round_index": -1}, "round_index: expected at least 0, got -1"),
        ({"metric": ACCURACY | {"value": math.nan}}, "metric.value: expected a finite number, got NaN"),
        ({"neighbors": ["1"]}, "neighbors: expected an object, got a list"),
        ({"neighbors": {"1": "\u202ealive"}}, "neighbors"),
        ({"stage": "x" * 4000}, "stage: expected"),
        ({"waiting_s": 1e300}, "waiting_s: expected at most 1000000000, got 1e+300"),
        ({"storage_error": "x" * 5000}, "storage_error: expected"),
        ({"peer_id": 4}, "peer_id: expected 3, the peer that was asked, got 4"),
    ],
)
def test_an_answer_that_is_no_status_is_one_sentence(changes, words):
    """Before, such an answer ended `peer status` with KeyError or TypeError."""
    with pytest.raises(RemoteProtocolError) as error:
        read_status(STATUS | changes, 3)
    text = error.value.refusal.reason
    assert text.startswith("not a valid status: ") and words in text and len(text) < 300 and text.isprintable()


@pytest.mark.parametrize("missing", sorted(STATUS))
def test_a_missing_key_is_named(missing):
    with pytest.raises(RemoteProtocolError, match=f"{missing}: expected this required key, got nothing"):
        read_status({key: value for key, value in STATUS.items() if key != missing})


def test_sixteen_peers_fit_one_screen():
    """80 x 24: a line per peer with long rounds, many waits and reasons, header and notes."""
    waiting = {"waiting_for": list(range(9)), "waiting_s": 1234.5, "neighbors": {str(n): "suspect" for n in range(15)}}
    big = {"round_index": 99_998, "rounds_total": 99_999, "stage": "catching_up", "unchanged_s": 86_400.0}
    answers = [waiting | big | {"peer_id": peer_id} for peer_id in range(10)]
    silent = [(peer_id, f"not a valid status: round_index: found {peer_id}") for peer_id in range(10, 16)]
    lines = text_of(said(*answers, silent=silent)).splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    assert " ".join(lines[2].split()) == "0 catching up 99998/99999 0.500 1 21 m: 0, 1, 2\u2026 0/15 24 h"
    assert "and 3 more notes (peer status --json)" in lines[-1]
    shown = text_of(said({"waiting_for": [1], "waiting_s": 4.0, "metric": MAE | {"value": 0.5}})).splitlines()
    assert shown[0].split() == ["peer", "phase", "round", "mae", "cluster", "waits", "for", "alive", "since"]
    assert shown[2].split() == ["3", "exchanging", "7/60", "0.5", "1", "4", "s:", "1", "1/2", "4", "s"]


def test_further_metrics_are_columns_after_the_metric():
    more = [MAE | {"value": 12.5}, ACCURACY | {"name": "f1", "value": 0.25}, ACCURACY | {"name": "third", "value": 1.0}]
    view = said({"more_metrics": more})
    shown = text_of(view, width=100).splitlines()
    assert shown[0].split()[3:7] == ["accuracy", "mae", "f1", "cluster"]
    assert max(map(len, text_of(view).splitlines())) <= 80
    assert shown[2].split()[3:7] == ["0.500", "12.5", "0.250", "1"]
    state = view.log.state()
    assert view.peer(state.peers[3], state).metrics == [12.5, 0.25, 1.0]
    assert [each["mean"] for each in view.header(state).more_metrics] == [12.5, 0.25, 1.0]


def test_a_finished_peer_is_shown_from_its_summary_and_the_peer_is_named_once(tmp_path, app):
    """Before: "peer 0: peer 0 at 127.0.0.1:7400: Status: UNAVAILABLE: failed to connect to all addresses; last error..."."""
    graph = write_graph(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    text = (tmp_path / "graph.json").read_text()
    for peer_id in graph.ids:
        text = text.replace(graph.node(peer_id).address, f"127.0.0.{peer_id + 1}:{free}")
    (tmp_path / "graph.json").write_text(text)
    place = write_peer(tmp_path, 0)
    ended = (datetime.now(UTC) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    write_json(place.summary, json.loads(place.summary.read_text()) | {"ended_at": ended})
    write_peer(tmp_path, 1, rounds=2, end=False)
    found = ask(str(tmp_path / "graph.json"))
    peers = found.log.peers
    assert in_json(peers[0])["status"] == peers[0].status == "completed"
    assert [(peers[i].status, peers[i].silent) for i in (1, 2)] == [
        ("dead", "connection refused"),
        ("silent", "connection refused"),
    ]
    rows = text_of(found).splitlines()
    assert rows[2].split() == ["0", "completed", "6/6", "0.950", "1", "-", "-", "5", "m"]
    assert rows[4].split() == ["2", "silent", "-", "-", "-", "connection", "refused", "-", "-"]
    assert rows[6].startswith("peer 1: connection refused (no process here; its history has 2 rounds)")
    assert rows[-1] == "peer 2, 3: connection refused"
    result = CliRunner().invoke(app, [str(tmp_path / "graph.json"), "--json"])
    assert result.exit_code == 40 and json.loads(result.stdout)["2"] == "connection refused"
    assert "UNAVAILABLE" not in text_of(found) and "ipv4" not in text_of(found)


def test_a_peer_without_an_answer_that_waits_by_its_files_is_in_the_table(tmp_path):
    """Before: a KeyError. Files name the neighbors that are behind, and no seconds of waiting."""
    graph = write_graph(tmp_path)
    write_peer(tmp_path, 1, rounds=3, end=False)
    for behind in graph.neighbors(1):
        write_peer(tmp_path, behind, rounds=2, end=False)
    files = RunTail(tmp_path)
    files.refresh()
    files.log.append([LoggedEvent(2e9, i, {"kind": "process", "held": True}) for i in (1, *graph.neighbors(1))])
    files.log.append([LoggedEvent(2e9, 1, {"kind": "silent", "reason": "no answer"})])
    view = View(files.log, graph)
    state = view.log.state()
    assert view.peer(state.peers[1], state).waits_for == graph.neighbors(1)
    row = next(line for line in text_of(view).splitlines() if line.split()[:1] == ["1"])
    assert row.split()[:3] == ["1", "running", "3/6"] and "no answer" in row


def test_a_missing_file_is_said_to_be_missing():
    """Before, "graph.jsn" was taken for the address of a peer that does not answer."""
    with pytest.raises(UsageError, match=r'"graph.jsn": expected a graph file.*, got no such file or directory'):
        ask("graph.jsn")
    with pytest.raises(NeighborUnavailable, match=r"127.0.0.1:1: no answer in plaintext \(connection refused\)"):
        ask("127.0.0.1:1")


def test_a_diverged_peer_is_shown_as_such(run_directory):
    place = PeerRun.read(run_directory, 2).state_dir
    write_json(place.summary, {"peer_id": 2, "status": "diverged", "loss": math.nan})
    assert text_of(ask(str(run_directory))).splitlines()[4].split()[:2] == ["2", "diverged"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 m"), (7200, "2 h"), (172_800, "2 d"), (1e9, "999 d")]
)
def test_a_duration_has_at_most_five_characters(seconds, text):
    assert age(seconds) == text and len(text) <= 5


def test_a_peer_that_only_dials_is_said_to_be_out_of_reach(tmp_path):
    rows = [{"id": 0, "address": "127.0.0.1:1"}, {"id": 1, "dials_only": True}]
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({"nodes": rows, "edges": [{"source": 0, "target": 1}]}))
    assert "it only dials" in line_of(ask(str(file)), 1)

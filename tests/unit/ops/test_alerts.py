"""Events of a running peer: which records and which silences are one, and how programs and URLs are told."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from peer.ops import alerts
from peer.ops.alerts import DEAD_S, EVERY_S, STALLED_S, Alerts, Rules, post, run_command

ABOUT = {"federation": "clinics", "peer_id": 3, "rounds": 10}


def names(events: Any) -> list[str]:
    return [event["event"] for event in events]


def record(rules: Rules, at: float, kind: str, **fields: Any) -> list[str]:
    return names(rules.recorded(kind, fields, at))


def test_a_neighbor_is_told_of_when_it_is_dead_for_long_and_when_it_is_back() -> None:
    rules = Rules(10, 0.0, _stalled=True)
    assert record(rules, 1.0, "neighbor", neighbor=2, state="suspect") == []
    assert record(rules, 2.0, "neighbor", neighbor=2, state="dead") == []
    assert names(rules.due(1.9 + DEAD_S)) == []
    (event,) = rules.due(2.0 + DEAD_S)
    assert (event["event"], event["neighbor"]) == ("neighbor_dead", 2) and "peer 2" in event["sentence"]
    assert names(rules.due(500.0)) == []
    assert record(rules, 501.0, "neighbor", neighbor=2, state="alive") == ["neighbor_back"]


@pytest.mark.parametrize("back", ["alive", "left"])
def test_a_short_death_and_a_goodbye_are_no_events(back: str) -> None:
    rules = Rules(10, 0.0, _stalled=True)
    record(rules, 2.0, "neighbor", neighbor=2, state="dead")
    assert record(rules, 20.0, "neighbor", neighbor=2, state=back) == []
    assert names(rules.due(500.0)) == []


def test_a_round_stalls_after_four_times_the_longest_of_the_last() -> None:
    rules = Rules(10, 0.0)
    assert names(rules.due(STALLED_S - 0.1)) == []
    assert names(rules.due(STALLED_S)) == ["round_stalled"] and names(rules.due(STALLED_S + 1)) == []
    assert record(rules, 100.0, "round", round_index=0) == []
    assert record(rules, 130.0, "round", round_index=1) == []
    assert names(rules.due(130.0 + 399.0)) == []
    (event,) = rules.due(130.0 + 400.0)
    assert event["sentence"] == "round 2 is not closed after 400 s"
    for index in range(2, 10):
        record(rules, 600.0, "round", round_index=index)
    assert names(rules.due(10_000.0)) == [], "the run has no further round"


def test_a_full_disk_is_one_event_until_it_is_mended() -> None:
    rules = Rules(10, 0.0)
    full = "cannot write x: No space left on device. The disk is full."
    assert record(rules, 1.0, "checkpoint", error=full) == ["disk_full"]
    assert record(rules, 2.0, "checkpoint", error=full) == []
    assert record(rules, 3.0, "checkpoint", error=None) == []
    assert record(rules, 4.0, "disk", error="The disk reports an input/output error.") == ["disk_error"]


def test_a_new_graph_file_is_an_event() -> None:
    (event,) = Rules(10, 0.0).recorded("revision", {"before": "ab", "after": "cd"}, 1.0)
    assert (event["event"], event["before"], event["after"]) == ("revision", "ab", "cd")


def test_how_a_peer_ends() -> None:
    assert record(Rules(10, 0.0), 1.0, "exit", outcome="completed", exit_code=0) == ["finished"]
    assert record(Rules(10, 0.0), 1.0, "exit", outcome="diverged", exit_code=50) == ["diverged", "finished"]
    rules = Rules(10, 0.0)
    assert record(rules, 1.0, "round", round_index=0, restores=1) == ["diverged"]
    assert record(rules, 2.0, "round", round_index=1, restores=1) == []


class Listener(BaseHTTPRequestHandler):
    """Keeps what is posted; answers with the status of the server."""

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[Any]:
    found: Any = HTTPServer(("127.0.0.1", 0), Listener)
    found.got, found.status = [], 200
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def test_program_and_url_get_the_event(tmp_path: Path, server: Any) -> None:
    out = tmp_path / "event.json"
    told = Alerts(
        ABOUT, f"sh -c 'cat > {out}; test $PEER_EVENT = finished'", f"http://127.0.0.1:{server.server_port}/x"
    )
    told.start()
    told("round", {"round_index": 4})
    told("exit", {"outcome": "completed", "exit_code": 0})
    told.close()
    event = json.loads(out.read_text())
    assert server.got == [event]
    assert event | {"time": ""} == {
        **ABOUT,
        "event": "finished",
        "time": "",
        "round_index": 5,
        "sentence": "the peer has ended: completed, exit code 0",
        "outcome": "completed",
        "exit_code": 0,
        "left_out": 0,
    }


def test_one_event_a_minute_of_a_kind_and_neighbor(server: Any) -> None:
    clock = [0.0]
    told = Alerts(ABOUT, None, f"http://127.0.0.1:{server.server_port}", lambda: clock[0])
    for error in ("full a", "full b", "full c"):
        told._tell_all(told._rules.recorded("disk", {"error": error}, clock[0]))
    clock[0] = EVERY_S
    told._tell_all(told._rules.recorded("disk", {"error": "full d"}, clock[0]))
    assert [(event["sentence"], event["left_out"]) for event in server.got] == [("full a", 0), ("full d", 2)]


@pytest.mark.parametrize(
    ("command", "what"),
    [("sh -c 'echo no way >&2; exit 7'", "exit code 7: no way"), ("sleep 30", "it was ended after 0.2 s")],
)
def test_a_program_that_fails_is_named_once(
    command: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alerts, "ANSWER_S", 0.2)
    told = Alerts(ABOUT, command, None)
    with caplog.at_level(logging.WARNING, "peer"):
        for neighbor in (1, 2):
            told._tell_all([{"event": "neighbor_dead", "neighbor": neighbor}])
    (message,) = caplog.messages
    assert message == f"--on-event: the event neighbor_dead was not taken: {what}"


def test_a_url_that_refuses_is_named(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    server.status = 503
    told = Alerts(ABOUT, None, f"http://127.0.0.1:{server.server_port}")
    with caplog.at_level(logging.WARNING, "peer"):
        told._tell_all([{"event": "finished"}])
    assert "--webhook: the event finished was not taken: HTTP Error 503" in caplog.text
    with pytest.raises(OSError, match="refused"):
        post("http://127.0.0.1:1/", b"{}")


def test_a_peer_never_waits_for_a_program_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "WAITING_MAX", 3)
    told = Alerts(ABOUT, None, None)
    for index in range(10):  # the thread does not run: as if a program took for ever
        told("round", {"round_index": index})
    assert told._records.qsize() == 3


def test_the_input_is_the_event() -> None:
    run_command(["sh", "-c", 'test "$(cat)" = \'{"a":1}\''], "finished", b'{"a":1}')

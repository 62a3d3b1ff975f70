"""Goal: rounds do not wait for a peer that can call its neighbors but cannot be called: a closed port, a wrong address.

Method: peer 1 listens on another port than the graph file says. Its neighbors receive its messages, cannot call it, log that,
and continue without it. It learns their round from their replies, and continues with the models that it pulls.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from tools.running import on_loopback, running_peer

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.store.history import read_history
from peer.store.state_dir import StateDir
from peer.testbed.testbed import free_ports

pytestmark = pytest.mark.process

RUN = {
    "rounds": 40,
    "start": {"rule": "all", "deadline_s": 2.0},
    "timeouts": {"heartbeat_s": 0.25, "suspicion_s": 1.5},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which three peers have run to their end."""
    home, (*ports, elsewhere) = tmp_path_factory.mktemp("unreachable"), free_ports(4)
    graph = make_graph("complete", 3, manifest=parse_manifest(RUN, "test"))
    save_graph(on_loopback(graph, ports), home / "graph.json")
    options = {i: ["--insecure"] for i in graph.ids}
    options[1] += ["--listen", f"127.0.0.1:{elsewhere}"]
    with ExitStack() as stack:
        peers = [stack.enter_context(running_peer(i, home, *options[i])) for i in graph.ids]
        assert [process.wait(90) for process in peers] == [0, 0, 0]
    return home


def history(home: Path, peer_id: int, kind: str) -> list[dict]:
    return [line for line in read_history(StateDir.of_peer(home, peer_id).history) if line["kind"] == kind]


@pytest.mark.parametrize("peer_id", [0, 2])
def test_neighbors_do_not_wait_for_an_unreachable_peer(home: Path, peer_id: int) -> None:
    """A round waits only for neighbors that are alive or suspect."""
    rounds = history(home, peer_id, "round")
    assert len(rounds) == RUN["rounds"]
    assert all(line["missing"] == [1] for line in rounds)
    states = {line["state"] for line in history(home, peer_id, "neighbor") if line["neighbor"] == 1}
    assert not states & {"alive", "suspect"}


@pytest.mark.parametrize("peer_id", [0, 2])
def test_neighbors_log_the_address_and_what_to_check(home: Path, peer_id: int) -> None:
    address = json.loads((home / "graph.json").read_text())["nodes"][1]["address"]
    log = (home / f"{peer_id}.log").read_text().splitlines()
    lines = [line for line in log if "sends messages but does not answer ours" in line]
    assert lines and address in lines[0] and "its port is open" in lines[0]
    assert len(lines) <= 8, "the line is logged at every failed handshake"


def test_unreachable_peer_continues_with_pulled_models(home: Path) -> None:
    """How many rounds it trains itself depends on the speed of the machine, and so does its accuracy."""
    skipped = sum(line["to_round"] - line["from_round"] for line in history(home, 1, "caught_up"))
    summary = json.loads(StateDir.of_peer(home, 1).summary.read_text())
    assert skipped > 0 and (summary["status"], summary["rounds_completed"]) == ("completed", RUN["rounds"])

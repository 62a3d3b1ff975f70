"""Goal: a peer that can call others and cannot be called, behind a closed port or with a wrong address, holds nobody up.

Method: peer 1 listens on another port than the graph file says. The others hear it, reach nothing, say so and go on; it
learns from their answers where they are, and goes on with the models that it pulls.
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
from peer.testbed import free_ports

pytestmark = pytest.mark.process

SUSPICION_S = 1.5
RUN = {
    "rounds": 40,
    "start": {"rule": "all", "deadline_s": 2.0},
    "timeouts": {"heartbeat_s": 0.25, "suspicion_s": SUSPICION_S},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where three peers have run to their end, side by side."""
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
def test_the_others_do_not_wait_for_it(home: Path, peer_id: int) -> None:
    rounds = history(home, peer_id, "round")
    assert len(rounds) == RUN["rounds"]
    assert all(line["missing"] == [1] for line in rounds)
    waits = [line["seconds"]["wait"] for line in rounds[1:]]  # in the first round, for whoever started later
    assert max(waits) < SUSPICION_S


@pytest.mark.parametrize("peer_id", [0, 2])
def test_they_say_what_is_wrong_and_where_to_look(home: Path, peer_id: int) -> None:
    address = json.loads((home / "graph.json").read_text())["nodes"][1]["address"]
    told = [
        line for line in (home / f"{peer_id}.log").read_text().splitlines() if "is heard but does not answer" in line
    ]
    assert told and address in told[0] and "its port open" in told[0]
    assert len(told) <= 8, "not each time"


def test_it_goes_on_with_the_models_that_it_pulls(home: Path) -> None:
    assert history(home, 1, "caught_up")
    assert json.loads(StateDir.of_peer(home, 1).summary.read_text())["accuracy"] > 0.7

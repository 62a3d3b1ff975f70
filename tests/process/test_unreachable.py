"""Goal: a peer that can call its neighbors but cannot be called, and whose graph file does not say so, takes full part.

Method: peer 1 listens on another port than the graph file says. Its neighbors receive its hellos, cannot call it, and tell it;
it opens tunnels to them. The models are those of the simulated backend, bit for bit.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tools.beds import final_models, same_models
from tools.running import on_loopback, running_peer, until

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.bed.testbed.ports import free_ports
from peer.lab.simulated import simulate
from peer.store.history import read_history
from peer.store.state_dir import StateDir

pytestmark = [pytest.mark.process, pytest.mark.slow]

RUN = {
    "rounds": 6,
    "model_options": {"hidden": 16},
    "split_options": {"samples_per_peer": 90, "test_per_peer": 40},
    "start": {"wait_for": "all", "deadline_s": 120.0},
    "timeouts": {"suspicion_s": 30.0},
}


def test_peer_with_a_closed_port_takes_full_part(tmp_path: Path) -> None:
    *ports, elsewhere = free_ports(4)
    graph = on_loopback(make_graph("complete", 3, manifest=parse_manifest(RUN, "test")), ports)
    save_graph(graph, tmp_path / "graph.json")
    options = {i: ["--insecure"] for i in graph.ids}
    options[1] += ["--listen", f"127.0.0.1:{elsewhere}"]
    with ExitStack() as stack:
        peers = [stack.enter_context(running_peer(i, tmp_path, *options[i])) for i in graph.ids]
        ended = lambda: all(process.poll() is not None for process in peers)  # noqa: E731
        until(ended, "all peers end", logs=tmp_path.glob("*.log"))
        assert [process.returncode for process in peers] == [0, 0, 0]
    for peer_id in graph.ids:
        lines = read_history(StateDir.of_peer(tmp_path, peer_id).history)
        assert [line["missing"] for line in lines if line["kind"] == "round"] == [[]] * RUN["rounds"]
    for neighbor in (0, 2):
        sentence = f"peer {neighbor} cannot dial this peer, which opens a tunnel to it; write dials_only"
        assert (tmp_path / "1.log").read_text().count(sentence) == 1
    simulate(graph, tmp_path / "simulated")
    same_models(*(final_models(place, graph) for place in (tmp_path, tmp_path / "simulated")))

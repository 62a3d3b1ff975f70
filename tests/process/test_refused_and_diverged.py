"""A run in which nothing can be learned ends at once, with its own exit code: models that diverge, neighbors that all refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import ConfigError, DivergedError
from peer.experiment.simulated import simulate
from peer.testbed.testbed import free_ports

pytestmark = pytest.mark.process
PEER = Path(sys.executable).with_name("peer")
SMALL = {"rounds": 4, "model_options": {"hidden": 8}, "split_options": {"samples_per_peer": 60, "test_per_peer": 20}}


def graph_of(ports: list[int], **run: object) -> Graph:
    graph = make_graph("complete", len(ports), manifest=parse_manifest(SMALL | run, "test"))
    nodes = (replace(n, address=f"127.0.0.1:{port}") for n, port in zip(graph.nodes, ports, strict=True))
    return replace(graph, nodes=tuple(nodes))


def start(folder: Path, peer_id: int, graph: Graph) -> subprocess.Popen[str]:
    path = folder / f"graph-{peer_id}.json"
    save_graph(graph, path)
    command = [PEER, "run", "--id", str(peer_id), "--neighbors", path, "--state-dir", folder / f"peer-{peer_id}"]
    return subprocess.Popen([*command, "--insecure"], stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_diverged_peers_end_with_their_exit_code_and_leave_no_model(tmp_path: Path) -> None:
    graph = graph_of(free_ports(2), learning_rate=1e30)
    for code, errors in [ended(p) for p in [start(tmp_path, i, graph) for i in graph.ids]]:
        assert code == DivergedError.exit_code == 50
        assert "diverged in round 0: the model of slot" in errors and "lower run.learning_rate (1e+30)" in errors
    for peer_id in graph.ids:
        folder = tmp_path / f"peer-{peer_id}"
        summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
        assert summary["status"] == "diverged" and not list(folder.glob("models/*"))


def test_simulated_run_that_diverges_ends_with_the_same_error() -> None:
    with pytest.raises(DivergedError, match="diverged in round 0"):
        simulate(graph_of([1, 2], learning_rate=1e30), None)


def test_peers_of_different_manifests_end_with_a_configuration_error(tmp_path: Path) -> None:
    ports = free_ports(2)
    peers = [start(tmp_path, i, graph_of(ports, rounds=4 + i)) for i in (0, 1)]
    results = [ended(p) for p in peers]
    refused = [errors for code, errors in results if code == ConfigError.exit_code]
    assert refused, results
    for errors in refused:
        assert "refused by all neighbors" in errors and "run.rounds" in errors and "4" in errors and "5" in errors

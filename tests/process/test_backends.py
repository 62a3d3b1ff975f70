"""One engine, two backends: processes over real sockets and the simulated network end with the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, load_graph, make_graph, parse_manifest, save_graph
from peer.experiment.simulated import simulate
from peer.observe.report import build_report
from peer.store.model_file import load_model
from peer.testbed import free_ports

pytestmark = pytest.mark.process
PEER = Path(sys.executable).with_name("peer")
SMALL = {"rounds": 4, "model_options": {"hidden": 16}, "split_options": {"samples_per_peer": 90, "test_per_peer": 40}}


def six_peers(**run: object) -> Graph:
    manifest = parse_manifest({**SMALL, **run}, "test")
    graph = make_graph("erdos-renyi", 6, p=0.5, seed=3, manifest=manifest)
    ports = free_ports(6)
    nodes = (replace(node, address=f"127.0.0.1:{port}") for node, port in zip(graph.nodes, ports, strict=True))
    return replace(graph, nodes=tuple(nodes))


def run_processes(graph: Graph, directory: Path) -> None:
    save_graph(graph, directory / "in.json")
    command = [PEER, "testbed", directory / "in.json", "--out", directory / "processes", "--insecure"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "run",
    [
        pytest.param({"algorithm": "dfca"}, id="dfca"),
        pytest.param({"algorithm": "dfca", "options": {"warmup_rounds": 2, "relay_steps": 2}}, id="dfca-warmup"),
        pytest.param(
            {"algorithm": "dfca", "aggregation": "batch", "encoding": "int8", "participation": 0.7},
            id="dfca-batch-int8-participation",
        ),
        pytest.param({"algorithm": "dfedavg", "momentum": 0.9, "learning_rate": 0.02}, id="dfedavgm"),
        pytest.param({"algorithm": "fedspd", "dynamic_edges": 0.2}, id="fedspd-dynamic"),
    ],
)
def test_both_backends_end_with_the_same_models(tmp_path, run):
    graph = six_peers(**run)
    run_processes(graph, tmp_path)
    simulate(load_graph(tmp_path / "in.json"), tmp_path / "simulated")
    real, simulated = (build_report(tmp_path / which).values for which in ("processes", "simulated"))
    for key in ("accuracy_mean", "cluster_ari", "rounds", "models_sent", "models_folded", "payload_bytes_sent"):
        assert real[key] == simulated[key], key
    for peer_id in graph.ids:
        models = sorted((tmp_path / "processes" / f"peer-{peer_id}" / "models").glob("*.safetensors"))
        assert models
        for path in models:
            other = tmp_path / "simulated" / f"peer-{peer_id}" / "models" / path.name
            (first, _), (second, _) = load_model(path), load_model(other)
            assert first.keys() == second.keys()
            assert all(np.array_equal(first[name], second[name]) for name in first), path


def test_the_verb_measures_the_same_with_either_backend(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(
        'title = "small"\nsource = "this test"\npeers = 4\ntrain_samples = 240\ntest_samples = 80\n'
        '[graph]\nkind = "complete"\n'
        "[run]\nrounds = 2\nmodel_options = { hidden = 8 }\n"
        "split_options = { samples_per_peer = 60, test_per_peer = 20 }\n"
        '[[case]]\nname = "DFCA-GI"\nrun = { algorithm = "dfca" }\n'
    )
    results = {}
    for backend in ("processes", "simulated"):
        out = tmp_path / backend
        command = [PEER, "experiment", "run", file, "--seeds", "1", "--backend", backend, "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        results[backend] = json.loads((out / "small" / "dfca-gi" / "seed-1.json").read_text())
    real, simulated = results["processes"], results["simulated"]
    assert (real["backend"], simulated["backend"]) == ("processes", "simulated")
    for key in ("measured", "curve", "models_sent", "payload_bytes_sent", "settled_round"):
        assert real[key] == simulated[key], key
    assert real["wire_bytes_sent"] > real["payload_bytes_sent"] > 0 == simulated["wire_bytes_sent"]

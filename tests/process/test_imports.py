"""Goal: the process of a peer imports nothing that its task does not need: imports are most of a peer's start and memory.

Method: peers of `peer run` and of `peer testbed` list the modules of their processes at the end of a short run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import tools
from tools.running import ends, on_loopback, running

from coordinator_free_bootstrap import apply_settings, make_graph, parse_manifest, save_graph
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.process

PROGRAM = Path(tools.__path__[0]) / "list_modules.py"
UNNEEDED = {
    *("IPython", "PIL", "matplotlib", "networkx", "pandas", "prometheus_client", "scipy", "sklearn", "sympy"),
    *("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torchvision"),
}


@pytest.fixture(params=["dfca", "blend"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with the graph file of two peers and two rounds."""
    graph = on_loopback(make_graph("complete", 2))
    settings = ["run.rounds=2", "run.momentum=0.9", f"run.algorithm={request.param}"]
    manifest = parse_manifest(apply_settings(graph.manifest.model_dump(), settings), "test")
    save_graph(type(graph)(graph.nodes, graph.edges, manifest), tmp_path / "graph.json")
    return tmp_path


def _modules(home: Path, peer_id: int) -> dict[str, set[str]]:
    lists = json.loads((StateDir.of_peer(home, peer_id).root / "modules.json").read_text())
    return {when: set(names) for when, names in lists.items()}


def test_peer_run_imports_no_unneeded_package(home: Path) -> None:
    with ExitStack() as stack:
        peers = []
        for peer_id in (0, 1):
            state, log = StateDir.of_peer(home, peer_id).root, home / f"{peer_id}.log"
            options = ["--neighbors", home / "graph.json", "--state-dir", state, "--insecure"]
            command = [sys.executable, PROGRAM, "run", "--id", peer_id, *options]
            peers.append(stack.enter_context(running(*command, log=log)))
        assert [process.wait(150) for process in peers] == [0, 0], ends(home.glob("*.log"))
    for peer_id in (0, 1):
        modules = _modules(home, peer_id)["after"]
        assert {"torch", "grpc", "peer.learning.sgd"} <= modules  # the lists are of a peer that has trained
        assert not UNNEEDED & modules
        assert "rich" not in modules  # of commands that print tables


def test_a_testbed_peer_imports_nothing_after_the_fork(home: Path) -> None:
    command = [sys.executable, PROGRAM, "testbed", home / "graph.json", "--insecure", "--out", home]
    result = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    for peer_id in (0, 1):
        modules = _modules(home, peer_id)
        assert "torch" in modules["before"]
        assert modules["after"] == modules["before"]  # each later import costs memory in each process
        assert not UNNEEDED & modules["after"]

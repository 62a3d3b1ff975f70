"""Goal: peers that start from a file end with the bits of the same run in one process, also where one is killed meanwhile.

Method: two real processes; a failpoint kills one in its first round; the file is gone when it starts again.
"""

from __future__ import annotations

import hashlib
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tools.running import PATIENCE_S, on_loopback, running_peer

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.lab.simulated import SimulatedSettings, simulate
from peer.store.history import read_history

pytestmark = pytest.mark.process
SMALL: dict[str, Any] = {
    "rounds": 3,
    "algorithm": "dfedavg",
    "model_options": {"hidden": 8},
    "split_options": {"samples_per_peer": 60, "test_per_peer": 20},
    "timeouts": {"suspicion_s": 60.0},
}


def graph_of(**run: Any) -> Graph:
    return make_graph("line", 2, manifest=parse_manifest({**SMALL, **run}, "test"))


def models(home: Path) -> list[dict[str, np.ndarray]]:
    return [load_file(home / f"peer-{i}" / "models" / "personalized.safetensors") for i in (0, 1)]


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    simulate(graph_of(seed=5), tmp_path / "earlier")
    return tmp_path / "earlier" / "peer-0" / "models" / "cluster-0.safetensors"


def test_a_killed_peer_goes_on_without_the_file(tmp_path: Path, earlier: Path) -> None:
    graph = on_loopback(graph_of(start_from=hashlib.sha256(earlier.read_bytes()).hexdigest()))
    simulate(graph, tmp_path / "simulated", SimulatedSettings(start_from=earlier))
    save_graph(graph, tmp_path / "graph.json")
    options = ("--insecure", "--start-from", earlier)
    with ExitStack() as stack:
        killed = {"PEER_FAILPOINTS": "train.step=kill@2"}
        other = stack.enter_context(running_peer(0, tmp_path, *options))
        victim = stack.enter_context(running_peer(1, tmp_path, *options, environment=killed))
        assert victim.wait(PATIENCE_S) == -signal.SIGKILL
        log = (tmp_path / "1.log").read_text()
        assert "failpoint" in log
        assert "starts from cluster-0.safetensors" in log
        earlier.unlink()
        again = stack.enter_context(running_peer(1, tmp_path, "--insecure"))
        assert (other.wait(PATIENCE_S), again.wait(PATIENCE_S)) == (0, 0), (tmp_path / "1.log").read_text()
    for ours, theirs in zip(models(tmp_path), models(tmp_path / "simulated"), strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    starts = [line for line in read_history(tmp_path / "peer-1" / "history.jsonl") if line["kind"] == "start"]
    assert len(starts) == 2
    assert starts[0]["start_from"] == starts[1]["start_from"]


def test_another_file_is_refused_before_a_neighbor_is_called(tmp_path: Path, earlier: Path) -> None:
    save_graph(on_loopback(graph_of(start_from="0" * 64)), tmp_path / "graph.json")
    with running_peer(0, tmp_path, "--insecure", "--start-from", earlier) as peer:
        assert peer.wait(PATIENCE_S) == 10
    assert f"--start-from: expected a file with SHA-256 {'0' * 64}" in (tmp_path / "0.log").read_text()

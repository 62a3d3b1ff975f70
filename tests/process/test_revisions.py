"""Goal: after a change of the graph file, peers that stay go on with their models and rounds, also where one is killed meanwhile.

Method: real processes, stopped by SIGTERM or at their last round, and started with the file that `peer graph next` has made.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tools.histories import lines_of
from tools.running import PATIENCE_S, running_peer, until
from tools.warm_parent import Forked, executed

from coordinator_free_bootstrap import Graph, load_graph, make_graph, parse_manifest, save_graph
from peer.bed.testbed.ports import free_ports

pytestmark = pytest.mark.process
ROUNDS = 4
SMALL: dict[str, Any] = {
    "rounds": ROUNDS,
    "algorithm": "dfedavg",
    "timeouts": {"suspicion_s": 30.0},
}
SITES = """
import numpy as np
from torch import nn
import peer


class Sites(peer.Task):
    classes = 3

    def make_model(self):
        return nn.Linear(4, 3)

    def load_shard(self, peer_id):
        x = np.random.default_rng(peer_id).normal(size=(60, 4)).astype(np.float32)
        y = (x @ np.arange(12.0).reshape(4, 3)).argmax(1)
        parts = {"train": slice(36), "val": slice(36, 46), "test": slice(46, 60)}
        return peer.Shard(**{f"{part}_{each}": values[at] for part, at in parts.items() for each, values in (("x", x), ("y", y))})


task = Sites()
"""


class Federation:
    """Peers in a folder; their state outlives their processes."""

    def __init__(self, home: Path, peers: int = 4, **run: Any) -> None:
        self.home, self.ports = home, free_ports(peers + 1)
        (home / "sites.py").write_text(SITES)  # each peer has data of its own, whoever else takes part
        settings = {**SMALL, "task": f"{home / 'sites.py'}:task", **run}
        graph = make_graph("ring", peers, manifest=parse_manifest(settings, "test"))
        nodes = tuple(replace(node, address=self.address(node.id)) for node in graph.nodes)
        save_graph(replace(graph, nodes=nodes), home / "graph.json")

    def address(self, peer_id: int) -> str:
        return f"127.0.0.1:{self.ports[peer_id]}"

    @property
    def graph(self) -> Graph:
        return load_graph(self.home / "graph.json")

    @contextmanager
    def running(self, failpoints: dict[int, str] | None = None) -> Iterator[dict[int, Forked]]:
        with ExitStack() as stack:
            yield {
                i: stack.enter_context(
                    running_peer(
                        i, self.home, "--insecure", environment={"PEER_FAILPOINTS": (failpoints or {}).get(i, "")}
                    )
                )
                for i in self.graph.ids
            }

    def complete(self) -> None:
        with self.running() as peers:
            for i, process in peers.items():
                assert process.wait(PATIENCE_S) == 0, self.log(i)

    def next(self, *words: object) -> str:
        """Replace the graph file by the next one."""
        changed = self.home / "next.json"
        done = executed("graph", "next", self.home / "graph.json", *words, "--out", changed)
        assert done.returncode == 0, done.stderr
        changed.replace(self.home / "graph.json")
        return done.stderr

    def log(self, peer_id: int) -> str:
        return (self.home / f"{peer_id}.log").read_text()

    def lines(self, peer_id: int, kind: str) -> list[dict[str, Any]]:
        return lines_of(self.home / f"peer-{peer_id}" / "history.jsonl", kind)

    def rounds(self, peer_id: int) -> list[int]:
        return [line["round_index"] for line in self.lines(peer_id, "round")]


def test_a_peer_joins_one_leaves_edges_change_and_the_others_go_on(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.complete()
    model = load_file(tmp_path / "peer-0" / "models" / "cluster-0.safetensors")
    said = federation.next(
        *("--add-peer", f"4={federation.address(4)}", "--add-edge", "4-0", "--add-edge", "4-2", "--remove-peer", 3),
        *("--add-edge", "0-2", "--remove-edge", "0-1", "--rounds", "+3", "--set", "run.learning_rate=1e-9"),
    )
    for sentence in (
        "run.rounds was 4, is now 7",
        "peer 3 leaves",
        "neighbor of 0, 2",
        "edge 0-1 goes",
        "edge 0-2 comes",
    ):
        assert sentence in said
    assert "their models and rounds stay" in said
    federation.complete()
    for peer_id in (0, 1, 2):
        assert federation.rounds(peer_id) == list(range(7))
        assert "continues the run of an earlier graph file: run.learning_rate was" in federation.log(peer_id)
        starts = federation.lines(peer_id, "start")
        assert [line["resumed_from"] for line in starts] == [None, ROUNDS]
    (caught_up,) = federation.lines(4, "caught_up")
    assert caught_up["to_round"] >= ROUNDS
    now = load_file(tmp_path / "peer-1" / "models" / "cluster-0.safetensors")
    assert all(np.abs(now[name] - model[name]).max() < 0.5 for name in model)  # and not those of a new seed


@pytest.mark.parametrize("algorithm", ["dfca", "dpfl", "blend", "cgpfl"])
def test_other_algorithms_go_on_with_other_neighbors(tmp_path: Path, algorithm: str) -> None:
    federation = Federation(tmp_path, algorithm=algorithm, rounds=3)
    federation.complete()
    federation.next(
        *("--remove-peer", 1, "--add-peer", f"4={federation.address(4)}", "--add-edge", "4-0", "--add-edge", "4-2"),
        *("--rounds", "+3"),
    )
    federation.complete()
    for peer_id in (0, 2, 3):
        assert federation.rounds(peer_id) == list(range(6))


@pytest.mark.parametrize("failpoint", ["train.step=kill@1", "persist.sealed=kill@1", "close.begin=kill@2"])
def test_a_kill_after_the_change_loses_no_round(tmp_path: Path, failpoint: str) -> None:
    federation = Federation(tmp_path, peers=3)
    federation.complete()
    federation.next("--rounds", "+3", "--set", "run.local_epochs=2")
    with federation.running({1: failpoint}) as peers, ExitStack() as stack:
        assert peers[1].wait(PATIENCE_S) == -signal.SIGKILL
        assert "failpoint" in federation.log(1)
        peers[1] = stack.enter_context(running_peer(1, tmp_path, "--insecure"))
        for peer_id, process in peers.items():
            assert process.wait(PATIENCE_S) == 0, federation.log(peer_id)
    for peer_id in (0, 1, 2):
        assert sorted(set(federation.rounds(peer_id))) == list(range(ROUNDS + 3))
        assert not any(line["missing"] for line in federation.lines(peer_id, "round"))


def test_a_device_that_was_off_takes_the_file_after_the_next(tmp_path: Path) -> None:
    federation = Federation(tmp_path, peers=3, rounds=100_000)
    with federation.running() as peers:
        until(lambda: min(len(federation.rounds(i)) for i in peers) > 2, "three rounds of all")
        for process in peers.values():
            process.terminate()
        for peer_id, process in peers.items():
            assert process.wait(PATIENCE_S) == 0, federation.log(peer_id)
    before = federation.lines(2, "leave")[-1]["rounds_completed"]
    federation.next("--set", "run.learning_rate=0.02")
    federation.next("--rounds", str(before + 40), "--move", f"1={federation.address(3)}")
    assert len(federation.graph.continues) == 2
    federation.complete()
    assert federation.lines(2, "start")[-1]["resumed_from"] == before
    assert federation.rounds(2)[-1] == before + 39


def test_state_of_another_run_is_still_refused(tmp_path: Path) -> None:
    federation = Federation(tmp_path, peers=2)
    federation.complete()
    refused = executed(
        "graph", "next", tmp_path / "graph.json", "--set", "run.algorithm=dpsgd", "--out", tmp_path / "n.json"
    )
    assert refused.returncode == 2
    assert "run.algorithm: expected the present value, since trained models stay" in refused.stderr
    assert "--restart-training" in refused.stderr
    said = federation.next("--set", "run.algorithm=dpsgd", "--restart-training")
    assert "models do not stay, since run.algorithm would make them incomparable" in said
    assert federation.graph.continues == ()
    with federation.running() as peers:
        assert {process.wait(PATIENCE_S) for process in peers.values()} == {31}
    assert "expected the state of this run, got another: run.algorithm was" in federation.log(0)

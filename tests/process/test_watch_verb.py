"""`peer watch graph.json --terminal`: what three peers say becomes a run directory; its report is that of the peers' files.

Peer 1, and later peer 0, is paused in the middle of the run and keeps the others in that round until the second watcher has
heard all peers: first those beside peer 1, then peer 1.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tools.beds import Bed
from tools.running import PATIENCE_S, on_loopback, running_command, running_peer, until
from tools.warm_parent import Forked, executed

from coordinator_free_bootstrap import load_graph, make_graph, parse_manifest, save_graph
from peer.bed.testbed.testbed import Supervisor
from peer.identity.files import identity_files
from peer.store.history import read_history
from peer.view.report.report import build_report
from peer.view.state.tail import OBSERVED, RunTail
from peer.view.state.view import View

pytestmark = pytest.mark.process
SAME = ("metric_mean", "metric_worst", "rounds", "models_folded", "models_sent")
ROUNDS, HELD, HELD_AGAIN = 30, 20, 25


def started(directory: Path, out: Path) -> Forked:
    certs = identity_files(directory, "testbed").key.parent
    return Forked("watch", directory / "graph.json", "--terminal", "--out", out, "--certs", certs)


def rounds_in(out: Path) -> set[int]:
    lines = [line for path in out.glob("peer-*/history.jsonl") for line in read_history(path)]
    return {line["round_index"] for line in lines if line["kind"] == "round"}


def rounds_of(out: Path, peer_id: int) -> list[int]:
    lines = read_history(out / f"peer-{peer_id}" / "history.jsonl")
    return [line["round_index"] for line in lines if line["kind"] == "round"]


def heard_since(out: Path, offset: int) -> set[int]:
    """Return the peers whose status a watcher has written after the first bytes of its own file."""
    lines = (out / OBSERVED).read_bytes()[offset:].rpartition(b"\n")[0].splitlines()
    return {line["peer_id"] for line in map(json.loads, lines) if line["kind"] == "status"}


def shown(out: Path) -> list[dict[str, Any]]:
    """Return the rows of the peers in a directory that a watcher has written; all edges are direct."""
    tail = RunTail(out)
    tail.refresh()
    found = View(tail.log, tail.graph).everything()
    assert {edge["kind"] for edge in found["edges"]} == {"direct"}
    return list(found["peers"])


def test_watch_resumes_and_its_report_is_that_of_the_peers(bed: Callable[..., Bed], tmp_path: Path) -> None:
    out = tmp_path / "watched"
    failpoints = {1: f"train.begin=pause@{HELD}", 0: f"train.begin=pause@{HELD_AGAIN}"}
    run = bed(peers=3, rounds=ROUNDS, insecure=False, failpoints=failpoints)
    first = started(run.directory, out)
    until(lambda: len(rounds_in(out)) > 3, "the first watcher has heard some rounds")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=PATIENCE_S)
    heard = len(rounds_in(out))
    run.until(lambda: run.fired(1), "peer 1 pauses")
    before = (out / OBSERVED).stat().st_size
    second = started(run.directory, out)
    run.until(lambda: heard_since(out, before) == {0, 2}, "the second watcher has heard the peers that answer")
    run.do("continue", 1)
    run.until(lambda: run.fired(0), "peer 0 pauses")
    run.until(lambda: heard_since(out, before) == {0, 1, 2}, "the second watcher has heard all peers")
    run.do("continue", 0)
    assert run.finish()["failed"] == {}
    lines, errors = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, errors
    assert 3 < heard < ROUNDS and rounds_in(out) == set(range(ROUNDS))
    own, said = (build_report(place).values for place in (run.directory, out))
    assert {key: said[key] for key in SAME} == {key: pytest.approx(own[key]) for key in SAME}
    assert (said["state"], said["warnings"]) == ("complete", [])
    assert not [note for note in said["notes"] if "missed" in note]
    assert "3 completed" in lines.splitlines()[-1]
    assert json.loads((out / "peer-0" / "summary.json").read_text())["status"] == "completed"
    assert json.loads((out / "peer-0" / "summary.json").read_text())["exit_code"] == 0
    assert [row["true_cluster"] for row in shown(out)] == [None] * 3  # its owner has not allowed it
    assert load_graph(out / "graph.json").digest == run.graph.digest


def test_clusters_are_shown_of_a_peer_whose_owner_tells_them(tmp_path: Path) -> None:
    run = {"task": "digits", "split": "rotated_soft", "algorithm": "fedem", "rounds": 100_000, "clusters": 2}
    graph = on_loopback(make_graph("complete", 2, manifest=parse_manifest(run, "test")))
    save_graph(graph, tmp_path / "graph.json")
    out = tmp_path / "watched"
    with ExitStack() as stack:
        (tmp_path / "telling.toml").write_text("tell-clusters = true\n")
        for peer_id, told in ((0, ["--options", tmp_path / "telling.toml"]), (1, [])):
            stack.enter_context(running_peer(peer_id, tmp_path, "--insecure", *told))
        words = ("watch", tmp_path / "graph.json", "--terminal", "--out", out)
        stack.enter_context(running_command(*words, log=tmp_path / "watch.log"))
        logs = [tmp_path / "watch.log", tmp_path / "0.log", tmp_path / "1.log"]
        until(
            lambda: all(list(out.glob(f"peer-{i}/history.jsonl")) and rounds_of(out, i) for i in (0, 1)),
            "rounds",
            logs=logs,
        )
    rows = shown(out)
    assert len(rows[0]["mixture"]) == 2 and rows[0]["true_cluster"] is not None
    assert (rows[1]["mixture"], rows[1]["true_cluster"]) == (None, None)


def test_watch_without_an_observers_key_says_what_is_missing(tmp_path: Path) -> None:
    Supervisor(on_loopback(make_graph("ring", 3)), tmp_path / "bed")  # a graph file with pinned keys
    done = executed("watch", tmp_path / "bed" / "graph.json", "--certs", tmp_path)
    assert done.returncode == 20 and "expected the key of an observer" in done.stderr, done.stderr

"""`peer watch graph.json --terminal`: what three peers say becomes a run directory; its report is that of the peers' files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tools.running import PATIENCE_S, on_loopback, until

from coordinator_free_bootstrap import Graph, load_graph, make_graph, parse_manifest
from peer.identity.files import identity_files
from peer.observe.report import build_report
from peer.store.history import read_history
from peer.testbed.testbed import Testbed, warm_up

pytestmark = pytest.mark.process
SAME = ("accuracy_mean", "accuracy_worst", "rounds", "models_folded", "models_sent")


def graph_of(rounds: int) -> Graph:
    manifest = parse_manifest({"rounds": rounds, "local_epochs": 1, "timeouts": {"suspicion_s": 60}}, "test")
    return on_loopback(replace(make_graph("ring", 3), manifest=manifest))


def started(directory: Path, out: Path) -> subprocess.Popen[str]:
    certs = identity_files(directory, "testbed").key.parent
    command = [
        sys.executable,
        "-m",
        "peer",
        "watch",
        directory / "graph.json",
        "--terminal",
        "--out",
        out,
        "--certs",
        certs,
    ]
    return subprocess.Popen([*map(str, command)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def rounds_in(out: Path) -> set[int]:
    return {
        line["round_index"]
        for path in out.glob("peer-*/history.jsonl")
        for line in read_history(path)
        if line["kind"] == "round"
    }


def test_watch_resumes_and_its_report_is_that_of_the_peers(tmp_path: Path) -> None:
    graph, out = graph_of(30), tmp_path / "watched"
    warm_up(graph, None)
    bed = Testbed(graph, tmp_path / "bed")
    bed.start()
    try:
        first = started(tmp_path / "bed", out)
        until(lambda: bed.poll(0) or len(rounds_in(out)) > 3, "the first watcher has heard some rounds")
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=PATIENCE_S)
        heard = len(rounds_in(out))
        second = started(tmp_path / "bed", out)
        assert set(bed.run().values()) == {0}
        lines, errors = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 0, errors
    finally:
        bed.stop()
    assert 3 < heard <= 30
    assert rounds_in(out) == set(range(30))
    own, said = (build_report(place).values for place in (tmp_path / "bed", out))
    assert {key: said[key] for key in SAME} == {key: pytest.approx(own[key]) for key in SAME}
    assert (said["state"], said["warnings"]) == ("complete", [])
    assert not [note for note in said["notes"] if "missed" in note]
    assert "3 completed" in lines.splitlines()[-1]
    assert json.loads((out / "peer-0" / "summary.json").read_text())["status"] == "completed"
    assert load_graph(out / "graph.json").digest == graph.digest


def test_watch_without_an_observers_key_says_what_is_missing(tmp_path: Path) -> None:
    graph = graph_of(1)
    Testbed(graph, tmp_path / "bed")
    command = [sys.executable, "-m", "peer", "watch", str(tmp_path / "bed" / "graph.json"), "--certs", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 20 and "found no key of an observer" in done.stderr

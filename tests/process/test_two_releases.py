"""Goal: releases of one wire version take part in one run, so that peers can be upgraded one by one; another one is refused.

Method: the next release is this one with another version and one more key of `run`, which the graph file does not set. One peer
leaves in mid-run and comes back with it. The bits are those of a run of this release alone. The release before is an earlier
commit of this repository.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tools.running import PATIENCE_S, on_loopback, running

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.lab.simulated import simulate
from peer.store.history import read_history

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
RUN: dict[str, Any] = {
    "rounds": 5,
    "algorithm": "dfedavg",
    "model_options": {"hidden": 8},
    "split_options": {"samples_per_peer": 60, "test_per_peer": 20},
    "timeouts": {"suspicion_s": 60.0},
}
KEY = '    of_the_next_release: int = Field(0, ge=0, description="a key that this release has not")\n'
LAST = "    start: StartRule ="
WIRE = "WIRE_VERSION = 5"


def release(place: Path, *, wire_version: int = 5) -> Path:
    """Make the packages of the next release."""
    for package in ("coordinator_free_bootstrap", "peer"):
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    _replace(place / "coordinator_free_bootstrap" / "manifest.py", LAST, KEY + LAST)
    _replace(place / "peer" / "__init__.py", '__version__ = "0.1.0"', '__version__ = "0.2.0"')
    _replace(place / "peer" / "core" / "messages.py", WIRE, f"WIRE_VERSION = {wire_version}")
    return place


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, file
    file.write_text(text.replace(old, new))


def peer(peer_id: int, home: Path, packages: Path = ROOT, failpoint: str = "") -> AbstractContextManager[Any]:
    words = [sys.executable, "-m", "peer", "run", "--id", peer_id, "--neighbors", home / "graph.json"]
    words += ["--state-dir", home / f"peer-{peer_id}", "--insecure"]
    log = home / f"{peer_id}-{packages.name}.log"
    return running("env", "-C", packages, f"PYTHONPATH={packages}", f"PEER_FAILPOINTS={failpoint}", *words, log=log)


def started(home: Path, peers: int) -> Graph:
    graph = on_loopback(make_graph("ring" if peers > 2 else "line", peers, manifest=parse_manifest(RUN, "test")))
    save_graph(graph, home / "graph.json")
    return graph


def upgraded(home: Path, old: Path, new: Path) -> None:
    """Run three peers, one of each release and one that is upgraded in mid-run."""
    with ExitStack() as stack:
        stays = stack.enter_context(peer(0, home, old))
        is_new = stack.enter_context(peer(1, home, new))
        leaver = stack.enter_context(peer(2, home, old, failpoint="train.begin=leave@3"))
        assert leaver.wait(PATIENCE_S) == 0 and "failpoint" in (home / f"2-{old.name}.log").read_text()
        back = stack.enter_context(peer(2, home, new))
        codes = [process.wait(PATIENCE_S) for process in (stays, is_new, back)]
    assert codes == [0, 0, 0], (home / f"2-{new.name}.log").read_text()
    audit = [json.loads(line) for line in (home / "peer-2" / "audit.jsonl").read_text().splitlines()]
    assert [line["release"] for line in audit if line["kind"] == "start"] == [version(old), version(new)]


def version(packages: Path) -> str:
    return re.findall(r'^__version__ = "(.*)"', (packages / "peer" / "__init__.py").read_text(), re.MULTILINE)[0]


def test_peers_are_upgraded_one_after_the_other_and_the_bits_are_those_of_one_release(tmp_path: Path) -> None:
    simulate(started(tmp_path, 3), tmp_path / "simulated")
    upgraded(tmp_path, ROOT, release(tmp_path / "next"))
    for i in range(3):
        ours, theirs = (
            load_file(home / f"peer-{i}" / "models" / "personalized.safetensors")
            for home in (tmp_path, tmp_path / "simulated")
        )
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_peers_of_an_earlier_commit_are_upgraded_to_this_one(tmp_path: Path, earlier: Path) -> None:
    started(tmp_path, 3)
    assert version(earlier) != version(ROOT)
    upgraded(tmp_path, earlier, ROOT)
    for i in range(3):
        rounds = [line for line in read_history(tmp_path / f"peer-{i}" / "history.jsonl") if line["kind"] == "round"]
        assert [line["missing"] for line in rounds] == [[]] * RUN["rounds"]


def test_another_wire_version_is_refused_with_both_and_what_to_upgrade(tmp_path: Path) -> None:
    following = release(tmp_path / "next", wire_version=6)
    started(tmp_path, 2)
    with ExitStack() as stack:
        peers = [stack.enter_context(peer(0, tmp_path)), stack.enter_context(peer(1, tmp_path, following))]
        assert [process.wait(PATIENCE_S) for process in peers] == [10, 10]
    logs = [(tmp_path / name).read_text() for name in (f"0-{ROOT.name}.log", "1-next.log")]
    for log in logs:
        assert "wire versions differ: peer " in log and "upgrade peer 0 to the release of peer 1" in log

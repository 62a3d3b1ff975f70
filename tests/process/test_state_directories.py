"""Goal: a state directory of another run, a machine that lacks something, and what a killed peer leaves, as a user sees them.

Method: the command `peer` as processes; a peer that meets nobody completes its rounds alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tools.running import on_loopback, until
from tools.task_files import TWO_CLASSES
from tools.warm_parent import Forked, executed

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph

pytestmark = pytest.mark.process
RUN = {
    "task": "linear",
    "split": "iid",
    "task_options": {"features": 3, "samples_per_cluster": 40, "test_per_cluster": 10},
    "start": {"wait_for": "deadline", "deadline_s": 0.1},
}


def graph_of(place: Path, **run: object) -> Graph:
    graph = on_loopback(make_graph("line", 2, manifest=parse_manifest(RUN | run, "test")))
    save_graph(graph, place / "graph.json")
    return graph


def run_of(place: Path, *options: str) -> tuple[str, ...]:
    return ("run", "--id", "0", "--neighbors", str(place / "graph.json"), "--insecure", *options)


def test_another_run_does_not_train_over_the_models_of_an_earlier_one(tmp_path: Path) -> None:
    """Before: one warning with two digests, exit code 0, and the trained checkpoints deleted."""
    graph = graph_of(tmp_path, rounds=3)
    command = run_of(tmp_path, "--state-dir", str(tmp_path / "state"))
    executed(*command)
    before = {path.name: path.stat().st_ino for path in (tmp_path / "state" / "checkpoints").iterdir()}
    assert before
    save_graph(replace(graph, manifest=parse_manifest(RUN | {"rounds": 5}, "test")), tmp_path / "graph.json")
    done = executed(*command)
    assert done.returncode == 31 and "run.rounds was 3, is now 5 (docs/trouble.md#other-run)" in done.stderr
    assert "--discard-state" in done.stderr
    assert {path.name: path.stat().st_ino for path in (tmp_path / "state" / "checkpoints").iterdir()} == before
    executed(*command, "--discard-state")
    aside = tmp_path / "state" / "discarded-1"
    assert {path.name: path.stat().st_ino for path in (aside / "checkpoints").iterdir()} == before
    assert (tmp_path / "state" / "summary.json").exists() and (aside / "summary.json").exists()


OTHER = TWO_CLASSES.replace("task = ", "# of another size: Python's cache of a module goes by second and size\ntask = ")
CHANGED = "classes were [yes, no], are now [no, yes] (the same in another order)"
OWN = {"task": "task.py:task", "split": "shard", "task_options": {}}


def test_a_changed_task_does_not_train_on_models_of_the_earlier_one_and_its_state_can_be_discarded(
    tmp_path: Path,
) -> None:
    """Before, another place refused it, and `--discard-state` had no effect on that."""
    graph_of(tmp_path, rounds=2, **OWN)
    command = run_of(tmp_path, "--state-dir", str(tmp_path / "state"))
    (tmp_path / "task.py").write_text(TWO_CLASSES.format(names='("yes", "no")', scaling=None))
    executed(*command, cwd=tmp_path)
    before = {path.name for path in (tmp_path / "state" / "checkpoints").iterdir()}
    assert before
    (tmp_path / "task.py").write_text(OTHER.format(names='("no", "yes")', scaling=None))
    done = executed(*command, cwd=tmp_path)
    assert done.returncode == 31 and CHANGED in done.stderr and "--discard-state" in done.stderr
    done = executed(*command, "--discard-state", cwd=tmp_path)
    assert CHANGED in done.stderr and "discarded-1" in done.stderr
    assert {path.name for path in (tmp_path / "state" / "discarded-1" / "checkpoints").iterdir()} == before
    assert (tmp_path / "state" / "summary.json").exists()


def test_a_testbed_does_not_continue_the_run_of_another_task(tmp_path: Path) -> None:
    graph_of(tmp_path, rounds=2, start={"wait_for": "all", "deadline_s": 600.0}, **OWN)
    command = ("testbed", str(tmp_path / "graph.json"), "--insecure", "--out", str(tmp_path / "out"))
    (tmp_path / "task.py").write_text(TWO_CLASSES.format(names='("yes", "no")', scaling=None))
    assert executed(*command, cwd=tmp_path).returncode == 0
    (tmp_path / "task.py").write_text(OTHER.format(names='("no", "yes")', scaling=None))
    done = executed(*command, cwd=tmp_path)
    told = " ".join(done.stderr.split())
    assert done.returncode == 1 and told.count("failed with exit code 31") >= 2
    assert CHANGED in told and "peer testbed: --fresh" in told
    assert executed(*command, "--fresh", cwd=tmp_path).returncode == 0


def folder_of(process: Forked) -> Path | None:
    """Return the folder of sockets that a process holds."""
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        if "peer-sockets-" in (target := os.readlink(link)):
            return Path(target)
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc as on Linux")
def test_the_folder_of_sockets_of_a_killed_peer_is_removed_by_the_next(tmp_path: Path) -> None:
    """Another peer on this machine may remove it first, so what is left in between is not asserted here."""
    graph_of(tmp_path, rounds=2, start={"wait_for": "all", "deadline_s": 600.0})
    command, log = run_of(tmp_path, "--state-dir", str(tmp_path / "state")), tmp_path / "log"
    folders: list[Path] = []
    for _ in range(2):
        process = Forked(*command, log=log)
        try:
            until(lambda: "waiting up to" in log.read_text(), "the peer waits", logs=[log])
            folder = folder_of(process)
            assert folder is not None and folder.is_dir()
            assert not any(earlier.exists() for earlier in folders)
            folders.append(folder)
        finally:
            process.kill()
            process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the shell as on Linux")
def test_too_few_open_files_are_said_at_once(tmp_path: Path) -> None:
    """Before, the peer waited in silence."""
    graph_of(tmp_path, rounds=2)
    words = run_of(tmp_path, "--state-dir", str(tmp_path / "state"))
    limited = 'ulimit -n 20; exec "$0" -m peer "$@"'
    done = subprocess.run(
        ["bash", "-c", limited, sys.executable, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 10, done.stderr
    assert (
        "open files: expected a limit of at least 26" in done.stderr
        and "for a peer with 1 neighbor, got 20" in done.stderr
    )

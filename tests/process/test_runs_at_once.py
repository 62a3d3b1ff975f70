"""`peer experiment run --jobs`: the same files as one after the other; a killed process costs its own run; Ctrl-C stops all."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tools.experiments import HEAD
from tools.running import running_command, until
from tools.warm_parent import executed

from coordinator_free_bootstrap.errors import PeerError
from peer.view.state.run_files import RunFiles

pytestmark = pytest.mark.process

CASES = """
[[case]]
name = "DFCA"
run = { algorithm = "dfca" }

[[case]]
name = "averaging"
run = { algorithm = "dfedavg" }
"""
OF_THE_RUN = ("measured", "digest", "curve", "models_sent", "payload_bytes_sent", "settled_round", "seed", "case")
LONG = ("--set", "run.rounds=100000")  # far too many: it is interrupted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(HEAD + CASES)
    return path


def results(out: Path) -> dict[str, dict[str, Any]]:
    """Return what does not depend on time, by the path of the result."""
    found = {str(path.relative_to(out)): json.loads(path.read_text()) for path in out.glob("*/*/*.json")}
    return {name: {key: result[key] for key in OF_THE_RUN} for name, result in found.items()}


def children(pid: int) -> list[int]:
    """Return the processes of the runs: those that multiprocessing has spawned for them."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def rounds_written(directory: Path) -> int:
    """Return how many rounds a simulation has written; 0 before it has begun."""
    try:
        return min(peer.rounds_completed for peer in RunFiles.read(directory).peers)
    except (PeerError, OSError):
        return 0


def test_runs_at_once_give_the_same_results(tmp_path: Path, file: Path) -> None:
    for jobs in (1, 3):
        done = executed("experiment", "run", file, "--jobs", jobs, "--out", tmp_path / str(jobs))
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("seed ") >= 4, done.stderr
    alone, at_once = results(tmp_path / "1"), results(tmp_path / "3")
    assert len(alone) == 4
    assert at_once == alone


def test_a_killed_process_costs_its_own_run(tmp_path: Path, file: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    words: list[object] = ["experiment", "run", file, "--seeds", "1", "--jobs", "2", "--out", out]
    with running_command(*words, "--set", "run.rounds=60", log=log) as command:
        until(lambda: len(children(command.pid)) == 2, "both runs have a process", logs=[log])
        os.kill(children(command.pid)[0], signal.SIGKILL)
        until(lambda: command.poll() is not None, "the command ends", logs=[log])
        said = " ".join(log.read_text().split())
        assert command.returncode == 1, said
        assert "its process ended by signal SIGKILL. With too little memory, lower --jobs." in said
        assert len(results(out)) == 1, said
    done = executed(*words, "--set", "run.rounds=60")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 results done already" in done.stderr
    assert len(results(out)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_command(tmp_path: Path, file: Path, number: signal.Signals) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    words: list[object] = ["experiment", "run", file, "--seeds", "1", "--jobs", "2", "--keep", "--out", out, *LONG]
    with running_command(*words, log=log) as command:
        until(lambda: "of 200000 rounds" in log.read_text(), "a run completes rounds", logs=[log])
        runs = children(command.pid)
        assert len(runs) == 2
        command.send_signal(number)
        until(lambda: command.poll() is not None, "the command ends", logs=[log])
        until(lambda: not any(Path(f"/proc/{run}").exists() for run in runs), "its processes end", logs=[log])
        said = " ".join(log.read_text().split())
    if number == signal.SIGINT:  # a run that has completed a round leaves what the next command continues from
        left = [out / "small" / case / "seed-1" for case in ("dfca", "averaging")]
        stopped = [directory for directory in left if f"{directory}: stopped after" in said]
        assert stopped, said
        assert all(rounds_written(directory) > 0 for directory in stopped)


def test_runs_at_once_are_of_one_process_each(tmp_path: Path, file: Path) -> None:
    for backend in ("processes", "simulated@auto"):
        done = executed("experiment", "run", file, "--jobs", "2", "--backend", backend, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert "--jobs" in done.stderr

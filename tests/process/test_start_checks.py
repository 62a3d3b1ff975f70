"""Goal: a fault of a user's task or of an address ends a start with one sentence, and an interrupted testbed says what to do.

Method: the command `peer` as forked processes, with a task file whose methods raise an exception on request.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from tools.running import until
from tools.warm_parent import Forked, executed

pytestmark = pytest.mark.process

TASK = """
import numpy as np
from torch import nn
from peer.tasks import Shard, Task

class Own(Task):
    classes = 2
    calls = 0

    def __init__(self, fault=""):
        self.fault = fault

    def make_model(self):
        return nn.Linear(3, 2)

    def load_shard(self, peer_id):
        print("loading")
        if self.fault == "load_shard":
            raise KeyError("temperature")
        x = np.random.default_rng(peer_id).normal(size=(30, 3)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int)
        return Shard(train_x=x[:20], train_y=y[:20], test_x=x[20:], test_y=y[20:])

    def loss(self, outputs, targets):
        self.calls += 1
        if self.fault == "loss" and self.calls > 60:
            raise ValueError("sensor 7 is broken")
        return super().loss(outputs, targets)
"""
BED = ("--kind", "line", "--peers", "2", "--insecure", "--set", "run.algorithm=dfedavg", "--set", "run.task=own.py:Own")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with the task file."""
    (tmp_path / "own.py").write_text(TASK)
    return tmp_path


def peer(place: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run the command to its end, which must have this exit code; return its two outputs."""
    done = executed(*arguments, cwd=place)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def test_a_task_that_fails_at_the_start_of_a_testbed_is_one_report_and_does_not_block_its_folder(place: Path) -> None:
    """Before, each peer failed with a trace in its own log, and a second start with other settings was refused."""
    failing = ("testbed", *BED, "--out", "out", "--set", "run.task_options.fault=load_shard")
    _, said = peer(place, *failing, code=12)
    assert said.count("load_shard(0): KeyError: 'temperature'") == 1
    assert "own.py, line 19)" in said
    assert "Traceback" not in said
    assert not (place / "out").exists()
    _, said = peer(place, "--traceback", *failing, code=12)
    assert "Traceback" in said and 'raise KeyError("temperature")' in said
    (place / "out" / "peer-0").mkdir(parents=True)  # as a start leaves them that ended before the first line of history
    peer(place, "graph", "make", "--peers", "3", "--set", "run.rounds=9", "--out", "out/graph.json")
    out, _ = peer(place, "testbed", *BED, "--out", "out", "--set", "run.rounds=2", "--json")
    assert "loading" not in out


def test_a_task_that_fails_in_a_later_round_is_a_sentence_of_each_peer(place: Path) -> None:
    """Before, the exception of the user ended the peer with a trace and exit code 1."""
    settings = ("--set", "run.task_options.fault=loss", "--set", "run.rounds=60")
    _, said = peer(place, "testbed", *BED, "--out", "out", *settings, code=1)
    sentence = "ValueError: sensor 7 is broken"
    logs = [(place / "out" / f"peer-{i}" / "peer.log").read_text() for i in (0, 1)]
    assert any("failed with exit code 12" in line and sentence in line for line in said.splitlines())
    assert any(sentence in log and "own.py, line 27)" in log for log in logs)
    assert not any("Traceback" in text for text in (said, *logs))


def test_peer_run_checks_its_task_before_it_writes_anything(place: Path) -> None:
    """Before, the exception of the user was a trace, and the state directory was there."""
    shape = (
        "--kind",
        "line",
        "--peers",
        "2",
        "--set",
        "run.task=own.py:Own",
        "--set",
        "run.task_options.fault=load_shard",
    )
    peer(place, "graph", "make", *shape, "--out", "graph.json")
    _, said = peer(place, "run", "--id", "1", "--neighbors", "graph.json", "--insecure", code=12)
    assert "load_shard(1): KeyError: 'temperature'" in said and "own.py, line 19)" in said
    assert "Traceback" not in said
    assert not (place / "state").exists()


def test_an_interrupted_testbed_prints_the_command_that_resumes_it(place: Path) -> None:
    """Before, it ended without a word about the run that it left."""
    arguments = ("testbed", *BED, "--out", "out", "--set", "run.rounds=100000")
    process = Forked(*arguments, "--fresh", cwd=place)
    history = place / "out" / "peer-0" / "history.jsonl"
    until(lambda: history.exists() and '"round"' in history.read_text(), "peer 0 trains")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: stopping 2 peers" in said
    assert f"interrupted; to resume the run: peer {' '.join(arguments)}\n" in said


def test_a_port_in_use_names_the_process_that_has_it(place: Path) -> None:
    """Before, the message was gRPC's: "Failed to bind to address ...; set GRPC_VERBOSITY=debug"."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        peer(
            place,
            "graph",
            "make",
            "--kind",
            "line",
            "--peers",
            "2",
            "--address-template",
            f"127.0.0.1:{{id+{port}}}",
            "--out",
            "graph.json",
        )
        _, said = peer(place, "run", "--id", "0", "--neighbors", "graph.json", "--insecure", code=10)
    assert (
        f"--listen: expected a free port of this machine, got 127.0.0.1:{port}: the address is in use by process"
        in said
    )
    assert "(docs/trouble.md#port-in-use)" in said and "GRPC" not in said and "Traceback" not in said

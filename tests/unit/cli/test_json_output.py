"""With ``--json`` stdout has JSON alone, whatever the code of a task prints, and from wherever."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tools.verbs_of import leaves
from typer.main import get_command
from typer.testing import CliRunner

from peer.cli import json_output
from peer.cli.main import app

CHATTY = '''
import atexit, ctypes, logging, os, subprocess, sys, threading, warnings
import numpy as np
from torch import nn
from peer.tasks import Preprocessing, Shard, Task

def say(what):
    """Print in every way: Python, the descriptor, C code, another process, a warning, a log line, a thread."""
    print("python", what)
    sys.__stdout__.write("original stdout\\n")
    os.write(1, b"descriptor\\n")
    libc = ctypes.CDLL(None)
    libc.puts(b"from C")
    libc.fflush(None)
    subprocess.run(["echo", "another process"], check=True)
    warnings.warn(what)
    thread = threading.Thread(target=print, args=("a thread",))
    thread.start()
    thread.join()

logging.basicConfig(stream=sys.stdout, level="INFO")
logging.warning("a log line")
atexit.register(print, "at the end")
say("import")

class Chatty(Task):
    classes = 3
    preprocessing = Preprocessing()
    def make_model(self):
        say("model")
        return nn.Linear(6, 3)
    def load_shard(self, peer_id):
        say("shard")
        draw = np.random.default_rng(peer_id)
        y = draw.integers(0, 3, 60)
        x = (draw.normal(size=(60, 6)) + y[:, None]).astype(np.float32)
        return Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])
    def metric(self, outputs, targets):
        say("metric")
        return super().metric(outputs, targets)

task = Chatty()
'''


def command(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peer", *map(str, arguments)],
        check=False, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, **options,
    )  # fmt: skip


def quiet() -> str:
    """Return the same task without output."""
    text = CHATTY.replace('    print("python", what)', "    return")
    return "\n".join(line for line in text.splitlines() if not line.startswith(("logging.", "atexit.")))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with a task file that prints, a run of it, and raw samples."""
    import numpy as np

    import peer

    folder = tmp_path_factory.mktemp("chatty")
    (folder / "chatty.py").write_text(quiet())  # in this process
    graph = peer.Graph.make("line", peers=2, run={"rounds": 1, "algorithm": "dfedavg"})
    before = os.getcwd()
    os.chdir(folder)
    try:
        peer.simulate(graph, "chatty.py:task", out="out", progress=False)
    finally:
        os.chdir(before)
    (folder / "chatty.py").write_text(CHATTY)
    np.save(folder / "x.npy", np.zeros((2, 6), np.float32))
    return folder


MODEL = "out/peer-0/models/personalized.safetensors"
TASK = ("--set", "run.task=chatty.py:task")


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", MODEL, "x.npy"),
        ("evaluate", MODEL, "--peer", "0"),
        ("data", "show", *TASK, "--set", "peers=2"),
        ("task", "check", "chatty.py:task"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_what_a_task_prints_is_not_on_stdout(trained, arguments):
    done = command(*arguments, "--json", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    assert "python import" in done.stderr and "from C" in done.stderr and "at the end" in done.stderr


def test_a_testbed_prints_its_report_alone(trained):
    settings = ("--set", "run.rounds=1", "--set", "run.algorithm=dfedavg")
    done = command(
        "testbed", *TASK, "--peers", "2", "--kind", "complete", *settings, "--out", "bed", "--json", cwd=trained
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "complete"


def test_a_task_that_closes_stdout_does_not_take_the_result_away(trained):
    (trained / "closes.py").write_text(quiet() + "\nsys.stdout.close()\n")
    done = command("data", "show", "--set", "run.task=closes.py:task", "--set", "peers=1", "--json", cwd=trained)
    assert json.loads(done.stdout)["peers"]


def test_an_error_leaves_stdout_empty(trained):
    (trained / "raises.py").write_text(CHATTY + "\nraise KeyError('a')\n")
    done = command("task", "check", "raises.py:task", "--json", cwd=trained)
    assert done.returncode == 12
    assert done.stdout == ""
    assert "KeyError" in done.stderr


def test_every_verb_with_json_keeps_stdout_for_it():
    found = {name: o for name, each in leaves(get_command(app)) for o in each.params if "--json" in o.opts}
    assert {
        "peer report",
        "peer status",
        "peer testbed",
        "peer doctor",
        "peer predict",
        "peer graph check",
    } <= found.keys()
    for name, option in found.items():
        assert option.callback is not None, name


def test_stdout_is_that_of_the_caller_again_when_a_verb_called_in_this_process_ends():
    before = sys.stdout
    result = CliRunner().invoke(app, ["list", "tasks", "--json"])
    assert json.loads(result.stdout)["tasks"]
    assert sys.stdout is before
    assert json_output._kept == {}

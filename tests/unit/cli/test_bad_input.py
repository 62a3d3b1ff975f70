"""All verbs with all kinds of bad input: one sentence, the documented exit code, no trace.

On the code before this test, an exception of a user's code, an option without effect and several kinds of file ended in a trace,
or passed in silence.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import typing
from pathlib import Path

import pytest
import typer
from tools.permissions import bound_by_permissions
from typer.models import ParameterInfo

from peer.cli.main import main
from peer.rings import VERBS, verb

OWN_TASK = """
import numpy as np
from torch import nn
from peer.tasks import Shard, Task

class Own(Task):
    classes = 2
    def __init__(self, fault=""):
        self.fault = fault
    def make_model(self):
        if self.fault == "make_model":
            raise KeyError("width")
        return nn.Linear(3, 2)
    def load_shard(self, peer_id):
        if self.fault == "load_shard":
            raise KeyError("temperature")
        x = np.zeros((20, 3), np.float32)
        return Shard(train_x=x, train_y=np.arange(20) % 2, test_x=x, test_y=np.arange(20) % 2)
    def loss(self, outputs, targets):
        if self.fault == "loss":
            raise KeyError("weights")
        return super().loss(outputs, targets)

task = Own()
"""

FILES = {
    "empty": b"",
    "junk": bytes(range(256)) * 4,
    "list.json": b"[1, 2]",
    "text.json": b'"a graph"',
    "unknown-key.json": b'{"graph": {}, "nodes": [], "edges": [], "peers": 3}',
    "no-nodes.json": b'{"edges": []}',
    "bad.toml": b"[[event]]\ndo = 'dance'\n",
    "model.safetensors": b"\x10\x00\x00\x00\x00\x00\x00\x00{",
    "own.py": OWN_TASK.encode(),
    "broken.py": b"import nothing_of_this_name",
    "syntax.py": b"def task(:\n",
    "bytes.py": bytes(range(128, 256)),
}

STATES = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "locked": lambda path: path.touch(mode=0),
}
UNREADABLE = ("pipe", "dangling", "locked")  # a pipe that nobody writes, a link to nothing, a file without permission
ENDINGS = ("", ".py", ".toml", ".csv", ".safetensors")
GRAPH_VERBS = (
    ("graph", "check", "{}"),
    ("graph", "show", "{}"),
    ("testbed", "{}", "--out", "out"),
    ("run", "--id", "0", "--neighbors", "{}", "--insecure"),
    ("deploy", "compose", "{}"),
    ("deploy", "kubernetes", "{}", "--out", "out"),
    ("deploy", "systemd", "{}", "--out", "out"),
    ("deploy", "keys", "{}", "keys", "--out", "pinned.json"),
    ("data", "show", "--graph", "{}"),
    ("task", "check", "digits", "--graph", "{}"),
)
GRAPH_FILES = ("missing", "folder", "empty", "junk", "list.json", "text.json", "unknown-key.json", "no-nodes.json")
GRAPH_FILES += ("pipe", "dangling", "locked")
RUN = ("run", "--id", "0", "--neighbors", "graph.json", "--insecure", "--state-dir", "state")
TASK_VERBS = (
    ("task", "check", "{}"),
    ("data", "show", "--set", "run.task={}"),
    ("data", "split", "--out", "shards", "--set", "run.task={}"),
)
BAD_TASKS = (
    "nothing",
    "missing.py:task",
    "folder:task",
    "own.py:other",
    "broken.py:task",
    "syntax.py:task",
    "bytes.py:task",
    "pipe.py:task",
    "dangling.py:task",
    "locked.py:task",
)
FAULTY = ("own.py:Own", "--set", "run.task_options.fault=")

CASES = [
    *((11, tuple(word.format(file) for word in verb)) for verb in GRAPH_VERBS for file in GRAPH_FILES),
    *((12, tuple(word.format(task) for word in verb)) for verb in TASK_VERBS for task in BAD_TASKS),
    *((12, (*verb[:-1], verb[-1].format(FAULTY[0]), "--set", f"{FAULTY[2]}load_shard")) for verb in TASK_VERBS),
    *((12, ("task", "check", FAULTY[0], "--set", f"{FAULTY[2]}{fault}")) for fault in ("make_model", "loss")),
    *((13, (*RUN, "--shard", f"{file}.safetensors")) for file in ("missing", "folder", "model")),
    *((13, (*RUN, "--shard", f"{file}.safetensors")) for file in UNREADABLE),
    *((30, ("predict", f"{file}.safetensors", "junk")) for file in ("missing", "folder", *UNREADABLE)),
    *((30, ("evaluate", f"{file}.safetensors")) for file in ("missing", "folder", *UNREADABLE)),
    *((10, ("experiment", "run", f"{file}.toml")) for file in ("bytes", *UNREADABLE)),
    *((10, ("testbed", "--peers", "2", "--out", "out", "--chaos", f"{file}.toml")) for file in ("bytes", *UNREADABLE)),
    *((20, ("graph", "pin", "graph.json", file)) for file in UNREADABLE),
    *((12, ("task", "check", "tabular", "--set", f"data_root={file}.csv")) for file in ("bytes", *UNREADABLE)),
    (13, ("data", "show", "wrong-shards")),
    (2, ("data", "show", "folder")),
    (2, ("data", "show", "wrong-shards", "--set", "peers=4")),
    (2, ("data", "show", "wrong-shards", "--set", "run.split=iid")),
    *(
        (10, ("graph", "make", "--set", setting))
        for setting in ("run.rounds=0", "run.clusterz=2", "run", "run.rounds=x")
    ),
    *((10, ("graph", "make", "--set", f"run.{key}=nothing")) for key in ("algorithm", "options.nothing", "pace")),
    *((2, ("graph", "make", "--peers", peers)) for peers in ("0", "1", "-3", "1000000")),
    (11, ("graph", "make", "--kind", "ring:degree=3")),
    (11, ("graph", "make", "--kind", "regular:degree=2.5")),
    (2, ("graph", "make", "--out", "graph.json")),
    (2, ("graph", "make", "--set", "run.task=own.py:task", "--set", "run.model=mlp")),
    (2, ("graph", "show", "graph.json", "--out", "drawing.nothing")),
    (2, ("graph", "nothing")),
    (12, ("data", "show", "--set", "run.split=nothing")),
    (12, ("data", "show", "--set", "run.split_options.nothing=1")),
    (12, ("data", "show", "--set", "run.task_options.nothing=1")),
    (12, ("task", "check", "digits", "--set", "run.model=nothing")),
    (12, ("task", "check", "mnist")),
    (12, ("task", "check", "mnist", "--set", "data_root=missing")),
    (12, ("task", "check", "digits", "--peer", "8")),
    (12, ("task", "check", "tabular", "--set", "data_root=junk")),
    (2, ("task", "check", "digits", "--set", "data_root=folder")),
    (2, ("task", "check", "own.py:task", "--set", "data_root=folder")),
    (2, ("data", "show", "--set", "data_root=folder")),
    (2, ("data", "show", "--set", "download=true")),
    (2, (*RUN, "--data-root", "folder")),
    (2, (*RUN, "--options", "no-file.toml")),
    (2, (*RUN, "--shard", "folder")),
    (2, (*RUN, "--certs", "folder")),
    *(
        (2, (*RUN, f"--{name}", value))
        for name, value in (("metrics", "127.0.0.1"), ("log", "loud"), ("limit", "2MB:"))
    ),
    (2, ("testbed", "--out", "out", "--set", "data_root=folder")),
    *((2, ("testbed", "--out", "out", "--set", wrong)) for wrong in ("threads=0", "threads=x", "amp=fp16")),
    (2, ("testbed", "graph.json", "--out", "out", "--peers", "4")),
    (2, ("testbed", "--out", "out", "--set", "run.optimizer=adam", "--set", "run.momentum=0.9")),
    (11, ("run", "--id", "9", "--neighbors", "graph.json", "--insecure")),
    (20, ("run", "--id", "0", "--neighbors", "graph.json", "--state-dir", "state")),
    *((30, (*RUN[:-1], f"state-{kind}")) for kind in ("pipe", "device", "folder", "locked")),
    (2, (*RUN, "--device", "abacus")),
    (2, (*RUN, "--listen", "nowhere")),
    (2, ("doctor", "--device", "gpu")),
    (30, ("run", "--id", "0", "--neighbors", "graph.json", "--insecure", "--state-dir", "junk")),
    (30, ("testbed", "--peers", "2", "--kind", "line", "--out", "junk")),
    (10, ("testbed", "--out", "out", "--set", "run.algorithm=nothing")),
    (11, ("testbed", "--out", "out", "--kind", "nothing")),
    (2, ("testbed", "--out", "out", "--peers", "0")),
    *((10, ("testbed", "--peers", "2", "--kind", "line", "--out", "out", "--chaos", f)) for f in ("bad.toml", "junk")),
    *((11, ("chaos", file, "--now", "do=heal")) for file in ("missing", "folder", "empty")),
    (2, ("chaos", "folder")),
    (2, ("chaos", "folder", "--now", "do=heal", "--for", "60:2")),
    *((2, ("chaos", "folder", "--seed", "1", "--for", text)) for text in ("0", "60:0", "x", "inf", "60:nan")),
    *((2, ("report", file)) for file in ("missing", "empty")),
    *((10, ("experiment", "run", file)) for file in ("missing", "folder", "empty", "junk", "bad.toml")),
    (2, ("experiment", "run", "bad.toml", "--backend", "nothing")),
    (30, ("data", "split", "--set", "peers=2", "--out", "junk")),
    (20, ("keygen", "--id", "0", "--out", "junk")),
    (20, ("graph", "pin", "graph.json", "junk")),
]


def files_of_verbs():
    """Yield the name of each verb, and of each of its options and arguments that is a path, with what typer knows of it."""
    for found in map(verb, VERBS):
        callbacks = [each.callback for each in found.registered_commands] if isinstance(found, typer.Typer) else [found]
        for callback in callbacks:
            for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
                kind, *more = typing.get_args(parameter.annotation) or (None,)
                if kind is Path or Path in typing.get_args(kind):
                    yield callback.__name__, name, next(x for x in more if isinstance(x, ParameterInfo))


def test_the_verb_and_not_typer_refuses_a_file_that_may_not_be_read():
    """Typer asks whether an ordinary user may read the file, and ends with code 2; root, as whom tests run, it does not stop."""
    found = list(files_of_verbs())
    assert len(found) > 50 and [(verb, name) for verb, name, info in found if info.readable] == []


def test_the_locked_file_is_locked_also_for_root(place):
    with bound_by_permissions(), pytest.raises(PermissionError):
        (place / "locked").read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with one file of each bad kind, and a right graph file."""
    place = tmp_path_factory.mktemp("bad-input")
    for name, content in FILES.items():
        (place / name).write_bytes(content)
    for ending in ENDINGS:
        os.mkfifo(place / f"pipe{ending}")
        (place / f"dangling{ending}").symlink_to("nothing-of-this-name")
        (place / f"locked{ending}").touch(mode=0)
    for ending in (".toml", ".csv"):
        (place / f"bytes{ending}").write_bytes(b"a,b\n" + FILES["bytes.py"])
    for kind, make in STATES.items():  # an incarnation.json of each kind
        (place / f"state-{kind}").mkdir()
        make(place / f"state-{kind}" / "incarnation.json")
    (place / "folder").mkdir()
    (place / "folder.safetensors").mkdir()
    (place / "wrong-shards").mkdir()
    (place / "wrong-shards" / "peer-0.safetensors").write_bytes(FILES["junk"])
    nodes = [{"id": i, "address": f"127.0.0.1:{17500 + i}"} for i in range(2)]
    (place / "graph.json").write_text(json.dumps({"graph": {}, "nodes": nodes, "edges": [{"source": 0, "target": 1}]}))
    return place


@pytest.mark.usefixtures("run_in_this_process")
@pytest.mark.parametrize(("code", "arguments"), CASES, ids=[" ".join(arguments) for _, arguments in CASES])
def test_bad_input_ends_with_one_sentence_and_the_documented_code(monkeypatch, capfd, place, code, arguments):
    """Each case is refused before any peer starts."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["peer", *arguments])
    with bound_by_permissions(), pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr()
    assert ended.value.code == code, said.err
    assert said.err.strip()
    assert "Traceback" not in said.out + said.err
    assert not (place / "out").exists()

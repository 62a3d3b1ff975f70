"""Goal: a bare installation runs peers with an own task; what needs a package of an extra is refused at its start.

Method: `peer run` and other verbs as processes that cannot find the packages of extras (`tools/bare.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tools.bare import environment
from tools.running import PATIENCE_S, on_loopback

from coordinator_free_bootstrap import apply_settings, make_graph, parse_manifest, save_graph
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.process

TASK = """
import numpy as np
from torch import nn
from peer import Shard, Task

class Halves(Task):
    classes = 2

    def make_model(self):
        return nn.Linear(3, 2)

    def load_shard(self, peer_id):
        x = np.random.default_rng(peer_id).normal(size=(60, 3)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int)
        return Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:], true_cluster=np.full(40, peer_id % 2))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with a task file and the graph file of two peers."""
    (tmp_path / "halves.py").write_text(TASK)
    make(tmp_path)
    return tmp_path


def make(home: Path, *settings: str) -> None:
    """Write the graph file of two peers."""
    graph = on_loopback(make_graph("complete", 2))
    given = ["run.rounds=2", "run.task=halves.py:Halves", *settings]
    manifest = parse_manifest(apply_settings(graph.manifest.model_dump(), given), "test")
    save_graph(type(graph)(graph.nodes, graph.edges, manifest), home / "graph.json")


def started(home: Path, *words: object) -> subprocess.Popen[str]:
    """Start the command `peer` in a folder, without the packages of extras."""
    command = [sys.executable, "-m", "peer", *map(str, words)]
    return subprocess.Popen(command, env=environment(home), cwd=home, stdout=-1, stderr=-1, text=True)


def peer(home: Path, *words: object) -> tuple[int, str]:
    """Run the command `peer` to its end; return its exit code, and what it printed to both outputs."""
    with started(home, *words) as process:
        return process.wait(PATIENCE_S), "".join(process.communicate())


def run_words(home: Path, peer_id: int) -> tuple[object, ...]:
    state = StateDir.of_peer(home, peer_id).root
    return ("run", "--id", peer_id, "--neighbors", "graph.json", "--state-dir", state, "--insecure")


@pytest.mark.parametrize(
    "settings", [(), ("run.algorithm=fedspd", "run.options.align_every=1", "run.options.min_cluster_samples=2")]
)
def test_two_peers_with_an_own_task_complete_and_are_reported(home: Path, settings: tuple[str, ...]) -> None:
    make(home, *settings)
    with ExitStack() as stack:
        peers = [stack.enter_context(started(home, *run_words(home, peer_id))) for peer_id in (0, 1)]
        ended = [(process.communicate(timeout=PATIENCE_S)[1], process.returncode) for process in peers]
    assert [code for _, code in ended] == [0, 0], ended
    code, said = peer(home, "report", ".")
    assert code == 0, said
    assert settings or "4 sent, 4 folded" in said
    assert "is not installed" not in said.replace("package matplotlib is not installed", "")
    assert said.count("no pictures: package matplotlib is not installed") == 1
    assert [path.name for path in (home / "report").iterdir()] == ["matrix.csv"]
    code, said = peer(home, "report", ".", "--out", "pictures")  # asked for
    assert (code, "error: package matplotlib is not installed" in said) == (2, True), said


@pytest.mark.parametrize(
    ("settings", "options", "sentence"),
    [
        (["run.task=digits"], [], "task 'digits': package sklearn is not installed; .*[lab]'"),
        ([], ["--metrics", "9"], "package prometheus_client is not installed; .*[metrics]'"),
        (
            [],
            ["--options", "exports.toml"],
            "export in exports.toml: csv:rounds.csv: package pandas is not .*[tabular]'",
        ),
    ],
)
def test_a_peer_is_refused_at_its_start_with_the_install_command(
    home: Path, settings: list[str], options: list[str], sentence: str
) -> None:
    make(home, *settings)
    (home / "exports.toml").write_text('export = "csv:rounds.csv"\n')
    code, said = peer(home, *run_words(home, 0), *options)
    start, end = sentence.split(".*")
    assert code == 2, said
    assert start in said and end in said, said
    assert "Traceback" not in said
    assert not list(home.rglob("history.jsonl"))


def test_a_testbed_names_what_its_task_needs(home: Path) -> None:
    code, said = peer(home, "testbed", "--peers", "2", "--kind", "line", "--set=run.task=digits", "--out", "bed")
    assert code == 2, said
    assert "is not installed; install it: pip install 'coordinator-free[lab]'" in said
    assert not (home / "bed").exists()


FEDSPD = {"align_every": 1, "min_cluster_samples": 2}
PARTS = {"warm_rounds": 3, "hard_rounds": 1, "split": "updates"}
PRIVATE = {"dp_epsilon": 5.0, "label_check": False}
RUNS: list[tuple[Any, ...]] = [  # each option of the kernel's algorithms that has code of its own
    ("local", {}),
    ("dpsgd", {}),
    ("dfedavg", {"partners": 1}),
    ("dfca", {}),
    ("dfca", {"initialization": "local", "warmup_rounds": 2, "split_empty": True}),
    ("dfca", {"initialization": "seeds"}),
    ("dfca", {"idle_folds": False}, {"participation": 0.8}),
    ("fedspd", FEDSPD | {"selection": "partition", "exchange": "broadcast", "center_labels": True}),
    ("fedspd", FEDSPD | PARTS | {"personalize": "confident"}),
    ("fedspd", FEDSPD | {"initialization": "local", "init_labels": "index_split", "personalize": "mixture"}),
    ("fedspd", FEDSPD | PRIVATE | {"first_round": "paper", "u_min": 0.2}),
    ("cgpfl", {"align_every": 1}),
]
PROGRAM = """
import json, sys
import peer
from coordinator_free_bootstrap.extras import EXTRAS

for algorithm, options, *more in json.load(sys.stdin):
    clusters = {"clusters": 2} if algorithm in ("dfca", "fedspd", "cgpfl") else {}
    run = {"task": "halves.py:Halves", "algorithm": algorithm, "options": options, "rounds": 5}
    for keys in (clusters, *more):
        run |= keys
    report = peer.simulate(peer.Graph.make("ring", peers=4, run=run), progress=False).metrics
    print(json.dumps([algorithm, report["state"], report["models_sent"] > 0]))
print(json.dumps(sorted(EXTRAS.keys() & sys.modules.keys())))
"""


def test_each_algorithm_of_the_kernel_runs_with_all_its_options(home: Path) -> None:
    assert {name for name, *_ in RUNS} >= {"dfca", "fedspd", "dfedavg", "dpsgd", "local"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(RUNS),
        env=environment(home),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *said, loaded = map(json.loads, done.stdout.splitlines())
    assert said == [[name, "complete", name != "local"] for name, *_ in RUNS]
    assert loaded == []

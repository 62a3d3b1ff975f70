"""The command `peer` through its entry point, as a new user runs it: graph file, testbed, report, evaluate, predict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tools.running import on_loopback, running_peer, until
from tools.warm_parent import executed

from coordinator_free_bootstrap import load_graph, save_graph
from peer.algorithms.registry import algorithms
from peer.core.counters import COUNTERS
from peer.store.history import read_history
from peer.view.models.saved import SavedModel

pytestmark = pytest.mark.process

# The documented keys of `peer report --json`; users' scripts depend on them.
REPORT_KEYS = {
    "metric_mean",
    "metric_std",
    "metric_worst",
    "metric_p10",
    "cluster_ari",
    "rounds",
    "models_sent",
    "models_folded",
    "duplicates_dropped",
    "stale_dropped",
    "payload_bytes_sent",
    "wire_bytes_sent",
    "seconds",
    "consensus_distance",
    "peers",
}
PEER_KEYS = {"peer_id", "metric_value", "cluster_index", "true_cluster", "rounds_completed", "incarnation"}


def peer(*arguments: object, code: int = 0) -> str:
    """Run the command and return its standard output; its exit code must be ``code``."""
    done = executed(*arguments)
    assert done.returncode == code, f"{done.args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def make_graph_file(path: Path, *words: object) -> None:
    """Make a graph file with the command, and give its peers free ports instead of its own."""
    peer("graph", "make", *words, "--out", path)
    save_graph(on_loopback(load_graph(path)), path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run three peers of a new graph to the end and return the directory."""
    place = tmp_path_factory.mktemp("command-line")
    shape = ["--kind", "complete", "--peers", 3]
    settings = ["--set", "run.rounds=3", "--set", "run.timeouts.round_deadline_s=60"]
    make_graph_file(place / "graph.json", *shape, *settings)
    peer("testbed", place / "graph.json", "--out", place / "out", "--json")
    return place / "out"


@pytest.fixture
def first_graph(tmp_path: Path) -> Iterator[Path]:
    """Run the README's "first own graph" on one machine: a graph, keys, and two peers that use them."""
    shape = ["--kind", "complete", "--peers", 2, "--set", "run.rounds=100000"]
    graph, certs = tmp_path / "graph.json", tmp_path / "certs"
    make_graph_file(graph, *shape)
    for subject in (("--id", 0), ("--id", 1), ("--observer", "me")):
        peer("keygen", *subject, "--out", certs)
    peer("graph", "pin", graph, *certs.glob("*.pem"))
    with ExitStack() as stack:
        for i in (0, 1):
            stack.enter_context(running_peer(i, tmp_path, "--certs", certs))
        yield tmp_path


def test_first_own_graph_runs_and_answers_peer_status(first_graph: Path) -> None:
    def both_train() -> bool:
        histories = [first_graph / f"peer-{i}" / "history.jsonl" for i in (0, 1)]
        return all(path.exists() and '"kind":"round"' in path.read_text().replace(" ", "") for path in histories)

    until(both_train, "both train", logs=first_graph.glob("*.log"))
    lines = peer("status", first_graph / "graph.json").splitlines()
    assert lines[0].split()[:3] == ["peer", "phase", "round"] and len(lines) == 4
    for i, line in enumerate(lines[2:]):
        assert line.split()[0] == str(i) and " 1/1 " in line
    refused = peer("status", load_graph(first_graph / "graph.json").node(0).address, code=40)
    assert "no answer in plaintext" in refused and "peer status graph.json (docs/trouble.md#no-answer)" in refused
    unpinned = replace(load_graph(first_graph / "graph.json"), observers=())
    nodes = tuple(replace(node, certificates=(), pins=()) for node in unpinned.nodes)
    save_graph(replace(unpinned, nodes=nodes), first_graph / "unpinned.json")
    silent = executed("status", first_graph / "unpinned.json")
    assert silent.returncode == 40 and "pins no certificates" in " ".join(silent.stdout.split())
    (first_graph / "certs" / "me.key").unlink()
    (first_graph / "certs" / "me.pem").unlink()
    hint = peer("status", first_graph / "graph.json", code=20)
    assert "that the graph file lists (me), got none" in " ".join(hint.split()) and "peer keygen --observer" in hint


def test_report_has_its_documented_keys(finished: Path) -> None:
    report = json.loads(peer("report", finished, "--json"))
    assert report.keys() >= REPORT_KEYS
    assert all(row.keys() >= PEER_KEYS for row in report["peers"])
    assert report["rounds"] == 3
    assert report["models_sent"] == report["models_folded"] == 3 * 3 * 2


def test_the_totals_of_a_summary_are_what_its_report_counts(finished: Path) -> None:
    """Before, a summary and a status had no `wire_bytes_sent`."""
    for row in json.loads(peer("report", finished, "--json"))["peers"]:
        totals = json.loads((finished / f"peer-{row['peer_id']}" / "summary.json").read_text())["totals"]
        assert totals == {name: row[name] for name in COUNTERS if row[name]} and totals["wire_bytes_sent"] > 0


def test_every_peer_writes_the_same_files(finished: Path) -> None:
    for peer_id in range(3):
        place = finished / f"peer-{peer_id}"
        assert {path.name for path in (place / "models").iterdir()} == {
            "cluster-0.safetensors",
            "cluster-1.safetensors",
            "personalized.safetensors",
        }
        assert json.loads((place / "summary.json").read_text())["status"] == "completed"


def test_saved_model_is_evaluated_and_predicts(finished: Path, tmp_path: Path) -> None:
    model = finished / "peer-1" / "models" / "personalized.safetensors"
    found = json.loads(peer("evaluate", model, "--peer", 1, "--json"))
    reported = json.loads(peer("report", finished, "--json"))["peers"][1]["metric_value"]
    assert found["accuracy"] == pytest.approx(reported)
    inputs = tmp_path / "inputs.npy"
    np.save(inputs, np.zeros((2, 1, 8, 8), np.float32))
    predictions = json.loads(peer("predict", model, inputs, "--json"))
    assert [set(row) for row in predictions["predictions"]] == [{"row", "class", "probability"}] * 2
    about = SavedModel.read(model).metadata
    assert (about["role"], about["predictor"]) == ("personalized_model", "personalized_model")
    assert SavedModel.read(model.with_name("cluster-1.safetensors")).metadata["role"] == "cluster 1"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"run": {"rounds": 0}}, 10, ["graph.json", "run.rounds", "0"]),
        ({"run": {"clusterz": 2}}, 10, ["graph.json", "clusterz", "clusters"]),
        ({"run": {"algorithm": "dfka"}}, 10, ["dfka", "dfca"]),
        ({"run": {"options": {"warmup": 2}}}, 10, ["options.warmup", "warmup_rounds"]),
    ],
)
def test_wrong_manifest_is_reported_in_one_sentence(
    tmp_path: Path, change: dict[str, object], code: int, words: list[str]
) -> None:
    nodes = [{"id": i, "address": f"127.0.0.1:{17420 + i}"} for i in range(2)]
    graph = {"graph": change, "nodes": nodes, "edges": [{"source": 0, "target": 1}]}
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    run = ("run", "--id", 0, "--neighbors", path, "--insecure", "--state-dir", tmp_path / "state")
    error = peer(*run, code=code)
    assert all(word in error for word in words)
    assert "Traceback" not in error


def test_help_of_every_verb_shows_an_example() -> None:
    single = ("run", "testbed", "report", "evaluate", "predict", "doctor")
    grouped = (("graph", "make"), ("graph", "check"), ("graph", "show"), ("data", "split"), ("task", "check"))
    for verb in [*((name,) for name in single), *grouped]:
        assert "Example" in peer(*verb, "--help"), verb


VARIANTS = {"cgpfl, auto": ("cgpfl", "--set", "run.options.clusters=auto")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*algorithms(), *VARIANTS}))
def test_every_algorithm_completes_a_testbed_with_its_defaults(tmp_path: Path, name: str) -> None:
    algorithm, *options = VARIANTS.get(name, (name,))
    settings = ["--set", f"run.algorithm={algorithm}", *options, "--set", "run.rounds=3", "--insecure"]
    report = json.loads(peer("testbed", "--peers", 4, *settings, "--out", tmp_path / "out", "--json"))
    assert [row["peer_id"] for row in report["peers"]] == [0, 1, 2, 3]
    for row in report["peers"]:
        history = read_history(tmp_path / "out" / f"peer-{row['peer_id']}" / "history.jsonl")
        assert [line["round_index"] for line in history if line["kind"] == "round"] == [0, 1, 2]
        assert row["rounds_completed"] == 3 and 0 < row["metric_value"] <= 1
        assert row["models_folded"] > 0 or name == "local"


FAILS_AT_PEER_2 = """
import torch

import peer


class OneFileIsMissing(peer.Task):
    classes = 2

    def make_model(self):
        return torch.nn.Linear(2, 2)

    def load_shard(self, peer_id):
        if peer_id == 2:
            raise FileNotFoundError("peer-2.csv")
        x = torch.randn(40, 2, generator=torch.Generator().manual_seed(peer_id))
        y = (x[:, 0] > 0).long()
        return peer.Shard(train_x=x[:30], train_y=y[:30], test_x=x[30:], test_y=y[30:])


task = OneFileIsMissing()
"""


def test_a_peer_that_cannot_start_is_told_before_the_others_have_ended(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAILS_AT_PEER_2)
    run = [f"--set=run.{each}" for each in ("rounds=2", "start.wait_for=0.3")]
    shape = ["--kind", "complete", "--peers", 4, "--set", f"run.task={tmp_path / 'own.py'}:task"]
    done = executed("testbed", *shape, *run, "--insecure", "--out", tmp_path / "out", "--json")
    assert done.returncode == 1
    told = "peer 2 failed with exit code 12: load_shard(2): FileNotFoundError: peer-2.csv"
    lines = done.stderr.splitlines()
    first, last = ([told in line for line in order].index(True) for order in (lines, lines[::-1]))
    completed = next(i for i, line in enumerate(lines) if "3 completed, 1 failed" in line)
    assert first < completed < len(lines) - 1 - last
    rows = {row["peer_id"]: row for row in json.loads(done.stdout)["peers"]}
    assert [(row["status"], row["exit_code"]) for row in rows.values()] == [
        *[("completed", 0)] * 2,
        ("failed", 12),
        ("completed", 0),
    ]


def start_failure(tmp_path: Path, *settings: str, code: int = 1) -> tuple[list[str], dict[int, str], dict[str, object]]:
    """Run a testbed whose peer 2 has no data; return its lines, the peers' statuses, and the report."""
    (tmp_path / "own.py").write_text(FAILS_AT_PEER_2)
    shape = ["--kind", "complete", "--peers", 4, "--set", f"run.task={tmp_path / 'own.py'}:task", "--set=run.rounds=2"]
    done = executed("testbed", *shape, *settings, "--insecure", "--out", tmp_path / "out", "--json")
    assert done.returncode == code, done.stderr
    report = json.loads(done.stdout)
    return done.stderr.splitlines(), {row["peer_id"]: row["status"] for row in report["peers"]}, report


def test_peers_that_would_wait_for_one_that_cannot_start_are_stopped_with_the_reason(tmp_path: Path) -> None:
    lines, statuses, report = start_failure(tmp_path)  # with the default rule, they would wait 600 s
    told = [next(i for i, line in enumerate(lines) if words in line) for words in ("peer-2.csv", "peer 2 cannot start")]
    assert told == sorted(told)
    assert "stopping 3 other peers" in lines[told[1]] and "set --on-start-failure to continue" in lines[told[1]]
    assert statuses.pop(2) == "failed"
    assert set(statuses.values()) <= {"left", "missing"}
    assert report["state"] == "incomplete" and report["rounds"] == 0


def test_peers_go_on_without_one_that_cannot_start_if_the_user_wants_it(tmp_path: Path) -> None:
    going_on = ("--set=run.start.deadline_s=3", "--on-start-failure", "continue")
    _, statuses, report = start_failure(tmp_path, *going_on)
    assert statuses == {0: "completed", 1: "completed", 2: "failed", 3: "completed"}
    assert report["state"] == "incomplete"


@pytest.mark.slow
def test_example_of_an_own_task_runs(tmp_path: Path) -> None:
    task = f"{Path(__file__).parents[2] / 'examples' / 'sensor_task.py'}:task"
    graph = tmp_path / "graph.json"
    peer("graph", "make", "--kind", "ring", "--peers", 3, "--set", f"run.task={task}", "--out", graph)
    assert json.loads(graph.read_text())["graph"]["run"]["task"] == task
    settings = ["--set", "run.rounds=2", "--set", "run.timeouts.round_deadline_s=60"]
    peer(
        "testbed", "--kind", "complete", "--peers", 3, "--set", f"run.task={task}", *settings, "--out", tmp_path / "out"
    )
    report = json.loads(peer("report", tmp_path / "out", "--json"))
    assert report["rounds"] == 2 and len(report["peers"]) == 3


@pytest.mark.slow
def test_a_new_project_runs_with_the_command_that_its_page_names(tmp_path: Path) -> None:
    peer("init", tmp_path / "mine", "--template", "images")
    assert "\n    peer testbed graph.json " in (tmp_path / "mine" / "README.md").read_text()
    out = ["--set", "run.rounds=2", "--out", tmp_path / "out", "--json"]
    done = executed("testbed", "graph.json", *out, cwd=tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    metric = {"name": "balanced accuracy", "higher_is_better": True, "share": False}
    assert (report["rounds"], report["metric"]) == (2, metric)
    assert all(0 < row["metric_value"] <= 1 and row["models_folded"] > 0 for row in report["peers"])


def test_a_peer_whose_task_ends_its_process_with_code_0_has_failed(tmp_path: Path) -> None:
    ends = FAILS_AT_PEER_2.replace('raise FileNotFoundError("peer-2.csv")', "os._exit(0)").replace(
        "import", "import os\nimport", 1
    )
    (tmp_path / "own.py").write_text(ends)
    shape = ["--kind", "line", "--peers", 3, "--set", f"run.task={tmp_path / 'own.py'}:task", "--set=run.rounds=2"]
    done = executed(
        "testbed", *shape, "--set=run.start.deadline_s=3", "--insecure", "--out", tmp_path / "out", "--json"
    )
    assert done.returncode == 1
    assert "peer 2 ended with exit code 0 without completing or leaving the run" in done.stderr
    assert json.loads(done.stdout)["state"] == "incomplete"

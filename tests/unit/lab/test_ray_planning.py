"""`peer experiment run --backend simulated@RAY` before and beside a cluster: plans, what nodes have, options, errors."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app
from peer.lab import ray_runs
from peer.lab.demand import Demand
from peer.lab.fingerprint import differences, fingerprint
from peer.lab.jobs import backend_named, done_already, jobs_of
from peer.lab.ray_board import Board, Rounds
from peer.lab.ray_cluster import connected, node_of, refuse_impossible, smallest_gpu
from peer.lab.ray_runs import device_on_ray, packed, planned, unfinished_prefix, unpack
from peer.lab.runner import run_job
from peer.lab.scaling import Scale
from peer.lab.simulated import SimulatedSettings
from peer.lab.spec import load_experiment

FILE = """
title = "A table"
source = "this test"
peers = 8
seeds = 3
train_samples = 80
test_samples = 40
graph = { kind = "ring" }
run = { task = "tabular", split = "iid", rounds = 1 }
[[case]]
name = "small"
run = { algorithm = "local", model_options = { hidden = 8 } }
[[case]]
name = "large"
run = { algorithm = "local", model_options = { hidden = 4000 } }
"""
NODE = {
    "NodeID": "abcdef0123",
    "NodeManagerAddress": "192.0.2.1",
    "Alive": True,
    "Resources": {"CPU": 4.0, "memory": 8e9, "GPU": 1.0, "node:192.0.2.1": 1.0},
}


@pytest.fixture
def jobs(tmp_path):
    (tmp_path / "table.toml").write_text(FILE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(150)))
    experiment = load_experiment(tmp_path / "table.toml")
    return jobs_of(experiment, Scale(), 3, "simulated", SimulatedSettings(data_root=tmp_path / "data"), [])


def test_a_plan_has_the_needs_of_its_case_and_the_files_of_its_data_set(jobs, tmp_path):
    plans = planned(jobs)
    assert [plan.job for plan in plans] == jobs
    assert [plan.job.label for plan in plans][:3] == ["small, seed 1", "large, seed 1", "small, seed 2"]
    assert len({plan.demand.memory for plan in plans[::2]}) == 1 < len({plan.demand.memory for plan in plans})
    assert plans[1].demand.memory > plans[0].demand.memory
    assert all(plan.data.root == tmp_path / "data" for plan in plans)
    assert [[file.path for file in plan.data.files] for plan in plans] == [["t.csv"]] * 6
    plans[0].starts = 1
    assert plans[2].starts == 0


def test_only_runs_without_a_result_are_started(jobs, tmp_path):
    run_job(jobs[0], tmp_path, keep=False, command="", on_round=lambda completed, metric: None)
    elsewhere = replace(jobs[0], settings=replace(jobs[0].settings, data_root=tmp_path / "a-node"))
    assert done_already(elsewhere, tmp_path)  # the result of a node, which has its own data root, counts
    assert [job.label for job in jobs if not done_already(job, tmp_path)] == [job.label for job in jobs[1:]]


def test_a_run_on_the_gpus_of_a_cluster_has_a_digest_where_there_is_none(jobs, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    on_gpu = replace(jobs[0], settings=replace(jobs[0].settings, device="cuda"))
    assert on_gpu.digest() != jobs[0].digest()


@pytest.mark.parametrize(
    ("demand", "share", "fits"),
    [
        (Demand(4, 8 * 10**9), 0.0, True),
        (Demand(5, 1), 0.0, False),
        (Demand(1, 9 * 10**9), 0.0, False),
        (Demand(1, 1, 10**9), 0.5, True),
    ],
)
def test_a_run_that_no_node_can_start_is_refused_with_both_numbers(demand, share, fits):
    node = node_of(NODE)
    assert node.name == "192.0.2.1 (node abcdef)"
    assert node.fits(demand, share) == fits
    if fits:
        refuse_impossible("small, seed 1", demand, share, [node])
        return
    with pytest.raises(
        UsageError, match=r"for small, seed 1, got .*\(node abcdef\) 4 cores, 8.0 GB, 1 GPUs\. Use fewer"
    ):
        refuse_impossible("small, seed 1", demand, share, [node])


def test_a_gpu_run_needs_a_node_with_a_gpu():
    node = node_of({**NODE, "Resources": {"CPU": 4.0, "memory": 8e9}})
    with pytest.raises(UsageError, match=r"0.25 of a GPU \(2.0 GB\) for small, seed 1, got .* 0 GPUs"):
        refuse_impossible("small, seed 1", Demand(1, 1, 2 * 10**9), 0.25, [node])
    with pytest.raises(UsageError, match="there is none"):
        refuse_impossible("small, seed 1", Demand(1, 1), 0.0, [])


@pytest.mark.parametrize(("text", "size"), [("81559\n40960\n", 40960 << 20), ("", None), ("No devices found", None)])
def test_the_smallest_gpu_of_a_node_counts(text, size):
    assert smallest_gpu(text) == size


def test_other_code_or_torch_is_a_difference_and_another_build_is_not():
    mine = fingerprint()
    assert mine["coordinator-free"].startswith("0.") and "+" not in mine["torch"]
    assert differences(mine, mine) == []
    assert differences(mine | {"torch": "1.0"}, mine) == [f"torch 1.0 instead of {mine['torch']}"]
    assert differences({}, {"numpy": "2.0"}) == ["numpy missing instead of 2.0"]


@pytest.mark.parametrize(
    ("device", "backend", "words"),
    [
        ("auto", "simulated", "--device: expected cpu or cuda with a Ray cluster, got 'auto'"),
        ("cuda:1", "simulated", "The cluster chooses which GPU"),
        ("cpu", "processes", "--backend: expected simulated with a Ray cluster, got processes"),
    ],
)
def test_options_that_a_cluster_does_not_have_are_refused(device, backend, words):
    with pytest.raises(UsageError, match=words):
        device_on_ray(device, backend)
    assert (device_on_ray(None, "simulated"), device_on_ray("cuda", "simulated")) == ("cpu", "cuda")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("simulated", ("simulated", None, None)),
        ("stacked", ("simulated", None, True)),
        ("one-by-one@auto", ("simulated", "auto", False)),
        ("simulated@ray://first:10001", ("simulated", "ray://first:10001", None)),
        ("processes", ("processes", None, None)),
    ],
)
def test_a_backend_names_the_cluster_and_whether_models_are_trained_as_one(text, found):
    assert backend_named(text) == found


@pytest.mark.parametrize("text", ["", "ray", "simulated@", "@local", "Stacked"])
def test_another_backend_is_refused(text):
    with pytest.raises(UsageError, match=f"--backend: expected simulated, .* got '{text}'"):
        backend_named(text)


def test_without_ray_the_command_says_what_to_install(jobs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    arguments = ["--backend", "simulated@local", "--data-root", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["experiment", "run", str(tmp_path / "table.toml"), *arguments])
    assert isinstance(done.exception, UsageError)
    assert "pip install 'coordinator-free[ray]'" in str(done.exception)
    assert done.exception.exit_code == 2


class OneNode:
    """In place of Ray: a cluster of one node, on which a task runs when its result is asked for."""

    def init(self, **_):
        pass

    shutdown = init

    def nodes(self):
        return [NODE]

    def remote(self, function):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: partial(function)))

    def wait(self, tasks, **_):
        return tasks, []

    def get(self, task):
        return task()


def test_a_run_that_no_node_can_start_is_refused_before_any_run(jobs, tmp_path, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # the command sets them
    monkeypatch.setitem(sys.modules, "ray", OneNode())
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: None)
    for name, module in (("ray.util", SimpleNamespace()), ("ray.util.scheduling_strategies", strategies)):
        monkeypatch.setitem(sys.modules, name, module)
    arguments = ["--backend", "simulated@local", "--data-root", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["experiment", "run", str(tmp_path / "table.toml"), "--threads", "5", *arguments])
    assert isinstance(done.exception, UsageError)
    assert "expected a node with 5 cores" in str(done.exception) and "4 cores, 8.0 GB, 1 GPUs" in str(done.exception)
    assert not list(tmp_path.rglob("seed-*"))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "127.0.0.1:1",
            "expected a cluster that can be reached, got 127.0.0.1:1: Connection refused. "
            "Start one with: GRPC_ENABLE_FORK_SUPPORT=0 ray start --head",
        ),
        ("ray://127.0.0.1:1", "expected a cluster that can be reached, got ray://127.0.0.1:1"),
        ("cluster", "expected one of local, auto, HOST:PORT, ray://HOST:PORT, got 'cluster'"),
        ("http://127.0.0.1:1", "expected .*, got 'http://127.0.0.1:1'"),
        ("127.0.0.1:99999", "expected .*, got '127.0.0.1:99999'"),
    ],
)
def test_an_address_that_does_not_answer_is_refused_at_once(address, words):
    with pytest.raises(UsageError, match=words), connected(address):
        raise AssertionError("connected")


def test_a_run_directory_travels_as_a_file_and_replaces_an_earlier_one(tmp_path):
    (tmp_path / "a" / "peer-0").mkdir(parents=True)
    (tmp_path / "a" / "peer-0" / "history.jsonl").write_text("line\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "old").write_text("")
    unpack(packed(tmp_path / "a"), tmp_path / "b")
    assert [path.relative_to(tmp_path / "b").as_posix() for path in sorted((tmp_path / "b").rglob("*"))] == [
        "peer-0",
        "peer-0/history.jsonl",
    ]


def test_unfinished_runs_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_runs, "scratch", lambda: tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    prefix = unfinished_prefix()
    assert prefix.endswith(f"-{os.getpid()}-")
    own, other = tmp_path / f"{prefix}x", tmp_path / f"{prefix.replace(str(os.getpid()), str(ended.pid))}x"
    own.mkdir()
    other.mkdir()
    unfinished_prefix()
    assert list(tmp_path.iterdir()) == [own]


def test_a_board_gives_each_news_once():
    board = Board()
    board.set("a", Rounds(1, 2, 0.5))
    board.set("a", Rounds(1, 3, None))
    assert (board.read(), board.read()) == ({"a": Rounds(1, 3, None)}, {})

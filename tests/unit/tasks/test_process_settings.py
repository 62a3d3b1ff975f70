"""A task may change the working directory and other settings of the process: results stay in place, and the same everywhere."""

from __future__ import annotations

import logging
import os
import signal
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import peer
from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.learning.check import check_task
from peer.learning.learner import TorchLearner
from peer.runtime.assembly import LocalSettings
from peer.store.system import StoppedBySignal, raise_on_signal
from peer.tasks.loading import load_task
from peer.tasks.process_settings import users_settings
from peer.tasks.user_code import shard_of, user_code

TASK = """
import logging, os, random, signal, sys
import numpy as np, torch
from torch import nn
from peer.tasks import Shard, Task
{at_import}

class Mine(Task):
    classes = 2
    def make_model(self):
        {in_model}
        return nn.Linear(3, 2).float()
    def load_shard(self, peer_id):
        {in_loader}
        x = np.random.default_rng(peer_id).normal(size=(30, 3))
        y = (x[:, 0] > 0).astype(int)
        return Shard(train_x=x[:20], train_y=y[:20], test_x=x[20:], test_y=y[20:])
    def metric(self, outputs, targets):
        {in_metric}
        return super().metric(outputs, targets)

task = Mine()
"""


def written(path: Path, **code: str) -> str:
    """Write a task file whose methods begin with some code, and return its name for a manifest."""
    parts = {name: "pass" for name in ("at_import", "in_model", "in_loader", "in_metric")} | code
    path.write_text(textwrap.dedent(TASK).format(**parts))
    return f"{path}:task"


def settings() -> dict[str, object]:
    """Return what a task may change and this program relies on."""
    mask = os.umask(0o022)
    os.umask(mask)
    return {
        "directory": os.getcwd(), "umask": mask, "type": torch.get_default_dtype(), "threads": torch.get_num_threads(),
        "numpy": np.geterr(), "gradients": torch.is_grad_enabled(), "device": torch.get_default_device(),
        "handler": signal.getsignal(signal.SIGTERM), "disabled": logging.root.manager.disable, "argv": [*sys.argv],
        "peer": logging.getLogger("peer").disabled,
    }  # fmt: skip


CHANGES = {
    "directory": "os.chdir('/')",
    "umask": "os.umask(0o777)",
    "type": "torch.set_default_dtype(torch.float64)",
    "threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "numpy": "np.seterr(all='raise')",
    "gradients": "torch.set_grad_enabled(False)",
    "device": "torch.set_default_device('meta')",
    "handler": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "disabled": "logging.disable(logging.CRITICAL)",
    "argv": "sys.argv[:] = ['mine']",
    "peer": "logging.getLogger('peer').disabled = True",
}


@pytest.mark.parametrize("where", ["at_import", "in_loader"])
@pytest.mark.parametrize("what", CHANGES)
def test_what_a_task_changes_is_restored_when_its_code_has_ended(tmp_path, monkeypatch, what, where):
    monkeypatch.chdir(tmp_path)
    before = settings()
    name = written(tmp_path / f"{what}_{where}.py", **{where: CHANGES[what]})
    shard_of(load_task(Manifest(task=name), 2), 0)
    assert settings() == before


def test_a_task_finds_again_the_directory_and_type_that_it_has_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "here").touch()
    name = written(
        tmp_path / "moved.py",
        at_import="os.chdir('data'); torch.set_default_dtype(torch.float64)",
        in_loader="assert os.path.exists('here') and torch.get_default_dtype() == torch.float64",
        in_metric="assert os.path.exists('here')",
    )
    task = load_task(Manifest(task=name), 2)
    learner = TorchLearner(task, shard_of(task, 0))
    learner.evaluate(learner.initial_model(0))
    assert Path.cwd() == tmp_path


def test_a_directory_that_the_program_itself_has_chosen_meanwhile_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with users_settings():
        os.chdir("/")
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path / "later")
    with users_settings():
        assert Path.cwd() == tmp_path / "later"


@pytest.mark.parametrize("where", ["in_loader", "in_model", "in_metric", "at_import"])
def test_a_simulation_writes_where_it_was_told_to(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    written(tmp_path / f"moves_{where}.py", **{where: f"os.chdir({str(elsewhere)!r})"})
    graph = peer.Graph.make("line", peers=2, run={"rounds": 2, "algorithm": "dfedavg"})
    run = peer.simulate(graph, f"moves_{where}.py:task", out="out", progress=False)
    os.chdir(elsewhere)
    assert run.metrics["state"] == "complete"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["graph.json", "peer-0", "peer-1"]
    assert [*elsewhere.iterdir()] == []
    assert run.personalized(1).training is False


def test_the_paths_of_a_peer_are_fixed_at_its_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = LocalSettings.at(Path("state"), data_root=Path("data"), certs=Path("certs"))
    monkeypatch.chdir("/")
    assert (settings.state_dir, settings.path("data_root"), settings.path("certs")) == tuple(
        tmp_path / name for name in ("state", "data", "certs")
    )


@pytest.mark.parametrize(
    "code", ["np.random.random(3)", "[random.random() for _ in range(3)]", "torch.rand(3).tolist()"]
)
def test_a_loader_that_draws_gets_the_same_numbers_in_every_call(tmp_path, code):
    name = written(tmp_path / f"draws_{abs(hash(code))}.py", in_loader=f"self.drawn = list({code})")
    task = load_task(Manifest(task=name), 2)
    drawn = []
    for peer_id in (0, 1, 0):
        np.random.random(5)  # what else the process does
        torch.rand(5)
        shard_of(task, peer_id)
        drawn.append(task.drawn)
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_loader_that_draws_does_not_disturb_other_random_numbers(tmp_path):
    task = load_task(Manifest(task=written(tmp_path / "seeds.py", in_loader="torch.manual_seed(0); torch.rand(3)")), 2)
    torch.manual_seed(5)
    undisturbed = torch.rand(2)
    torch.manual_seed(5)
    shard_of(task, 0)
    assert torch.equal(torch.rand(2), undisturbed)


def test_threads_that_a_task_sets_have_no_effect_and_a_line_says_so(tmp_path, caplog):
    name = written(tmp_path / "threads.py", in_loader="torch.set_num_threads(7)")
    with caplog.at_level("WARNING", "peer"):
        shard_of(load_task(Manifest(task=name), 2), 0)
    assert "the task sets 7 as the number of threads; give it with --threads" in caplog.text


@pytest.mark.parametrize("where", ["at_import", "in_loader", "in_model", "in_metric"])
def test_a_task_that_exits_is_an_error_with_its_line(tmp_path, where):
    name = written(tmp_path / f"exits_{where}.py", **{where: "sys.exit(0)"})
    with pytest.raises(TaskError, match=f"SystemExit: 0 .*exits_{where}.py, line"):
        check_task(load_task(Manifest(task=name), 2))


def test_results_that_are_kept_nowhere_are_read_from_another_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "kept_nowhere.py")
    graph = peer.Graph.make("line", peers=2, run={"rounds": 1, "algorithm": "dfedavg"})
    run = peer.simulate(graph, "kept_nowhere.py:task", progress=False)
    monkeypatch.chdir("/")
    assert run.personalized(0).training is False


def test_a_signal_passes_through_code_of_a_user():
    with pytest.raises(StoppedBySignal), user_code("load_shard(0)"):
        raise_on_signal(signal.SIGTERM, None)


def test_an_exit_at_ctrl_c_in_code_of_a_user_stays_ctrl_c():
    with pytest.raises(KeyboardInterrupt), user_code("train"):  # as in a Trainer of Lightning
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)


def test_of_two_threads_in_code_of_a_user_the_last_one_restores_the_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with users_settings():
            entered.set()
            left.wait()

    thread = threading.Thread(target=other)
    with users_settings(new=True):
        thread.start()
        entered.wait()
        os.chdir("/")
    left.set()
    thread.join()
    assert Path.cwd() == tmp_path

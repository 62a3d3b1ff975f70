"""`peer init`: each template is a folder that runs at once, and whose own test passes only after training."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app
from peer.ops.starts import STARTS, Template

FILES = {"README.md", "data", "deploy", "docker-compose.yml", "graph.json", "task.py", "test_task.py"}


def invoke(*words: object) -> str:
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False).stdout


@pytest.mark.parametrize("template", get_args(Template))
def test_a_new_project_runs_and_its_own_test_passes(
    tmp_path: Path, template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    assert f"cd {folder} && peer testbed graph.json" in invoke("init", folder, "--template", template)
    assert {path.name for path in folder.iterdir()} == FILES
    assert len((folder / "README.md").read_text().splitlines()) <= 10
    monkeypatch.chdir(folder)
    assert "decoded bit for bit" in invoke("task", "check", "task.py:task")

    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path("test_task.py")["test_the_sites_learn"]()
    del sys.modules["task"]

    untrained = peer.Graph.make("complete", peers=4, run={"algorithm": "local", "rounds": 1, "learning_rate": 1e-9})
    metric = peer.simulate(untrained, "task.py:task", progress=False).metrics["metric_mean"]
    assert not eval(STARTS[template].learned, {"metric": metric})


def test_the_compose_file_runs_the_task_on_the_data(tmp_path: Path) -> None:
    invoke("init", tmp_path / "mine")
    services = yaml.safe_load((tmp_path / "mine" / "docker-compose.yml").read_text())["services"]
    mounts = [each for each in services["peer-3"]["volumes"] if isinstance(each, dict)]
    assert [(each["source"], each["target"]) for each in mounts] == [("./data", "/task/data")]
    assert (tmp_path / "mine" / "deploy" / "task" / "task.py").is_file()


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["init", str(tmp_path)]).exception
    assert isinstance(error, UsageError)
    assert str(error).endswith("expected a new folder, got one that exists. Name another folder, or remove this one.")
    assert list(tmp_path.iterdir()) == []


def test_the_package_that_a_template_needs_is_asked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator_free_bootstrap.extras.find_spec", lambda name: None)
    error = CliRunner().invoke(app, ["init", str(tmp_path / "mine"), "--template", "images"]).exception
    assert str(error).startswith("--template images: package PIL is not installed") and "[vision]" in str(error)
    assert not (tmp_path / "mine").exists()

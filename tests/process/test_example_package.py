"""Goal: an installed package adds an algorithm, a task, a split and a model by entry points, for the command line and for Python.

Method: pip installs examples/package into a folder of the test; programs with that folder on their path use their names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.process


def run(*words: object, path: Path, cwd: Path) -> str:
    environment = os.environ | {"PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    found = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "examples" / "package", home / "source")  # the build writes beside its source
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", home / "installed")
    run("-m", "pip", "install", *options, home / "source", path=home, cwd=home)
    return home / "installed"


@pytest.mark.slow
def test_all_are_listed(installed: Path, tmp_path: Path) -> None:
    assert run("-m", "peer", "list", "algorithms", "gossip", path=installed, cwd=tmp_path).startswith(
        "gossip: Train one"
    )
    assert "moons: " in run("-m", "peer", "list", "tasks", path=installed, cwd=tmp_path)
    split = run("-m", "peer", "list", "splits", "odd_even", path=installed, cwd=tmp_path)
    assert split.startswith("odd_even: Deal even labels") and "run.split_options.shared (default 0.0): " in split
    model = run("-m", "peer", "list", "models", "bottleneck", path=installed, cwd=tmp_path)
    assert model.startswith("bottleneck: One narrow") and "run.model_options.width (default 8): " in model


@pytest.mark.slow
def test_a_simulation_uses_the_split_and_the_model(installed: Path, tmp_path: Path) -> None:
    program = """
import peer
run = {"split": "odd_even", "model": "bottleneck", "model_options": {"width": 4}, "rounds": 1}
found = peer.simulate(peer.Graph.make("ring", peers=4, run=run), out="out", progress=False)
print([row["true_cluster"] for row in found.metrics["peers"]], found.models[0]["cluster-0"]["1.weight"].shape)
"""
    assert run("-c", program, path=installed, cwd=tmp_path) == "[0, 1, 0, 1] (4, 64)\n"


@pytest.mark.slow
def test_a_testbed_runs_them(installed: Path, tmp_path: Path) -> None:
    settings = ("run.algorithm=gossip", "run.rounds=3", "run.task_options.noise=0.05", "run.start.wait_for=all")
    options = [word for setting in settings for word in ("--set", setting)]
    shape = ("--peers", 3, "--kind", "complete", "--set", "run.task=moons")
    text = run("-m", "peer", "testbed", *shape, *options, "--insecure", "--json", path=installed, cwd=tmp_path)
    report = json.loads(text)
    assert (report["state"], report["algorithm"], report["task"]) == ("complete", "gossip", "moons")
    assert report["models_sent"] == 3 * 3  # each of 3 peers to one neighbor in each of 3 rounds


def test_a_testbed_runs_the_algorithm_of_the_file_without_the_package(tmp_path: Path) -> None:
    """Each peer gets the path, reads the file and says so to its neighbors."""
    shutil.copy(ROOT / "examples" / "package" / "coordinator_free_example" / "gossip.py", tmp_path)
    settings = ("run.algorithm=gossip.py:Gossip", "run.rounds=3", "run.start.wait_for=all")
    options = [word for setting in settings for word in ("--set", setting)]
    shape = ("--peers", 3, "--kind", "complete")
    text = run("-m", "peer", "testbed", *shape, *options, "--insecure", "--json", path=tmp_path, cwd=tmp_path)
    report = json.loads(text)
    assert (report["state"], report["algorithm"], report["models_sent"]) == ("complete", "gossip.py:Gossip", 9)


@pytest.mark.slow
def test_python_runs_them(installed: Path, tmp_path: Path) -> None:
    program = """
import peer
graph = peer.Graph.make("complete", peers=4, run={"algorithm": "gossip", "task": "moons", "rounds": 2})
print(peer.simulate(graph, progress=False).metrics["models_sent"])
"""
    assert run("-c", program, path=installed, cwd=tmp_path) == "8\n"


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        (
            "dfca",
            "from peer import Algorithm\nclass A(Algorithm):\n    name = 'dfca'\n",
            "expected a name that no other algorithm has, got 'dfca'",
        ),
        pytest.param("mine", "1 / 0\n", "cannot be imported: ZeroDivisionError", marks=pytest.mark.slow),
        pytest.param("mine", "A = 3\n", "expected a subclass of peer.Algorithm, got an int", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_algorithm_of_a_package_is_named(tmp_path: Path, name: str, code: str, words: str) -> None:
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (tmp_path / "other_algorithm.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[coordinator_free.algorithms]\n{name} = other_algorithm:A\n")
    program = "import peer\ntry:\n    peer.Graph.make('ring', peers=4)\nexcept Exception as error:\n    print(error)"
    text = run("-c", program, path=tmp_path, cwd=tmp_path)
    assert text.startswith(f"algorithm '{name}' of the package other: ") and words in text

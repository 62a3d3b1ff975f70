"""``run.algorithm = "path/to/file.py:Class"``: loaded as a task file is, in every face, and compared by neighbors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import ConfigError, UsageError
from coordinator_free_bootstrap.meaning import compare
from peer.algorithms.registry import algorithm_for, algorithm_named
from peer.cli.main import app
from peer.zoo import algorithms as zoo

HALF = """
import os
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from peer import Algorithm, AlgorithmState, Offer, Select, generator

COUNT = [*globals().get("COUNT", []), 1]


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    share: float = Field(0.5, gt=0, le=1, description="weight of the own model")


class Half(Algorithm):
    Options: ClassVar[type[BaseModel]] = Options
    clustered = False

    def own_weight(self, folded_weight):
        return self.options.share * (folded_weight or 1.0)


class Named(Half):
    name = "named"
    packages = ("a_package_that_is_nowhere",)


text = "not a class"
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "half.py").write_text(HALF)
    monkeypatch.chdir(tmp_path)
    return "code/half.py"


def graph_with(algorithm, **run):
    return peer.Graph.make("ring", peers=4, run={"algorithm": algorithm, "rounds": 2, **run})


def models_of(run):
    return [array for name in sorted(run.models[2]) for _, array in sorted(run.models[2][name].items())]


def test_a_simulated_run_is_the_one_of_the_class(file):
    """Before: run.algorithm: expected one of dfca, ..., got 'code/half.py:Half'."""
    by_file = peer.simulate(graph_with(f"{file}:Half"), progress=False)
    assert by_file.metrics["algorithm"] == f"{file}:Half"
    assert by_file.metrics["models_folded"] == 16

    class Same(algorithm_named(f"{file}:Half")):
        name = "same_as_half"

    by_class = peer.simulate(graph_with("dfedavg"), algorithm=Same, progress=False)
    assert all(np.array_equal(a, b) for a, b in zip(models_of(by_file), models_of(by_class), strict=True))


def test_a_class_without_a_name_has_that_of_the_class_and_a_file_is_executed_once(file):
    half, named = (algorithm_named(f"{file}:{name}") for name in ("Half", "Named"))
    assert (half.name, named.name) == ("Half", "named")
    assert issubclass(named, half)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("none.py:Half", r"run\.algorithm: expected path/to/file\.py:Class, got no file 'none\.py'"),
        ("{}:Whole", r"expected the name of a class in code/half\.py, such as code/half\.py:Mine, got 'Whole'"),
        ("{}:text", r"code/half\.py:text: expected a subclass of peer\.Algorithm, got a str"),
        ("{}:Options", r"code/half\.py:Options: expected a subclass of peer\.Algorithm, got Options"),
        ("broken.py:Half", r"broken\.py cannot be imported: ZeroDivisionError: .*broken\.py, line 2\)\. Correct"),
    ],
)
def test_what_is_no_algorithm_is_refused_before_the_run(file, tmp_path, value, words):
    (tmp_path / "broken.py").write_text("import peer\n1 / 0\n")
    with pytest.raises(ConfigError, match=words):
        peer.simulate(graph_with(value.format(file)), progress=False)


def test_options_are_checked(file):
    with pytest.raises(ConfigError, match=r"run\.options\.share: expected at most 1, got 2"):
        peer.simulate(graph_with(f"{file}:Half", options={"share": 2}), progress=False)


def test_the_packages_that_it_names_are_required(file):
    graph = graph_with(f"{file}:Named")
    with pytest.raises(UsageError, match=r"package a_package_that_is_nowhere is not installed; .* pip install a_pack"):
        algorithm_for(graph, 0)


def test_a_graph_file_is_made_and_checked_where_the_file_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--peers", "3", "--set", "run.algorithm=elsewhere/mine.py:Mine", "--out", "graph.json"]
    assert CliRunner().invoke(app, ["graph", "make", *words]).exit_code == 0
    done = CliRunner().invoke(app, ["graph", "check", "graph.json", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["algorithm"]) == (0, "elsewhere/mine.py:Mine")


def test_its_options_are_listed(file):
    done = CliRunner().invoke(app, ["graph", "keys", f"{file}:Half"])
    assert "run.options.share = 0.5: weight of the own model\n" in done.stdout


def test_an_unknown_name_mentions_the_form_of_a_file():
    with pytest.raises(ConfigError, match=r"or your class as path/to/file\.py:Class, got"):
        graph_with("dfcaa")


def test_neighbors_with_other_files_are_told(file, tmp_path):
    """As of task files: they train together, and both log the difference."""
    records = []
    for text in (HALF, HALF + "\n# another\n"):
        (tmp_path / f"{len(records)}.py").write_text(text)
        records.append(meaning_with(f"{len(records)}.py:Half"))
    found = compare(*records, "peer 0", "peer 1")
    assert found.refusal is None
    (warning,) = found.warnings
    assert warning.startswith("algorithm files (SHA-256) differ: peer 0 has ")
    assert warning.endswith("; if that is not meant, give both the same algorithm file")


def test_an_algorithm_of_this_project_has_no_file():
    assert "algorithm_file" not in json.loads(meaning_with("dfca"))


def meaning_with(algorithm):
    """Return the record that a peer with this algorithm sends."""
    from peer.host.build import build_host
    from peer.learning.learner import TorchLearner
    from peer.tasks.loading import load_task
    from peer.tasks.training_data import training_data

    manifest = (graph := graph_with(algorithm)).manifest
    task = load_task(manifest, 4)
    learner = TorchLearner(task, training_data(task, 0, manifest), batch_size=manifest.batch_size)
    return build_host(0, graph, learner, 1, clock=lambda: 0.0).hello_to(1).meaning


def test_an_algorithm_of_the_zoo_is_the_same_as_a_file_that_imports_peer_alone(tmp_path, monkeypatch):
    """Ditto and its base in one file give the same models, bit for bit."""
    folder = Path(zoo.__file__).parent
    text = "".join((folder / name).read_text() for name in ("personal.py", "ditto.py"))
    text = re.sub(r"^from __future__ .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^from peer\.zoo.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^from (peer\.|coordinator_free)\S* import", "from peer import", text, flags=re.MULTILINE)
    text = text.replace('name = "ditto"', 'name = "own_ditto"')
    (tmp_path / "own.py").write_text("from __future__ import annotations\n" + text)
    monkeypatch.chdir(tmp_path)
    options = {"strength": 0.5}
    own, known = (graph_with(name, options=options) for name in ("own.py:Ditto", "ditto"))
    mine, theirs = (models_of(peer.simulate(graph, progress=False)) for graph in (own, known))
    assert [model.tobytes() for model in mine] == [model.tobytes() for model in theirs]
    assert len(mine) > 1

"""`peer list` and `peer --version`: what a user can name, from the registries, with examples that the program accepts."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import apply_settings, make_graph, parse_manifest
from coordinator_free_bootstrap.errors import PeerError, UsageError
from peer.algorithms.registry import algorithm_named, algorithms
from peer.bed.chaos.faults import FAULTS
from peer.bed.chaos.script import parse_event
from peer.cli.main import app
from peer.core.encoding import ENCODINGS
from peer.core.messages import WIRE_VERSION
from peer.tasks.loading import check_names
from peer.zoo.tasks.datasets import DATASETS
from peer.zoo.tasks.models import MODELS
from peer.zoo.tasks.splits import SPLITS
from tests.unit.docs.test_documents import complaint

REGISTRIES = {
    "tasks": DATASETS,
    "splits": [*SPLITS, "shard"],
    "models": [*MODELS, "torchvision:NAME"],
    "algorithms": algorithms(),
    "encodings": ENCODINGS,
    "faults": FAULTS,
}


def peer(*words):
    """Run a verb and return its standard output; errors are raised."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def entries(what, *name):
    return json.loads(peer("list", what, *name, "--json"))[what]


@pytest.mark.parametrize("what", REGISTRIES)
def test_every_entry_of_the_registry_is_listed_with_a_sentence_and_an_example(what):
    found = entries(what)
    assert {entry["name"] for entry in found} >= set(REGISTRIES[what])
    lines = peer("list", what).splitlines()
    for entry in found:
        assert f"{entry['name']}: {entry['about']}" in lines
        assert f"    {entry['example']}" in lines
        assert len(entry["about"]) > 10


@pytest.mark.parametrize("what", REGISTRIES)
def test_every_example_is_a_command_that_the_program_accepts(what):
    for entry in entries(what):
        for command in entry["example"].split("; "):
            assert complaint(command) is None, command
            words = shlex.split(command)
            settings = [word for before, word in pairwise(words) if before == "--set" and word.startswith("run.")]
            for option in ("task", "split"):
                if f"--{option}" in words:
                    settings.append(f"run.{option}={words[words.index(f'--{option}') + 1]}")
            manifest = parse_manifest(apply_settings({}, settings), "example")
            check_names(manifest)
            graph = make_graph("ring", 3, manifest=manifest)
            algorithm_named(manifest.algorithm)(manifest, 0, graph)
            if "--now" in words:
                assert parse_event(words[-1]).do == entry["name"]


@pytest.mark.parametrize("split", [name for name, each in SPLITS.items() if not each.needs and name != "by_column"])
def test_the_examples_of_splits_of_the_default_task_run(split):
    words = shlex.split(entries("splits", split)[0]["example"])
    assert len(json.loads(peer(*words[1:], "--json"))["peers"]) == 8


def test_options_of_an_algorithm_and_of_a_split_are_listed():
    assert "run.options.warmup_rounds (default 0): W: number of first rounds" in peer("list", "algorithms", "dfca")
    shown = peer("list", "splits", "dirichlet")
    assert "run.split_options.alpha (default 0.1): " in shown
    assert "run.split_options.samples_per_peer (default 0): " in shown


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match="did you mean dirichlet"):
        peer("list", "splits", "dirichle")


def test_version_names_program_wire_python_and_torch():
    shown = peer("--version")
    for word in ("peer 0.1.0", f"wire version {WIRE_VERSION}", "Python 3.", "torch 2."):
        assert word in shown


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.task=digts", "did you mean digits"),
        ("run.split=rotated_sof", "did you mean rotated_soft"),
        ("run.model=mlpp", "did you mean mlp"),
        ("run.model=torchvision:resnet19", "did you mean torchvision:resnet1"),
        ("run.algorithm=fedspdd", "did you mean fedspd"),
        ("run.task_options.size=3", "task 'digits'"),
        ("run.split_options.alpha=3", "split 'rotated_hard', got an unknown option .known: k, rotations"),
        (
            "run.model_options.hiden=3",
            "model_options.hiden: expected an option of model 'mlp', got .*did you mean hidden",
        ),
    ],
)
def test_graph_make_and_check_refuse_unknown_names_and_options(tmp_path, setting, words):
    """Before, `peer graph check` called a graph file with an unknown task, split or model valid."""
    path = tmp_path / "graph.json"
    with pytest.raises(PeerError, match=words):
        peer("graph", "make", "--peers", "4", "--set", setting, "--out", str(path))
    assert not path.exists()
    peer("graph", "make", "--peers", "4", "--out", str(path))
    graph = json.loads(path.read_text())
    graph["graph"]["run"] = apply_settings(graph["graph"]["run"], [setting])
    path.write_text(json.dumps(graph))
    with pytest.raises(PeerError, match=words):
        peer("graph", "check", str(path))


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_graph_keys_are_never_truncated(monkeypatch, columns):
    """Before, a table of 80 columns cut keys and defaults, with an ellipsis."""
    monkeypatch.setenv("COLUMNS", columns)
    shown = peer("graph", "keys")
    assert "…" not in shown
    assert "run.timeouts.suspicion_s = 5.0: silence that marks a neighbor dead; sets the heartbeat" in shown
    assert "run.limits.kept_bytes_max = 1073741824: " in shown

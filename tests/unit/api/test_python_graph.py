"""`peer.Graph` gives what the command line gives: the same file, the same errors."""

import json
import re

import pytest
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap import load_graph
from coordinator_free_bootstrap.errors import ConfigError, GraphError, TaskError, UsageError
from peer.cli.main import app


def cli(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, []),
        ({"kind": "ring", "peers": 5, "run": {"rounds": 3}}, ["--kind", "ring", "--peers", 5, "--set", "run.rounds=3"]),
        (
            {"degree": 3, "seed": 4, "run": {"options": {"warmup_rounds": 2}}},
            ["--kind", "erdos-renyi:degree=3,seed=4", "--set", "run.options.warmup_rounds=2"],
        ),
        (
            {"kind": "geometric", "radius": 0.7, "address_template": "127.0.0.1:{id+99}"},
            ["--kind", "geometric:radius=0.7", "--address-template", "127.0.0.1:{id+99}"],
        ),
    ],
)
def test_make_and_save_give_the_file_of_the_command_line(tmp_path, arguments, options):
    peer.Graph.make(**arguments).save(tmp_path / "python.json")
    assert cli("graph", "make", *options, "--out", tmp_path / "cli.json").exit_code == 0
    assert (tmp_path / "python.json").read_bytes() == (tmp_path / "cli.json").read_bytes()


def test_check_gives_the_facts_of_the_command_line(tmp_path):
    graph = peer.Graph.make("star", peers=5)
    graph.save(tmp_path / "g.json")
    found = json.loads(cli("graph", "check", tmp_path / "g.json", "--json").stdout)
    assert found == {"file": str(tmp_path / "g.json"), "valid": True, **graph.check()}


def test_load_gives_the_graph_that_was_saved(tmp_path):
    graph = peer.Graph.make("torus", peers=6)
    graph.save(tmp_path / "g.json")
    assert peer.Graph.load(tmp_path / "g.json") == graph
    assert peer.Graph.of(load_graph(tmp_path / "g.json")) == graph


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [
        ({"rounds": 0}, ConfigError, "run.rounds: expected at least 1, got 0"),
        ({"timeouts": {"suspicion": 3}}, ConfigError, "did you mean suspicion_s"),
        ({"algorithm": "dfcaa"}, ConfigError, "did you mean dfca"),
        ({"options": {"warmup": 1}}, ConfigError, "warmup"),
        ({"task": "digit"}, TaskError, "did you mean digits"),
        (
            {"optimizer": "adam", "momentum": 0.5},
            UsageError,
            "run.momentum: expected no value",
        ),
    ],
)
def test_a_wrong_run_is_refused_with_the_sentence_of_the_command_line(run, error, words):
    with pytest.raises(error, match=words):
        peer.Graph.make("ring", peers=4, run=run)


def test_a_wrong_shape_is_refused():
    with pytest.raises(GraphError, match=r"^degree=: expected no value \(no effect, because the kind is ring\), got 3"):
        peer.Graph.make("ring", peers=4, degree=3)


@pytest.mark.parametrize(
    ("kind", "peers", "run", "words"),
    [
        ("complete", 4, {}, "off: .* set run.screening.trimmed_mean=0.25, .* or run.screening.clip=1 "),
        ("ring", 4, {}, "off: .* set run.screening.trimmed_mean=0.34, "),
        ("star", 4, {}, "off: .* set run.screening.clip=1 "),  # two values: nothing is left when both are trimmed
        ("ring", 4, {"screening": {"clip": 1.0}}, "clip 1"),
        ("ring", 4, {"algorithm": "local"}, "off"),
    ],
)
def test_check_says_what_to_set_where_neighbors_are_not_trusted(kind, peers, run, words):
    screening = peer.Graph.make(kind, peers=peers, run=run).check()["screening"]
    assert re.match(words, screening), screening


def test_check_compares_all_edges_with_one_edge_a_round():
    facts = peer.Graph.make("hypercube", peers=8).check()
    assert (facts["rounds_to_agree"], facts["models_to_agree"]) == (7, 21.0)
    assert (facts["rounds_to_agree_on_one_edge"], facts["models_to_agree_on_one_edge"]) == (3, 3.0)

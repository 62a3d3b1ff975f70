"""`peer graph make | check | show`: results on stdout, messages on stderr, errors as PeerError."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import load_graph, make_graph, parse_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import ConfigError, GraphError, UsageError, names_for
from peer.cli.graph import app


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_make_writes_a_file_with_settings(tmp_path):
    out = tmp_path / "g.json"
    command = (
        "make",
        "--kind",
        "erdos-renyi:p=0.5,seed=2",
        "--peers",
        8,
        "--address-template",
        "127.0.0.1:{id+9000}",
        "--out",
        out,
    )
    result = invoke(*command, "--set", "run.clusters=4", "--set", "run.options.warmup_rounds=8")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "13 edges" in result.stderr
    graph = load_graph(out)
    assert graph.edges == make_graph("erdos-renyi", 8, p=0.5, seed=2).edges
    assert graph.node(7).address == "127.0.0.1:9007"
    assert (graph.manifest.clusters, graph.manifest.options) == (4, {"warmup_rounds": 8})


def test_make_without_out_prints_the_graph_alone():
    result = invoke("make", "--kind", "ring", "--peers", 3, "--address-template", "peer-{id}:7400")
    assert parse_graph(result.stdout).node(2).address == "peer-2:7400"


def test_check_reports_facts(tmp_path):
    graph = make_graph("torus", 12)
    save_graph(graph, tmp_path / "g.json")
    facts = json.loads(invoke("check", tmp_path / "g.json", "--json").stdout)
    assert facts["valid"] is True
    assert (facts["peers"], facts["edges"], facts["degree_mean"], facts["diameter_at_most"]) == (12, 24, 4.0, 3)
    assert facts["graph_digest"] == graph.digest
    assert graph.digest[:20] in invoke("check", tmp_path / "g.json").stdout


def test_show_writes_a_drawing_and_lists_peers(tmp_path):
    save_graph(make_graph("star", 5), tmp_path / "g.json")
    result = invoke("show", tmp_path / "g.json")
    assert "127.0.0.1:7404" in result.stdout
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads(invoke("show", tmp_path / "g.json", "--out", tmp_path / "x.png", "--json").stdout)["peers"]
    assert rows[0] == {"peer_id": 0, "address": "127.0.0.1:7400", "neighbors": [1, 2, 3, 4]}
    assert (tmp_path / "x.png").exists()


def test_markup_in_a_name_is_printed_literally(tmp_path):
    text = json.dumps({"graph": {"name": "[/x] $"}, "nodes": [{"id": 0, "address": "a:1"}], "edges": []})
    (tmp_path / "g.json").write_text(text)
    assert "[/x] $" in invoke("show", tmp_path / "g.json").stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("check", "none.json"), GraphError),
        (("make", "--kind", "torus", "--peers", 7), GraphError),
        (("make", "--kind", "ring", "--set", "run.rounds=0"), ConfigError),
        (("make", "--kind", "ring", "--set", "rounds=1"), ConfigError),
    ],
)
def test_errors_are_raised_to_the_caller(arguments, error):
    with pytest.raises(error):
        invoke(*arguments)


def test_a_base_port_stands_in_the_addresses(tmp_path):
    invoke("make", "--kind", "ring", "--peers", 3, "--base-port", 9000, "--out", tmp_path / "g.json")
    graph = load_graph(tmp_path / "g.json")
    assert [node.address for node in graph.nodes] == [f"127.0.0.1:{9000 + i}" for i in range(3)]
    shifted = json.loads(invoke("make", "--base-port", 9000, "--address-template", "h:{port+5}").stdout)
    assert shifted["nodes"][1]["address"] == "h:9006"
    with (
        names_for("command line"),
        pytest.raises(
            UsageError, match=r"--base-port: expected no value .*--address-template has no \{port\}.*got 9000"
        ),
    ):
        invoke("make", "--base-port", 9000, "--address-template", "peer-{id}:7400")


def test_a_drawing_that_cannot_be_written_is_a_usage_error(tmp_path):
    save_graph(make_graph("ring", 3), tmp_path / "g.json")
    for out in (tmp_path / "none" / "g.png", tmp_path / "g.xyz"):
        with pytest.raises(UsageError, match=r"--out: expected a \.png in a writable folder"):
            invoke("show", tmp_path / "g.json", "--out", out)


@pytest.mark.parametrize("verb", ["make", "check", "show"])
def test_every_verb_has_help_with_an_example(verb):
    assert f"peer graph {verb}" in invoke(verb, "--help").stdout


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cube", "'cube'"),
        ("ring:degree=3", "--kind degree: expected no value .*the kind is ring.*, got 3"),
        ("erdos-renyi:q=3", "expected KIND:KEY=VALUE.* got 'erdos-renyi:q=3'"),
        ("erdos-renyi:p=0.5,p=0.6", "each once"),
        ("erdos-renyi:", "expected KIND:KEY=VALUE"),
        ("expander:degree", "--kind degree: expected a number, got ''"),
        ("ring:seed=1.5", "--kind seed: expected an integer, got '1.5'"),
        ("geometric:radius=nan", "radius: expected .*, got nan"),
    ],
)
def test_a_wrong_kind_or_parameter_of_it_is_refused(kind, words):
    with pytest.raises(GraphError, match=words):
        invoke("make", "--kind", kind)


def test_check_warns_of_limits_that_a_model_cannot_cross(tmp_path):
    """The model of the bundled digits has about 20 kB; a hidden layer of 6,000 makes it 1.8 MB, or 184 s at 10 kB/s."""
    run = {"model_options": {"hidden": 6000}, "timeouts": {"round_deadline_s": 100.0}}
    graph = make_graph("line", 2, manifest=parse_manifest(run, "test"))
    for limit, warned in ((10_000, True), (100_000, False)):
        nodes = (replace(graph.nodes[0], upload_limit=limit), graph.nodes[1])
        save_graph(replace(graph, nodes=nodes), tmp_path / "g.json")
        result = invoke("check", tmp_path / "g.json")
        assert result.exit_code == 0
        assert ("warning" in result.stderr and "at its limits" in result.stderr) is warned

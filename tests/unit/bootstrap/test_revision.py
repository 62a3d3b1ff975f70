"""The next graph file: what it names, what it refuses, and what is said about a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import (
    Graph,
    dump_graph,
    load_graph,
    make_graph,
    parse_graph,
    parse_manifest,
    save_graph,
)
from coordinator_free_bootstrap.errors import GraphError, UsageError
from coordinator_free_bootstrap.revision import INCOMPARABLE, changes, next_graph, with_changes
from peer.cli.main import app
from peer.identity.files import keygen


def ring(**run: Any) -> Graph:
    return make_graph("ring", 4, manifest=parse_manifest(run, "test"))


def with_run(graph: Graph, **run: Any) -> Graph:
    return replace(graph, manifest=parse_manifest({**graph.manifest.model_dump(), **run}, "test"))


def test_each_file_names_all_before_it_and_survives_a_file(tmp_path):
    first = ring()
    second = next_graph(first, with_run(first, rounds=900))
    third = next_graph(second, with_changes(second, remove=[3], add_edges=[(0, 2)]))
    assert third.continues == (second.run_digest, first.run_digest)
    assert parse_graph(dump_graph(third)) == third
    assert "continues" not in dump_graph(first)


def test_addresses_and_keys_are_no_new_revision():
    first = ring()
    moved = next_graph(first, with_changes(first, move=[(1, "10.0.0.9:7400")]))
    assert (moved.run_digest, moved.continues) == (first.run_digest, ())
    assert list(changes(first, moved)) == [
        f"peer 1: address was {first.node(1).address}, is now 10.0.0.9:7400",
        "the run continues as it is; 0, 1, 2 take the new file when they can: by SIGHUP, peer run --watch-graph, or a restart",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("algorithm", "dpsgd"),
            ("clusters", 3),
            ("model", "mlr"),
            ("seed", 5),
            ("encoding", "int8"),
            ("task", "linear"),
        ),
        *(("private_parameters", ["*bias"]), ("optimizer", "adam"), ("split", "iid")),
        ("privacy", {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}),
    ],
)
def test_what_makes_models_incomparable_needs_a_new_run(key, value):
    first = ring(algorithm="dfedavg", split="rotated")
    more = {"split_options": {}} if key in ("split", "task") else {}
    now = with_run(first, **{key: value}, **more)
    with pytest.raises(UsageError, match=rf"run\.{key}.*: expected the present value.*--restart-training"):
        next_graph(first, now)
    anew = next_graph(replace(first, continues=("0" * 64,)), now, restart_training=True)
    assert anew.continues == ()
    assert any("models do not stay, since" in said and f"run.{key}" in said for said in changes(first, anew))


def test_the_keys_that_make_models_incomparable_are_keys():
    assert set(INCOMPARABLE) <= set(type(ring().manifest).model_fields)


def test_wrong_changes_name_the_option():
    graph = ring()
    for wrong, match in (
        ({"add": [(2, "h:1")]}, "--add-peer: expected the id of a new peer, got 2"),
        ({"remove": [7]}, r"--remove-peer: expected one of \[0, 1, 2, 3\], got 7"),
        ({"move": [(7, "h:1")]}, "--move: expected one of"),
        ({"remove_edges": [(0, 2)]}, "--remove-edge: expected an edge of the graph, got 0-2"),
        ({"add": [(5, "10.0.0.5:7400")]}, "no path between"),
        ({"remove": [1], "add_edges": [(1, 2)]}, "1"),
    ):
        with pytest.raises(GraphError, match=match):
            with_changes(graph, **wrong)
    with pytest.raises(UsageError, match="expected a change, got none"):
        next_graph(graph, graph)
    with pytest.raises(GraphError, match="continues: expected the SHA-256 of an earlier graph file"):
        replace(graph, continues=("yes",))


def test_a_file_that_peers_would_not_take_yet_says_what_it_lacks(tmp_path):
    """Its new peer has no key although the others have, and it needs the signature that the last one had."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    save_graph(ring(), first)
    peers, owner = [keygen(tmp_path / "certs", "federation", i).certificate for i in range(4)], tmp_path / "owner"
    keys = keygen(owner, "federation", "owner")
    for words in (["pin", str(first), *map(str, peers)], ["sign", str(first), "--key", str(keys.key)]):
        assert CliRunner().invoke(app, ["graph", *words]).exit_code == 0
    words = ["--add-peer", "4=127.0.0.1:7404", "--add-edge", "4-0", "--out", str(second)]
    said = CliRunner().invoke(app, ["graph", "next", str(first), *words]).output
    assert f"peer graph pin {second} peer-4.pem" in said and f"peer graph sign {second} --key KEY" in said


def test_the_commands(tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    save_graph(ring(), first)
    command = ["graph", "next", str(first), "--rounds", "+5", "--add-edge", "0-2", "--out", str(second)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert load_graph(second).manifest.rounds == load_graph(first).manifest.rounds + 5
    told = CliRunner().invoke(app, ["graph", "diff", str(first), str(second)]).output
    assert "edge 0-2 comes" in told and "their models and rounds stay" in told
    other = CliRunner().invoke(app, ["graph", "diff", str(second), str(first)]).output
    assert "the second file does not name the first" in other
    assert CliRunner().invoke(app, ["graph", "diff", str(first), str(first)]).output == "nothing differs\n"
    assert "before you copy it" not in done.output
    for words in (["--add-peer", "5"], ["--add-edge", "0+2"], ["--rounds", "-5"]):
        wrong = CliRunner().invoke(app, ["graph", "next", str(first), *words, "--out", str(second)])
        assert wrong.exit_code != 0

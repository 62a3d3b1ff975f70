"""`peer graph make` does not write a graph file that cannot run, or replace an existing one."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import load_graph
from coordinator_free_bootstrap.errors import ConfigError, GraphError, UsageError
from peer.cli.graph import app


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_an_existing_file_is_not_replaced(tmp_path):
    path = tmp_path / "g.json"
    call("make", "--peers", 3, "--out", path)
    with pytest.raises(UsageError, match="delete it, or name another"):
        call("make", "--peers", 4, "--out", path)
    assert len(load_graph(path).ids) == 3


@pytest.mark.parametrize("setting", ["run.algorithm=dfedav", "run.options.warmup_round=3"])
def test_an_unknown_algorithm_or_option_is_refused(tmp_path, setting):
    path = tmp_path / "g.json"
    with pytest.raises(ConfigError, match=setting.partition("=")[0].replace(".", r"\.")):
        call("make", "--kind", "ring", "--peers", 3, "--set", setting, "--out", path)
    assert not path.exists()


def test_making_a_graph_points_to_the_page_on_choosing_an_algorithm(tmp_path):
    page = Path(__file__).parents[3] / "docs" / "choosing.md"
    made = call("make", "--peers", 3, "--set", "run.algorithm=ditto", "--out", tmp_path / "g.json")
    for words in (made.stderr, call("make", "--help").stdout):
        assert "docs/choosing.md" in words
    assert "algorithm ditto" in made.stderr and made.stdout == ""
    assert page.is_file()


def test_manifest_keys_are_listed_with_those_of_the_algorithm():
    shown = call("keys", "dfca").stdout
    for key in ("run.rounds", "run.timeouts.suspicion_s", "run.options.warmup_rounds"):
        assert key in shown


@pytest.mark.parametrize(
    ("template", "first"),
    [
        ("h{id}:7400", "h0:7400"),
        ("h{id+1}:7400", "h1:7400"),
        ("h:{port}", "h:7400"),
        ("node.a.example:{id+30400}", "node.a.example:30400"),
        ("h{id+0}:{port-400}", "h0:7000"),
        ("10.0.{id+3}.{id+17}:{port+10}", "10.0.3.17:7410"),
    ],
)
def test_addresses_follow_the_template_with_any_number_added_or_taken_off(tmp_path, template, first):
    path = tmp_path / "g.json"
    call("make", "--peers", 3, "--address-template", template, "--out", path)
    assert load_graph(path).node(0).address == first


def test_an_unknown_placeholder_in_an_address_is_refused():
    with pytest.raises(GraphError, match=r"\{id\}, \{id\+1\}, \{port\}"):
        call("make", "--peers", 3, "--address-template", "h{peer}:7400")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("h{id-1}:7400", r"expected numbers of 0 or more, got .* \{id-1\} is -1 for id 0, port 7400"),
        ("h{id+}:7400", "expected placeholders"),
        ("h{id+1.5}:7400", "expected placeholders"),
        ("h{id*2}:7400", "expected placeholders"),
        ("h{id:7400", "expected placeholders"),
        ("h{id+70000}:{id+70000}", "from 1 to 65535"),
    ],
)
def test_a_placeholder_without_a_number_for_every_peer_is_refused(template, words):
    with pytest.raises(GraphError, match=words):
        call("make", "--peers", 3, "--address-template", template)


def test_one_edge_is_called_one_edge():
    """Before, the summary of a line of two peers said "1 edges"."""
    assert "1 edge\n" in call("make", "--kind", "line", "--peers", 2).stderr
    assert "2 edges\n" in call("make", "--kind", "line", "--peers", 3).stderr


def test_help_and_check_agree_on_the_smallest_number_of_peers():
    """Before, the help allowed any number, and one peer was refused."""
    from typer.main import get_command

    (option,) = (p for p in get_command(app).commands["make"].params if p.name == "peers")
    assert "2 or more" in option.help
    assert call("make", "--peers", 1).exit_code == 2


def with_private(tmp_path, patterns, *words):
    path = tmp_path / "g.json"
    call("make", "--peers", 3, "--set", f"run.private_parameters={json.dumps(patterns)}", *words, "--out", path)
    return path


def test_check_says_how_many_bytes_of_a_model_travel(tmp_path):
    found = json.loads(call("check", with_private(tmp_path, ["3.*"]), "--json").stdout)
    assert found["private_tensors"] == ["3.weight", "3.bias"]
    assert 0 < found["model_bytes_that_travel"] < found["model_bytes"]
    assert (found["model_bytes"] - found["model_bytes_that_travel"]) % (4 * 10) == 0, "a layer of ten outputs stays"


def test_check_without_private_parameters_loads_no_task(tmp_path):
    path = tmp_path / "g.json"
    call("make", "--peers", 3, "--out", path)
    assert "model_bytes" not in json.loads(call("check", path, "--json").stdout)


@pytest.mark.parametrize(("patterns", "words"), [(["head.*"], "'head.*'"), (["*"], "leaves none")])
def test_check_refuses_private_parameters_that_do_not_fit(tmp_path, patterns, words):
    with pytest.raises(ConfigError, match=rf"run\.private_parameters: .*{re.escape(words)}.* 1.weight, 1.bias"):
        call("check", with_private(tmp_path, patterns))


def test_check_warns_where_the_size_is_unknown(tmp_path):
    path = with_private(tmp_path, ["3.*"], "--set", "run.task=nowhere.py:task")
    result = call("check", path)
    assert "the bytes of a model that travel are unknown" in result.stderr and "nowhere.py" in result.stderr

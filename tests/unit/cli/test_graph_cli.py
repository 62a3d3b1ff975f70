"""`peer graph`: a graph file that nobody could run, or that replaces a pinned one, is not written."""

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import load_graph
from coordinator_free_bootstrap.errors import ConfigError, UsageError
from peer.cli.graph import app


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_file_that_exists_is_replaced_only_if_that_is_said(tmp_path):
    path = tmp_path / "g.json"
    call("make", "--peers", 3, "--out", path)
    with pytest.raises(UsageError, match="--force"):
        call("make", "--peers", 4, "--out", path)
    assert len(load_graph(path).ids) == 3
    call("make", "--peers", 4, "--out", path, "--force")
    assert len(load_graph(path).ids) == 4


@pytest.mark.parametrize("setting", ["run.algorithm=dfedav", "run.options.warmup_round=3"])
def test_an_algorithm_that_would_not_start_is_named_at_once(tmp_path, setting):
    path = tmp_path / "g.json"
    with pytest.raises(ConfigError, match=setting.partition("=")[0].replace(".", r"\.")):
        call("make", "--kind", "ring", "--peers", 3, "--set", setting, "--out", path)
    assert not path.exists()


def test_all_keys_are_listed_with_those_of_the_algorithm():
    shown = call("keys", "--algorithm", "dfca").stdout
    for key in ("run.rounds", "run.timeouts.suspicion_s", "run.options.warmup_rounds"):
        assert key in shown

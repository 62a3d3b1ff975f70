"""`peer graph make` does not write a graph file that cannot run, or replace an existing one without --force."""

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


def test_an_existing_file_is_replaced_only_with_force(tmp_path):
    path = tmp_path / "g.json"
    call("make", "--peers", 3, "--out", path)
    with pytest.raises(UsageError, match="--force"):
        call("make", "--peers", 4, "--out", path)
    assert len(load_graph(path).ids) == 3
    call("make", "--peers", 4, "--out", path, "--force")
    assert len(load_graph(path).ids) == 4


@pytest.mark.parametrize("setting", ["run.algorithm=dfedav", "run.options.warmup_round=3"])
def test_an_unknown_algorithm_or_option_is_refused(tmp_path, setting):
    path = tmp_path / "g.json"
    with pytest.raises(ConfigError, match=setting.partition("=")[0].replace(".", r"\.")):
        call("make", "--kind", "ring", "--peers", 3, "--set", setting, "--out", path)
    assert not path.exists()


def test_manifest_keys_are_listed_with_those_of_the_algorithm():
    shown = call("keys", "--algorithm", "dfca").stdout
    for key in ("run.rounds", "run.timeouts.suspicion_s", "run.options.warmup_rounds"):
        assert key in shown

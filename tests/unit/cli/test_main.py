"""The command `peer`: errors are printed unchanged, with their exit codes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from peer.cli.main import main
from peer.learning.device import device_named
from peer.tasks import Shard
from peer.tasks.shard_file import save_shard


def peer(monkeypatch, capsys, *arguments):
    """Run the command through its entry point; return the exit code and stderr."""
    monkeypatch.setattr(sys, "argv", ["peer", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("task", "check", "/tmp/[/a].py:task"), 12, "'/tmp/[/a].py'"),
        (("task", "check", "digits", "--set", 'run.model_options.hidden="[/x]"'), 12, "'[/x]'"),
        (("graph", "check", "[samples].json"), 11, "[samples].json"),
        (("report", "/:bug:"), 2, "/:bug:"),
    ],
)
def test_markup_in_an_error_is_printed_unchanged(monkeypatch, capsys, arguments, code, words):
    found, said = peer(monkeypatch, capsys, *arguments)
    assert found == code
    assert said.startswith("error: ") and words in said


def test_markup_in_tables_is_printed_unchanged(monkeypatch, capsys, tmp_path):
    graph = tmp_path / "graph.json"
    task = ("--set", "run.task=[bold].py:task", "--address-template", "[fe80::{id}]:7400")
    monkeypatch.setattr(
        sys, "argv", ["peer", "graph", "make", "--kind", "line", "--peers", "2", *task, "--out", str(graph)]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    for verb, words in (("check", "[bold].py:task"), ("show", "[fe80::1]:7400")):
        monkeypatch.setattr(sys, "argv", ["peer", "graph", verb, str(graph)])
        with pytest.raises(SystemExit):
            main()
        assert words in capsys.readouterr().out


@pytest.mark.usefixtures("run_in_this_process")
@pytest.mark.parametrize(
    ("shape", "changes", "words"),
    [
        ((1, 8, 8), {"true_cluster": np.full(20, -5)}, "true_cluster[0]: expected integers 0..4095, got -5"),
        (
            (1, 8, 8),
            {"true_cluster": np.full(20, 10**12)},
            "true_cluster[0]: expected integers 0..4095, got 1000000000000",
        ),
        ((1, 8, 8), {"true_cluster": np.full(20, 0.5)}, "true_cluster: expected integers 0..4095, got dtype float64"),
        ((1, 20, 20), {}, "expected samples of shape [1, 8, 8], got [1, 20, 20]"),
    ],
)
def test_a_peer_with_a_wrong_shard_ends_before_it_writes_anything(monkeypatch, capsys, tmp_path, shape, changes, words):
    x, y = np.zeros((20, *shape), np.float32), np.arange(20) % 10
    shard = Shard(train_x=x, train_y=y, test_x=x, test_y=y, metadata={"classes": "10"}, **changes)
    save_shard(tmp_path / "peer-0.safetensors", shard)
    graph, state = tmp_path / "graph.json", tmp_path / "state"
    peer(
        monkeypatch, capsys, "graph", "make", "--kind", "line", "--peers", 2, "--set", "run.split=shard", "--out", graph
    )
    run = ("run", "--id", 0, "--neighbors", graph, "--insecure", "--state-dir", state)
    code, said = peer(monkeypatch, capsys, *run, "--shard", tmp_path / "peer-0.safetensors")
    assert code == 13
    assert words in said
    assert not state.exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [("gpu", "expected auto, cpu, cuda, cuda:N or"), ("cuda:x", "expected auto, cpu"), ("cuda:900", "CUDA")],
)
def test_a_missing_device_is_an_error(name, words):
    from coordinator_free_bootstrap.errors import ConfigError

    with pytest.raises(ConfigError, match=f"--device.*{words}"):
        device_named(name)
    assert device_named("cpu") == "cpu"


@pytest.mark.parametrize("name", ["peer", "coordinator-free"])
def test_a_shell_completes_verbs_of_both_commands(monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # as in a script of pip
    asked = {
        f"_{name.upper().replace('-', '_')}_COMPLETE": "complete_bash",
        "COMP_WORDS": f"{name} gra",
        "COMP_CWORD": "1",
    }
    for variable, value in asked.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == ["graph"]

"""`peer data show --federation`: what all sites have together, from data that are here or from a history."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import PeerError
from peer.cli.main import app

ROWS = "age,dose,state\n" + "".join(f"{20 + i},{i % 7},{'ill' if i % 3 else 'well'}\n" for i in range(100))


def said(*words: object) -> str:
    """Return what the command prints; it succeeds."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*words: object) -> str:
    """Return why the command fails."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, PeerError), result.output
    return str(result.exception)


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    table = tmp_path / "patients.csv"
    table.write_text(ROWS)
    settings = (
        "run.task=tabular",
        "peers=3",
        f"data_root={table}",
        "run.split=iid",
        "run.task_options.standardize=shared",
    )
    return [word for each in settings for word in ("--set", each)]


def test_table_of_data_that_are_here(options: list[str]) -> None:
    found = json.loads(said("data", "show", "--federation", "--json", *options))
    assert found["columns"] == ["age", "dose"]
    assert sum(found["samples"].values()) == 80
    assert np.sum(list(found["classes"].values())) == 80
    assert found["mean"][0] == pytest.approx(69.5, abs=3)
    text = said("data", "show", "--federation", *options)
    assert f"smallest site: {min(found['samples'].values())} samples; digest {found['digest'][:16]}" in text
    assert all(word in text for word in ("age", "dose", "deviation", "all"))


def test_table_of_what_peers_have_agreed_on(options: list[str], tmp_path: Path) -> None:
    found = json.loads(said("data", "show", "--federation", "--json", *options))
    state = tmp_path / "run" / "peer-2"
    state.mkdir(parents=True)
    lines = [
        {"kind": "start"},
        {"kind": "scaling", "t": 0.1, "time": "2026-11-27T00:00:00+00:00", "incarnation": 3} | found,
    ]
    (state / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "scaling"')
    for folder in (state, state.parent):
        assert json.loads(said("data", "show", folder, "--federation", "--json")) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "run.task=linear", "--set", "peers=2"],
            "--federation: expected a task with shared scaling, got another",
        ),
        (["{empty}"], "expected a line `scaling` in {empty}/history.jsonl, got none"),
        (["{empty}", "--set", "run.task=linear"], "a directory is given"),
        (["--out", "picture.png"], "--federation is given"),
    ],
)
def test_refusals(tmp_path: Path, words: list[str], message: str) -> None:
    said = refusal("data", "show", "--federation", *(word.format(empty=tmp_path) for word in words))
    assert message.format(empty=tmp_path) in said


def test_a_dealt_site_with_few_rows_is_refused(options: list[str]) -> None:
    said = refusal("data", "show", "--federation", *options, "--set", "run.task_options.samples_min=60")
    assert "expected at least 60 training samples of a site for shared scaling" in said

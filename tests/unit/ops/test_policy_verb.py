"""`peer policy`: a graph file compared with a policy, and approvals of files, from the command line."""

from __future__ import annotations

import getpass
import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import GraphError, PolicyError, UsageError
from peer.ops.verbs.policy import app

TASK = "raise SystemExit('executed')\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder: a graph file whose task is a file, and a policy."""
    monkeypatch.chdir(tmp_path)
    run = {"algorithm": "dfedavg", "task": "task.py:Own"}
    save_graph(make_graph("line", 3, manifest=parse_manifest(run, "test")), Path("graph.json"))
    Path("task.py").write_text(TASK)
    Path("policy.toml").write_text('algorithms = ["dfedavg"]\nsamples_min = 100\nneighbors = [1]\n')
    return tmp_path


def verb(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_check_names_every_verdict_and_exits_with_14_where_one_is_refused(place: Path) -> None:
    digest = hashlib.sha256(TASK.encode()).hexdigest()
    assert verb("check", "graph.json", "--id", "2", code=14).splitlines() == [
        "allowed: policy.toml, line 1, algorithms: expected run.algorithm to be dfedavg",
        f"refused: policy.toml, no approved: expected run.task to be an approved file, got task.py with SHA-256 {digest}",
        "allowed: policy.toml, line 3, neighbors: expected edges of peer 2 to 1 only",
        "allowed: policy.toml, no plaintext: expected TLS",
        "not known before the start: policy.toml, line 2, samples_min: expected 100 training samples or more",
    ]
    found = json.loads(verb("check", "graph.json", "--id", "1", "--json", code=14))
    assert not found["allowed"]
    assert [each["key"] for each in found["verdicts"] if each["allowed"] is False] == [
        "approved",
        "neighbors",
        "neighbors",
    ]


def test_an_approval_allows_the_file_until_it_changes(place: Path) -> None:
    said = verb("approve", "task.py", "--by", "Ada Lovelace")
    assert "approved by Ada Lovelace at 2" in said
    assert "neighbors" not in verb("check", "graph.json")
    before = Path("policy.toml").read_text()
    assert "approved by Ada Lovelace" in verb("approve", "task.py"), "an approved file is not approved again"
    assert Path("policy.toml").read_text() == before
    Path("task.py").write_text(TASK + "# changed\n")
    verb("check", "graph.json", code=14)
    assert f"approved by {getpass.getuser()}" in verb("approve", "task.py")
    verb("check", "graph.json")
    assert Path("policy.toml").read_text().startswith(before), "approvals are only added"


def test_what_is_not_there_is_named(place: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.py: expected a file, got none"):
        verb("approve", "none.py")
    with pytest.raises(PolicyError, match=r"other\.toml: expected a policy file"):
        verb("approve", "task.py", "--policy", "other.toml")
    with pytest.raises(GraphError, match="9"):
        verb("check", "graph.json", "--id", "9")

"""`make size`: tokens without prose, folders, and differences to a base commit, also where a shallow clone lacks it."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "size.py"
measured = runpy.run_path(str(SCRIPT))["measured"]

CODE = '''"""A module of five words."""

x = "no prose"  # a comment


def f(a):
    """Return it."""
    return {
        "key": a,  # two words
    }
'''


def git(*words, cwd):
    identity = ("-c", "user.name=test", "-c", "user.email=test@example")
    subprocess.run(["git", *identity, *words], cwd=cwd, check=True, capture_output=True)


def size(cwd, *base):
    done = subprocess.run([sys.executable, SCRIPT, *base], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path):
    """Return a repository of two commits, the first of which has a tag."""
    root = tmp_path / "project"
    (root / "peer" / "core").mkdir(parents=True)
    git("init", "--initial-branch=main", cwd=tmp_path.joinpath("project"))
    (root / "peer" / "core" / "a.py").write_text(CODE)
    (root / "docs").mkdir()
    (root / "docs" / "a.md").write_text("one two three\n")
    git("add", ".", cwd=root)
    git("commit", "-m", "first", cwd=root)
    git("tag", "v1", cwd=root)
    (root / "peer" / "core" / "a.py").write_text(CODE + "from typing import Any\ny: Any = x  # type: ignore\n")
    git("commit", "-a", "-m", "second", cwd=root)
    return root


def test_comments_and_docstrings_are_counted_apart():
    assert measured(CODE) == {"files": 1, "lines": 10, "tokens": 3 + 6 + 7, "prose words": 5 + 2 + 2 + 2}


def row(output, name):
    return next(line for line in output.splitlines() if line.startswith(name)).removeprefix(name).split()


def test_the_difference_to_the_last_tag_is_shown_for_each_folder_and_count(repository):
    output = size(repository)
    assert "the difference to" in output
    assert row(output, "peer/core") == ["1", "(0)", "12", "(+2)", "25", "(+9)", "13", "(+2)"]
    assert row(output, "= kernel") == row(output, "= product") == row(output, "peer/core")
    assert row(output, "Any") == ["2", "(+2)"]
    assert row(output, "type: ignore") == ["1", "(+1)"]
    assert row(output, "words of docs") == ["3", "(0)"]
    assert row(output, "manifest keys") == ["unknown"]  # this is not our project


def test_a_shallow_clone_without_the_base_says_so_in_one_sentence(repository, tmp_path):
    git("clone", "--depth=1", "--no-tags", f"file://{repository}", "shallow", cwd=tmp_path)
    git("remote", "remove", "origin", cwd=tmp_path / "shallow")
    output = size(tmp_path / "shallow")
    assert output.splitlines()[0].startswith(
        "size, without differences: neither a tag nor origin/main in this clone; fetch it"
    )
    assert row(output, "peer/core") == ["1", "12", "25", "13"]
    assert "no commit v1 in this clone" in size(tmp_path / "shallow", "v1")


def test_the_rings_of_the_table_are_summed_apart(repository):
    (repository / "peer" / "zoo").mkdir()
    (repository / "peer" / "zoo" / "b.py").write_text("x = 1\n")
    (repository / "docs" / "architecture.md").write_text("| `peer.zoo` | models | nothing |\n")
    output = size(repository)
    assert row(output, "= rings") == ["1", "(+1)", "1", "(+1)", "3", "(+3)", "0", "(0)"]
    assert row(output, "= product")[:2] == ["2", "(+1)"]

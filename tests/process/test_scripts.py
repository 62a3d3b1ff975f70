"""Goal: the scripts of examples/scripts train in a federation with few changed lines, and a kill in mid-round changes no bit.

Method: two real processes on files that examples/make_files.py makes, once undisturbed, once with a kill -9 while the workers of
a loader run and a restart at once. The processes are forked from one that has imported the libraries.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tools.beds import Bed, same_models
from tools.running import PATIENCE_S
from tools.warm_parent import Forked, WarmParent

import peer
from peer.bed.testbed.ports import on_free_ports
from peer.store.history import read_history

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = {
    "plain": ("PIL",),
    "with_lightning": ("lightning", "PIL"),
    "with_trainer": ("transformers", "peft", "datasets", "tokenizers"),
    "with_monai": ("monai",),
}
LINES = 5  # that may change in a script
SITES, VICTIM, ROUNDS = 2, 1, 3
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # the fixture imports four large libraries


def needed(name: str) -> Any:
    missing = [package for package in NEEDED[name] if find_spec(package) is None]
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=f"no package {missing}: make dev"))


@pytest.fixture(scope="module")
def parent() -> Iterator[WarmParent]:
    found = WarmParent()
    modules = [package for names in NEEDED.values() for package in names if find_spec(package)]
    found.ask(do="import", modules=list(dict.fromkeys(modules)))
    yield found
    found.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the scripts and their files."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(EXAMPLES / "make_files.py", folder)
    shutil.copytree(EXAMPLES / "scripts", folder / "scripts")
    done = subprocess.run(
        [sys.executable, "make_files.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment(folder),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}


def changed_lines(alone: str, federated: str) -> int:
    """Return how many lines of a script change or come in, without its docstring; an indentation is no change."""
    before, after = ([line.strip() for line in text.splitlines()[1:] if line.strip()] for text in (alone, federated))
    steps = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in steps if kind != "equal")


@pytest.mark.parametrize("name", NEEDED)
def test_few_lines_of_a_script_change_and_the_page_says_how_many(name: str) -> None:
    alone, federated = ((EXAMPLES / "scripts" / f"{name}{end}.py").read_text() for end in ("_alone", ""))
    count = changed_lines(alone, federated)
    page = (EXAMPLES / "scripts" / "README.md").read_text()
    (told,) = re.findall(rf"^\| `{name}\.py` \|.*\| (\d+) \|$", page, re.MULTILINE)
    assert 0 < count <= LINES and count == int(told)


class Scripts:
    """A script that joins, as a program of each site."""

    def __init__(self, parent: WarmParent, path: Path, home: Path) -> None:
        self._parent, self.path, self.home = parent, path, home
        self._sites: dict[int, Forked] = {}
        run = {"algorithm": "dfedavg", "rounds": ROUNDS, "timeouts": {"suspicion_s": 60.0}}
        graph = peer.Graph.of(on_free_ports(peer.Graph.make("line", peers=SITES, run=run)))
        home.mkdir()
        graph.save(home / "graph.json")

    def start(self, site: int, kill_at_step: int = 0) -> None:
        self._sites[site] = Forked(
            site,
            script=self.path,
            kill_at_step=kill_at_step,
            parent=self._parent,
            cwd=self.home,
            log=self.home / f"{site}.log",
            environment=environment(self.home),
        )

    def ended(self, site: int) -> int:
        return self._sites[site].wait(PATIENCE_S)

    def log(self, site: int) -> str:
        return (self.home / f"{site}.log").read_text()

    def models(self) -> list[dict[str, np.ndarray]]:
        return [
            load_file(self.home / "state" / f"peer-{s}" / "models" / "personalized.safetensors") for s in range(SITES)
        ]

    def kill(self) -> None:
        for site in self._sites.values():
            site.kill()


@pytest.mark.parametrize("name", [needed("plain"), needed("with_monai")])
def test_a_script_that_joins_ends_with_the_same_bits_after_a_kill(
    name: str, parent: WarmParent, files: Path, tmp_path: Path
) -> None:
    found = []
    for which, step in (("undisturbed", 0), ("killed", 6)):
        scripts = Scripts(parent, files / "scripts" / f"{name}.py", tmp_path / which)
        try:
            for site in range(SITES):
                scripts.start(site, step if site == VICTIM else 0)
            if step:
                assert scripts.ended(VICTIM) == -signal.SIGKILL, scripts.log(VICTIM)
                assert "killed before a step" in scripts.log(VICTIM)
                scripts.start(VICTIM)
            assert [scripts.ended(site) for site in range(SITES)] == [0] * SITES, scripts.log(0)
        finally:
            scripts.kill()
        found.append(scripts.models())
        lines = [
            line
            for line in read_history(tmp_path / which / "state" / "peer-0" / "history.jsonl")
            if line["kind"] == "round"
        ]
        assert len(lines) == ROUNDS and not any(line["missing"] for line in lines)
    for ours, theirs in zip(*found, strict=True):
        assert ours.keys() == theirs.keys() and all(np.array_equal(ours[n], theirs[n]) for n in ours)


@pytest.mark.parametrize("name", [needed("with_lightning"), needed("with_trainer")])
def test_a_script_as_a_task_ends_with_the_same_bits_after_a_kill(
    name: str, parent: WarmParent, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    run = {"task": f"{files / 'scripts' / name}.py:task", "algorithm": "dfedavg", "rounds": ROUNDS, "local_epochs": 1}
    for which, failpoints in (("undisturbed", {}), ("killed", {VICTIM: "train.step=kill@6"})):
        with Bed(parent, tmp_path / which, peers=SITES, kind="line", failpoints=failpoints, **run) as bed:
            if failpoints:
                assert bed.until_ended(VICTIM) == -signal.SIGKILL and bed.fired(VICTIM) == 1
                bed.arm(VICTIM, "")
                bed.do("restart", VICTIM)
            assert bed.finish()["failed"] == {}, bed.logs()
            assert not any(line["missing"] for line in bed.history(0, "round"))
            found.append(bed.models())
    same_models(*found)

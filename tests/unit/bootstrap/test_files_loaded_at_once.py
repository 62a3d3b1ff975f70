"""Goal: peers of one program that load the same file on threads of their own get the same object, and the file is executed once.

Before, one of them saw the module that another one was executing, and was told that the file has no such object.
"""

from __future__ import annotations

import builtins
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.user_file import Named, load_object

PATIENCE_S = 60.0
FILE = f"import builtins\nbuiltins.gates.inside.set()\nassert builtins.gates.go.wait({PATIENCE_S})\ntask = object()\n"


def test_a_file_that_is_being_executed_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = SimpleNamespace(inside=threading.Event(), go=threading.Event())
    monkeypatch.setattr(builtins, "gates", gates, raising=False)
    (tmp_path / "sites.py").write_text(FILE)
    named = Named("task", "object", "task", TaskError)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(load_object, f"{tmp_path / 'sites.py'}:task", named)
        assert gates.inside.wait(PATIENCE_S)
        others = [pool.submit(load_object, f"{tmp_path / 'sites.py'}:task", named) for _ in range(3)]
        wait(others, timeout=0.2)  # those that do not wait have ended by then
        gates.go.set()
        assert {id(each.result()) for each in others} == {id(first.result())}

"""What a machine lacks is said at the start; before, ``ulimit -n 20`` was a silent hang.

Method: limits of the kernel in a process of their own, and numbers of the system that a test replaces.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tools.permissions import bound_by_permissions

from coordinator_free_bootstrap import make_graph, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, StorageError
from peer.runtime import resources
from peer.runtime.assembly import LocalSettings, assemble
from peer.store.files import write_atomic
from peer.store.state_dir import StateDir
from peer.wire.open_files import LEAST_BASE, LEAST_PER_NEIGHBOR, open_files_needed

GRAPH = make_graph("line", 2, manifest=parse_manifest({"task": "linear", "split": "iid"}, "test"))
LIMITED = """
import resource, sys
from coordinator_free_bootstrap.errors import ConfigError
from peer.wire.open_files import require_peer_files
soft, hard, neighbors = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    require_peer_files(neighbors)
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except ConfigError as error:
    print(error)
"""


def limited(soft: int, hard: int, neighbors: int) -> str:
    words = [sys.executable, "-c", LIMITED, *map(str, (soft, hard, neighbors))]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_a_limit_of_open_files_that_is_too_low_is_refused_with_what_is_needed() -> None:
    said = limited(20, 20, 3)
    assert said.startswith("open files: expected a limit of at least 30")
    assert f"ulimit -n {open_files_needed(3)}" in said
    least = LEAST_BASE + 40 * LEAST_PER_NEIGHBOR
    assert limited(least, least, 40) == str(least)
    assert "open files: expected" in limited(least - 1, least - 1, 40)


def test_a_soft_limit_is_raised_as_far_as_the_hard_one_allows() -> None:
    assert limited(20, 500, 3) == str(open_files_needed(3))
    assert limited(20, 40, 3) == "40"
    assert limited(500, 500, 3) == "500"


def test_too_few_threads_are_a_sentence_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before, start, started = threading.active_count(), threading.Thread.start, []

    def few(self: threading.Thread) -> None:
        if len(started) == 5:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(ConfigError, match=r"threads: expected 16, .* got a limit of 5 more\. .*ulimit -u"):
        resources.require_threads()
    assert threading.active_count() == before
    monkeypatch.undo()
    resources.require_threads()
    assert threading.active_count() == before


def test_models_that_cannot_fit_the_free_memory_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda: 100)
    with pytest.raises(ConfigError, match=r"memory: expected at least .* for 2 models of \d+ parameters"):
        assemble(0, GRAPH, LocalSettings.at(tmp_path))
    monkeypatch.setattr(resources, "free_memory", lambda: None)  # a system that does not say
    assemble(0, GRAPH, LocalSettings.at(tmp_path)).lock.release()


def test_free_memory_is_that_of_the_container_where_it_is_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    machine = resources.free_memory()
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("600\n")
    assert resources.free_memory() is None or machine is not None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    assert resources.free_memory() == 500


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory")],
)
def test_a_failed_allocation_is_a_sentence(error: Exception) -> None:
    with (
        pytest.raises(ConfigError, match="memory: expected enough for data and models of this peer"),
        resources.memory_errors(),
    ):
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), resources.memory_errors():
        raise RuntimeError("shape")


def test_a_disk_without_room_for_a_checkpoint_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not refused: a running peer goes on without checkpoints until there is room again."""
    used = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(resources.shutil, "disk_usage", lambda _path: used._replace(free=10))
    parts = assemble(0, GRAPH, LocalSettings.at(tmp_path))
    parts.lock.release()
    assert [note for note in parts.notes if "a checkpoint needs" in note and "0.0 MB free" in note]


def test_a_full_disk_at_the_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("peer.store.files.os.fsync", full)
    with pytest.raises(StorageError, match=r"The disk is full\. Free space or use another folder") as caught:
        write_atomic(tmp_path / "incarnation.json", b"x")
    assert caught.value.exit_code == 30 and list(tmp_path.iterdir()) == []


def test_a_state_directory_that_may_not_be_written_is_a_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with bound_by_permissions(), pytest.raises(StorageError, match="This user has no permission"):
        StateDir(tmp_path / "state").create()
    tmp_path.chmod(0o700)

"""A killed process's folder for temporary files is removed by the next process; one that is in use, or not ours, never."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer.store import scratch
from peer.store.scratch import ScratchFolder, sweep, temporary_folder
from peer.wire.endpoint import FOLDER_BYTES_MAX, SocketFolder

pytestmark = pytest.mark.skipif(not hasattr(os, "O_DIRECTORY"), reason="folders have no locks here")

HOLDER = """
import sys
from peer.wire.endpoint import SocketFolder
folder = SocketFolder()
print(folder.service.parent, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files of this test and of the processes that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_running_one_is_not(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().decode().strip())
        assert held.parent == place and held.is_dir()
        ScratchFolder("sockets").remove()
        assert held.is_dir(), "it is in use"
        holder.kill()
        holder.wait()
        assert held.is_dir(), "a killed process cannot remove it"
        ScratchFolder("sockets").remove()
        assert list(place.iterdir()) == []


def test_own_folders_of_this_process_are_kept(place: Path) -> None:
    first, second = ScratchFolder("sockets"), ScratchFolder("simulated")
    assert sweep(place) == [] and first.path.is_dir() and second.path.is_dir()
    first.remove()
    first.remove()
    second.remove()
    assert list(place.iterdir()) == []


def test_links_files_and_folders_of_others_are_left(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = place / "target"
    target.mkdir()
    (target / "model").write_text("precious")
    (place / "peer-sockets-link").symlink_to(target)
    (place / "peer-sockets-file").write_text("")
    (place / "peer-sockets-open").mkdir(mode=0o755)
    (place / "peer-12345678").mkdir(mode=0o700)  # of another program
    assert sweep(place) == []
    (place / "peer-sockets-mine").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert sweep(place) == []
    monkeypatch.undo()
    assert sweep(place) == [place / "peer-sockets-mine"]
    assert (target / "model").read_text() == "precious" and (place / "peer-sockets-link").is_symlink()


def test_a_folder_that_is_swept_before_its_lock_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may sweep between the creation of a folder and its lock."""
    swept: list[Path] = []
    made = tempfile.mkdtemp

    def mkdtemp(prefix: str) -> str:
        path = made(prefix=prefix)
        if len(swept) < 3:
            swept.extend(sweep(place))
        return path

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", mkdtemp)
    folder = ScratchFolder("sockets")
    assert len(swept) == 3 and folder.path not in swept and folder.path.is_dir()
    folder.remove()


def test_processes_that_start_at_once_do_not_take_each_others_folders(place: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: ScratchFolder("sockets"), range(64)))
    assert len({folder.path for folder in folders}) == 64 and all(folder.path.is_dir() for folder in folders)
    for folder in folders:
        folder.remove()


def test_no_folder_for_temporary_files_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the missing folder was a bug of this program, exit code 70."""

    def missing() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr(scratch.tempfile, "gettempdir", missing)
    with pytest.raises(StorageError, match=r"No usable temporary directory .* set TMPDIR") as caught:
        SocketFolder()
    assert caught.value.exit_code == 30
    with pytest.raises(StorageError) as same:
        temporary_folder()
    assert str(same.value) == str(caught.value)


def test_a_folder_with_a_long_name_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unix socket has a name of 107 bytes at most; before, its bind failed as a bug of this program."""
    long = tmp_path / ("x" * FOLDER_BYTES_MAX)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(StorageError, match="TMPDIR: expected a path of at most"):
        SocketFolder()
    assert list(long.iterdir()) == []

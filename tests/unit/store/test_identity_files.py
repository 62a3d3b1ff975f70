"""The incarnation only grows and is on disk before it is used; one process uses a state directory."""

import os
import subprocess
import sys

import pytest

from coordinator_free_bootstrap.errors import IdentityError, StorageError
from coordinator_free_bootstrap.identity import INCARNATION_MAX, restart_count
from peer.store.identity_files import IncarnationFile, StateLock, held_by


def test_the_incarnation_grows_over_restarts_for_any_entropy(tmp_path):
    claims = [IncarnationFile(tmp_path).claim(entropy) for entropy in (2**32 - 1, 0, 5, -1)]
    assert claims == sorted(set(claims)) and [restart_count(c) for c in claims] == [1, 2, 3, 4]
    assert IncarnationFile(tmp_path).read() == claims[-1]


def test_after_a_lost_disk_the_incarnation_is_above_the_seen_one(tmp_path):
    old = IncarnationFile(tmp_path).claim(111)
    os.remove(tmp_path / "incarnation.json")
    assert IncarnationFile(tmp_path).claim(222) != old
    os.remove(tmp_path / "incarnation.json")
    assert IncarnationFile(tmp_path).claim(0, above=old) > old


@pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b"", lambda b: b.replace(b"4", b"5")])
def test_a_damaged_incarnation_file_is_reported(tmp_path, damage):
    file = IncarnationFile(tmp_path)
    file.claim(4)
    file.path.write_bytes(damage(file.path.read_bytes()))
    assert file.read() is None and "damaged (" in file.problem


def test_running_out_of_incarnations_is_an_identity_error(tmp_path):
    with pytest.raises(IdentityError, match="new id"):
        IncarnationFile(tmp_path).claim(0, above=INCARNATION_MAX)


def test_an_unwritable_directory_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot write"):
        IncarnationFile(tmp_path / "missing").claim(1)


HOLDER = """
import sys
from pathlib import Path
from peer.store.identity_files import StateLock
with StateLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        assert held_by(tmp_path) == holder.pid
        with pytest.raises(StorageError, match=f"expected no other process, got process {holder.pid},"):
            StateLock(tmp_path).acquire()
        holder.kill()
    assert held_by(tmp_path) is None
    with StateLock(tmp_path):
        assert held_by(tmp_path) == os.getpid()
    assert held_by(tmp_path) is None and held_by(tmp_path / "nowhere") is None

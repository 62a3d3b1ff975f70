"""`peer deploy systemd`: a unit that systemd accepts, and archives with the files of one device only."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.graph_file import parse_graph
from peer.ops.deploy.systemd import write_systemd


def devices(**more):
    return make_graph("ring", 3, address_template="device-{id}.example:7400", **more)


PROGRAM = str(Path(sys.executable).with_name("peer"))


def unit_of(folder, program):
    """Write the unit, with the path of the command peer on this machine; return its path."""
    unit = write_systemd(devices(), folder)[0]
    unit.write_text(unit.read_text().replace("ExecStart=/opt/peer/bin/peer ", f"ExecStart={program} "))
    return unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path):
    unit = unit_of(tmp_path, PROGRAM)
    found = subprocess.run(["systemd-analyze", "verify", unit], check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_refuses_a_wrong_unit(tmp_path):
    unit = unit_of(tmp_path, "/nowhere/peer")
    assert subprocess.run(["systemd-analyze", "verify", unit], check=False, capture_output=True).returncode != 0


def test_each_archive_has_the_files_of_one_peer(tmp_path):
    paths = write_systemd(devices(), tmp_path)
    assert [path.name for path in paths[1:4]] == ["peer-0.tar.gz", "peer-1.tar.gz", "peer-2.tar.gz"]
    keys = set()
    for peer_id, path in enumerate(paths[1:4]):
        assert path.stat().st_mode & 0o777 == 0o600
        with tarfile.open(path) as archive:
            entries = {entry.name.rpartition("/")[2]: entry for entry in archive.getmembers()}
            content = {name: archive.extractfile(entry).read() for name, entry in entries.items()}
        assert set(entries) == {
            "coordinator-free.service",
            "peer.env",
            "graph.json",
            "peer.pem",
            "peer.key",
            "INSTALL.txt",
        }
        assert entries["peer.key"].mode == 0o600
        assert b"PEER_ID=%d\n" % peer_id in content["peer.env"]
        assert all(node.pins for node in parse_graph(content["graph.json"]).nodes)
        keys.add(content["peer.key"])
    assert len(keys) == 3


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}"])
def test_loopback_addresses_of_separate_devices_are_refused(tmp_path, address):
    """Before, the archives held a graph file with which no device could reach another."""
    with pytest.raises(UsageError, match="peer graph make --address-template"):
        write_systemd(make_graph("ring", 3, address_template=address), tmp_path)
    assert not (tmp_path / "keys").exists()


def test_a_task_file_is_in_each_archive_where_the_unit_starts_the_peer(tmp_path, own_task):
    """Before, no archive had the task file, and every peer ended with exit code 12."""
    paths = write_systemd(devices(manifest=own_task), tmp_path / "out")
    (folder,) = re.findall("^WorkingDirectory=/(.*)$", paths[0].read_text(), re.MULTILINE)
    for path in paths[1:4]:
        with tarfile.open(path) as archive:
            assert archive.extractfile(f"{folder}/code/mine.py").read() == (tmp_path / "code" / "mine.py").read_bytes()


def test_an_algorithm_file_is_in_each_archive_too(tmp_path, own_algorithm):
    paths = write_systemd(devices(manifest=own_algorithm), tmp_path / "out")
    (folder,) = re.findall("^WorkingDirectory=/(.*)$", paths[0].read_text(), re.MULTILINE)
    for path in paths[1:4]:
        with tarfile.open(path) as archive:
            for name in ("mine.py", "half.py"):
                assert archive.extractfile(f"{folder}/code/{name}").read() == (tmp_path / "code" / name).read_bytes()


def test_without_a_task_file_the_peer_starts_in_its_state_directory(tmp_path):
    assert "WorkingDirectory=%S/coordinator-free\n" in write_systemd(devices(), tmp_path)[0].read_text()


def test_private_keys_are_among_the_written_files(tmp_path):
    """Before, the verb wrote private keys below --out and did not list them."""
    written = set(write_systemd(devices(), tmp_path))
    assert written >= {
        tmp_path / "keys" / f"peer-{i}" / f"peer-{i}.{kind}" for i in range(3) for kind in ("key", "pem")
    }
    assert not any(path.suffix == ".key" for path in write_systemd(devices(), tmp_path))  # the second time they exist

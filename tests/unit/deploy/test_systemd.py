"""`peer deploy systemd`: a unit that systemd accepts, and archives with the files of one device only."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.graph_file import parse_graph
from peer.deploy.systemd import write_systemd

PROGRAM = str(Path(sys.executable).with_name("peer"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path):
    unit = write_systemd(make_graph("ring", 3), tmp_path, program=PROGRAM)[0]
    found = subprocess.run(["systemd-analyze", "verify", unit], check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_refuses_a_wrong_unit(tmp_path):
    unit = write_systemd(make_graph("ring", 3), tmp_path, program="/nowhere/peer")[0]
    assert subprocess.run(["systemd-analyze", "verify", unit], check=False, capture_output=True).returncode != 0


def test_each_archive_has_the_files_of_one_peer(tmp_path):
    paths = write_systemd(make_graph("ring", 3), tmp_path, options="--listen 0.0.0.0:7400")
    assert [path.name for path in paths[1:]] == ["peer-0.tar.gz", "peer-1.tar.gz", "peer-2.tar.gz"]
    keys = set()
    for peer_id, path in enumerate(paths[1:]):
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
        assert b"PEER_OPTIONS=--listen 0.0.0.0:7400" in content["peer.env"]
        assert all(node.pins for node in parse_graph(content["graph.json"]).nodes)
        keys.add(content["peer.key"])
    assert len(keys) == 3

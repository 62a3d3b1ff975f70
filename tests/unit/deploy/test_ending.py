"""The own address, the end of a run, chaos scripts, and collecting: what needs no engine."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest

from coordinator_free_bootstrap import make_graph, save_graph
from coordinator_free_bootstrap.errors import ConfigError, IdentityError, StorageError
from peer.deploy.chaos import KINDS, script
from peer.deploy.collect import collect, wait_until_over
from peer.deploy.ending import is_completed
from peer.deploy.keys import deal_keys, key_files
from peer.store.state_dir import StateDir
from peer.wire.address import require_own_address
from peer.wire.health import own_key_files


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("127.0.0.1:7400", "every peer finds only itself"),
        ("localhost:7400", "every peer finds only itself"),
        ("192.0.2.1:7400", "another machine"),
        ("no-such-name.invalid:7400", "nobody knows the name"),
        ("192.0.2.1:7401", "listens on 0.0.0.0:7400"),
    ],
)
def test_an_address_that_leads_elsewhere_is_a_sentence(address, word):
    with pytest.raises(ConfigError, match=word) as caught:
        require_own_address(3, address, "0.0.0.0:7400")
    assert "peer-3:7400" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "completed"),
    [('{"status": "completed"}', True), ('{"status": "left"}', False), ("[]", False), ("{", False), (None, False)],
)
def test_only_a_completed_run_is_completed(tmp_path, content, completed):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    assert is_completed(StateDir(tmp_path)) is completed


def test_a_chaos_script_is_its_seed_s():
    faults = script(7, 300, [0, 1, 2])
    assert faults == script(7, 300, [0, 1, 2])
    assert faults != script(8, 300, [0, 1, 2])
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.peer_id for fault in faults} == {0, 1, 2}
    for before, after in pairwise(faults):
        assert before.at_s + before.length_s < after.at_s  # one at a time
    assert faults[-1].at_s + faults[-1].length_s <= 300


def test_own_key_files_wants_exactly_one_pair(tmp_path):
    with pytest.raises(IdentityError, match="found 0 keys"):
        own_key_files(tmp_path)
    for peer_id in (1, 2):
        (tmp_path / f"peer-{peer_id}.key").write_text("")
    with pytest.raises(IdentityError, match="found 2 keys"):
        own_key_files(tmp_path)


def test_keys_that_exist_are_kept(tmp_path):
    graph = make_graph("ring", 3)
    pinned = deal_keys(graph, tmp_path)
    before = key_files(tmp_path, 1).key.read_bytes()
    assert deal_keys(graph, tmp_path) == pinned
    assert key_files(tmp_path, 1).key.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_peer_without_a_place_is_pinned_to_nobody_s_key(tmp_path):
    (tmp_path / "peer-2").mkdir(mode=0o555)
    pinned = deal_keys(make_graph("ring", 3), tmp_path)
    assert all(node.pins for node in pinned.nodes)
    assert not key_files(tmp_path, 2).exist()


@pytest.fixture
def run_directory(tmp_path):
    """A run of three peers of which two have ended; nobody is running."""
    directory = tmp_path / "run"
    directory.mkdir()
    save_graph(make_graph("ring", 3), directory / "graph.json")
    for peer_id in (0, 1):
        place = StateDir.of_peer(directory, peer_id)
        place.create()
        place.summary.write_text(json.dumps({"peer_id": peer_id, "status": "completed"}))
        (place.models / "personalized.safetensors").write_bytes(b"model")
    return directory


def test_waiting_ends_when_nobody_has_been_running_for_the_patience(run_directory):
    wait_until_over(run_directory, patience_s=0)  # peer 2 never came: it returns all the same


def test_collecting_copies_results_and_reports_who_is_missing(run_directory, tmp_path):
    found = collect(run_directory, tmp_path / "results")
    assert found.values["state"] == "incomplete"
    assert (tmp_path / "results" / "peer-1" / "models" / "personalized.safetensors").read_bytes() == b"model"
    assert json.loads((tmp_path / "results" / "report.json").read_text()) == found.values
    assert not (tmp_path / "results" / "peer-0" / "checkpoints").exists()


def test_results_that_cannot_be_written_are_a_sentence(run_directory, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="results cannot be written"):
        collect(run_directory, tmp_path / "file")


@pytest.mark.process
@pytest.mark.parametrize(("stay", "waits"), [("error", True), ("never", False)])
def test_after_an_error_a_peer_stays_only_if_asked(tmp_path, stay, waits):
    save_graph(make_graph("ring", 3), tmp_path / "graph.json")
    command = [
        sys.executable,
        "-m",
        "peer",
        "run",
        "--id",
        "7",
        "--neighbors",
        "graph.json",
        "--state-dir",
        "s",
        "--stay",
        stay,
    ]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "found 7" in process.stderr.readline()
            if waits:
                assert "waiting for SIGTERM" in process.stderr.readline()
                assert process.poll() is None
                process.terminate()
            assert process.wait(timeout=30) == 11
        finally:
            process.kill()

"""Own address, keys, end of a run and collection of results: what needs no Docker engine."""

import json
import os

import pytest
from tools.running import PATIENCE_S, until
from tools.warm_parent import Forked

from coordinator_free_bootstrap import make_graph, save_graph
from coordinator_free_bootstrap.errors import ConfigError, IdentityError, StorageError
from peer.ops.deploy.collect import collect, wait_for_completion
from peer.ops.deploy.keys import create_keys, key_files
from peer.runtime.ending import is_completed
from peer.store.state_dir import StateDir
from peer.wire.address import require_own_address
from peer.wire.health import own_key_files


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("127.0.0.1:7400", "got the loopback address"),
        ("localhost:7400", "got the loopback address"),
        ("192.0.2.1:7400", "another machine"),
        ("no-such-name.invalid:7400", "expected a name that can be resolved"),
        ("192.0.2.1:7401", "expected port 7400, on which it listens, got 7401"),
    ],
)
def test_an_own_address_of_another_host_is_an_error(address, word):
    with pytest.raises(ConfigError, match=word) as caught:
        require_own_address(3, address, "0.0.0.0:7400")
    assert "peer-3:7400" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "completed"),
    [
        ('{"status": "completed"}', True),
        ('{"status": "left"}', False),
        ('{"status": "alone", "rounds_completed": 9, "rounds_total": 9}', True),
        ('{"status": "alone", "rounds_completed": 3, "rounds_total": 9}', False),  # it gave up: a restart goes on
        ('{"status": "alone"}', False),
        ("[]", False),
        ("{", False),
        (None, False),
    ],
)
def test_a_run_is_completed_only_if_its_summary_says_so(tmp_path, content, completed):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    assert is_completed(StateDir(tmp_path)) is completed


def test_own_key_files_needs_exactly_one_key(tmp_path):
    with pytest.raises(IdentityError, match="got 0"):
        own_key_files(tmp_path)
    for peer_id in (1, 2):
        (tmp_path / f"peer-{peer_id}.key").write_text("")
    with pytest.raises(IdentityError, match="got 2"):
        own_key_files(tmp_path)


def test_existing_keys_are_kept(tmp_path):
    graph = make_graph("ring", 3)
    pinned = create_keys(graph, tmp_path)
    before = key_files(tmp_path, 1).key.read_bytes()
    assert create_keys(graph, tmp_path) == pinned
    assert key_files(tmp_path, 1).key.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_peer_whose_folder_cannot_be_written_is_pinned_to_a_key_that_is_not_stored(tmp_path):
    (tmp_path / "peer-2").mkdir(mode=0o555)
    pinned = create_keys(make_graph("ring", 3), tmp_path)
    assert all(node.pins for node in pinned.nodes)
    assert not key_files(tmp_path, 2).exist()


@pytest.fixture
def run_directory(tmp_path):
    """A run of three peers, of which two have completed and none is running."""
    directory = tmp_path / "run"
    directory.mkdir()
    save_graph(make_graph("ring", 3), directory / "graph.json")
    for peer_id in (0, 1):
        place = StateDir.of_peer(directory, peer_id)
        place.create()
        place.summary.write_text(json.dumps({"peer_id": peer_id, "status": "completed"}))
        (place.models / "personalized.safetensors").write_bytes(b"model")
    return directory


def test_waiting_ends_when_no_peer_has_been_running_for_the_patience(run_directory):
    wait_for_completion(run_directory, patience_s=0)  # peer 2 never started


def test_collect_copies_results_and_reports_an_incomplete_run(run_directory, tmp_path):
    found = collect(run_directory, tmp_path / "results")
    assert found.values["state"] == "incomplete"
    assert (tmp_path / "results" / "peer-1" / "models" / "personalized.safetensors").read_bytes() == b"model"
    assert json.loads((tmp_path / "results" / "report.json").read_text()) == found.values
    assert not (tmp_path / "results" / "peer-0" / "checkpoints").exists()


def test_results_that_cannot_be_written_are_an_error(run_directory, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="results cannot be written"):
        collect(run_directory, tmp_path / "file")


@pytest.mark.process
@pytest.mark.parametrize(("stay", "waits"), [("error", True), ("never", False)])
def test_after_an_error_a_peer_waits_for_sigterm_only_with_the_option(tmp_path, stay, waits):
    save_graph(make_graph("ring", 3), tmp_path / "graph.json")
    process = Forked("run", "--id", 7, "--neighbors", "graph.json", "--state-dir", "s", "--stay", stay, cwd=tmp_path)
    try:
        until(lambda: "got 7" in process.err.read_text(), "it says what is wrong")
        if waits:
            until(lambda: "waiting for SIGTERM" in process.err.read_text(), "it waits")
            assert process.poll() is None
            process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 11
    finally:
        process.kill()

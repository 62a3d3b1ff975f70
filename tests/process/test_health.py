"""`peer health` on a running peer: the exit codes and sentences that containers and supervisors get."""

import json
import re
import time
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest
from tools.running import on_loopback, running_peer, until
from tools.warm_parent import executed

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.bed.testbed.ports import free_ports
from peer.ops.deploy.keys import create_keys
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.process


@pytest.fixture
def place(tmp_path):
    """Return a folder with a graph of two peers on free ports and their keys, and the address of peer 0."""
    run = {"rounds": 100_000, "start": {"deadline_s": 600.0}}  # peer 0 does not begin alone while the test asks
    graph = on_loopback(make_graph("complete", 2, manifest=parse_manifest(run, "test")))
    save_graph(create_keys(graph, tmp_path / "keys"), tmp_path / "graph.json")
    return tmp_path, graph.node(0).address


@contextmanager
def running(folder, *options):
    """Run peer 0 without its neighbor; yield the process once it listens."""
    with running_peer(0, folder, *options) as process:
        log = folder / "0.log"
        until(lambda: "listening on port" in log.read_text(), "it listens", logs=[log])
        yield process


def health(folder, address, *options):
    found = executed("health", "--address", address, "--state-dir", "peer-0", *options, cwd=folder)
    return found.returncode, found.stdout.strip() or found.stderr.replace("\n", " ")


def test_only_the_own_key_of_a_peer_may_ask_for_its_health(place):
    folder, address = place
    with running(folder, "--certs", folder / "keys/peer-0") as process:
        assert health(folder, address, "--certs", "keys/peer-0") == (0, "serving")
        code, text = health(folder, address, "--certs", "keys/peer-1")
        assert (code, "no answer" in text) == (40, True)
        assert health(folder, address, "--insecure")[0] == 40
        code, text = health(folder, address, "--certs", "keys")
        assert (code, "expected exactly one file peer-*.key" in text) == (20, True)
        process.terminate()
        assert process.wait(timeout=30) == 0
    code, text = health(folder, address, "--certs", "keys/peer-0")
    assert (code, "no answer" in text) == (40, True)  # it left; the run is not completed


def test_plaintext_peer_answers_in_plaintext(place):
    folder, address = place
    with running(folder, "--insecure"):
        assert health(folder, address, "--insecure") == (0, "serving")


def test_completed_run_is_healthy_without_a_process(place):
    folder, address = place
    StateDir.of_peer(folder, 0).create()
    StateDir.of_peer(folder, 0).summary.write_text('{"status": "completed"}')
    assert health(folder, address, "--insecure") == (0, "completed")


def test_metrics_port_in_use_is_reported_in_one_sentence(place):
    folder, address = place
    words = ["run", "--id", "0", "--neighbors", "graph.json", "--state-dir", "t"]
    words += ["--insecure", "--metrics", address.rpartition(":")[2]]
    with running(folder, "--insecure"):
        found = executed(*words, cwd=folder)
    assert found.returncode == 10
    assert "--metrics" in found.stderr
    assert "free port" in found.stderr


def asked_for_metrics(port):
    """Return the page of metrics, "" while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def test_a_finished_peer_that_stays_answers_metrics_and_health(tmp_path):
    """Before, the page of metrics ended with the run, and the alert for an unreachable peer fired."""
    graph = on_loopback(make_graph("complete", 2, manifest=parse_manifest({"rounds": 3}, "test")))
    save_graph(create_keys(graph, tmp_path / "keys"), tmp_path / "graph.json")
    (port,) = free_ports(1)
    with ExitStack() as stack:
        for i in (0, 1):
            options = ("--metrics", port) if i == 0 else ()
            stack.enter_context(
                running_peer(i, tmp_path, "--certs", tmp_path / f"keys/peer-{i}", "--stay", "completed", *options)
            )
        done = 'peer_run_state{state="completed"} 1.0'
        until(lambda: done in asked_for_metrics(port), "the run is completed", logs=[tmp_path / "0.log"])
        page = asked_for_metrics(port)
        assert "peer_rounds_completed_total 3.0" in page and "peer_rounds_planned 3.0" in page
        ends = re.findall(r'peer_certificate_end_timestamp_seconds\{of="(\w+)"\} (\S+)', page)
        assert {of for of, end in ends if float(end) > time.time() + 700 * 86_400} == {"own", "neighbors"}
        assert health(tmp_path, graph.node(0).address, "--certs", "keys/peer-0")[0] == 0


def test_the_doctor_beside_a_plaintext_peer_knows_it_by_its_id(place):
    folder, address = place
    words = ["doctor", "--neighbors", "graph.json", "--insecure", "--listen", address, "--json"]
    with running(folder, "--insecure"):
        for peer_id, level in ((0, "ok"), (1, "fail")):
            found = executed(*words, "--id", peer_id, "--state-dir", f"elsewhere-{peer_id}", cwd=folder)
            checks = {check["name"]: check["level"] for check in json.loads(found.stdout)["checks"]}
            assert checks["own port"] == level, found.stdout

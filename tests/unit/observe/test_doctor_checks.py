"""The doctor: each check finds its problem, with real sockets, disks and limits."""

import json
import resource
import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coordinator_free_bootstrap.graph import Graph, Node
from coordinator_free_bootstrap.graph_file import save_graph
from peer.identity.certificates import make_certificate
from peer.identity.pinning import pin
from peer.ops.doctor import doctor as checks
from peer.ops.verbs.doctor import doctor
from peer.wire.proxy import HttpProxy


@pytest.fixture
def app():
    app = typer.Typer()
    app.command()(doctor)
    return app


def levels(found) -> dict[str, str]:
    return {check.name: check.level for check in found}


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def free_port() -> int:
    with listening() as server:
        return server.getsockname()[1]


def graph_of(tmp_path, *ports: int):
    nodes = tuple(Node(i, f"127.0.0.1:{port}") for i, port in enumerate(ports))
    save_graph(Graph(nodes, tuple((0, i) for i in range(1, len(ports)))), tmp_path / "graph.json")
    return tmp_path / "graph.json"


def test_this_machine_is_healthy(tmp_path):
    found = checks.examine(state_dir=tmp_path / "not" / "made" / "yet")
    assert [check.name for check in found] == [
        "python",
        "torch",
        "device",
        "threads",
        "clock",
        "disk space",
        "disk writing",
    ]
    assert "fail" not in levels(found).values() and list(tmp_path.iterdir()) == []


def test_only_what_a_run_dials_is_tried(tmp_path):
    """A peer that only dials may have an address of its own network, and behind a proxy only the proxy resolves names."""
    places = ("127.0.0.1:7400", "192.0.2.1:7400", "no-such-host.invalid:7400", "no-such-host.invalid:7401")
    nodes = tuple(Node(i, place, dials_only=i == 1) for i, place in enumerate(places))
    path = tmp_path / "graph.json"
    save_graph(Graph(nodes, ((0, 1), (0, 2), (0, 3))), path)
    found = levels(checks.check_network(path, 0))
    assert "peer 1" not in found and found["peer 2"] == found["peer 3"] == "fail"
    assert "peer 1" not in levels(checks.check_network(path, None))
    with listening() as here:
        for port, level in ((here.getsockname()[1], "ok"), (free_port(), "warn")):
            proxy = HttpProxy.of({"https_proxy": f"http://127.0.0.1:{port}"})
            found = levels(checks.check_network(path, 0, proxy))
            assert found["proxy"] == level and not found.keys() & {"peer 1", "peer 2", "peer 3"}


def test_neighbors_and_own_port(tmp_path):
    with listening() as here, listening() as taken:
        path = graph_of(tmp_path, taken.getsockname()[1], here.getsockname()[1], free_port())
        found = levels(checks.check_network(path, 0))
        assert found == {"graph file": "ok", "open files": "ok", "own port": "fail", "peer 1": "ok", "peer 2": "warn"}
        assert levels(checks.check_network(path, 2)).keys() == {"graph file", "open files", "own port", "peer 0"}
        assert levels(checks.check_network(path, None)).keys() == {
            "graph file",
            "open files",
            "peer 0",
            "peer 1",
            "peer 2",
        }


def test_the_port_of_a_running_peer_is_in_use_and_has_to_be(tmp_path):
    """Before, the doctor beside a healthy peer failed: "own port is in use", stop what uses it."""
    with listening() as taken:
        port = taken.getsockname()[1]
        assert checks.check_port(f"127.0.0.1:{port}").level == "fail"
        assert checks.check_port(f"127.0.0.1:{port}", runs=True).level == "ok"
        found = levels(checks.check_network(graph_of(tmp_path, 7400, 7401), 0, listen=f"0.0.0.0:{port}", runs=True))
        assert found["own port"] == "ok", "the port is that of --listen, not the one of the graph file"
    check = checks.check_port(f"127.0.0.1:{port}", runs=True)
    assert check.level == "warn" and "though the peer runs" in check.found


def test_certificates_that_end_soon_are_named(tmp_path):
    graph = Graph(tuple(Node(i, f"127.0.0.1:{7400 + i}") for i in range(3)), ((0, 1), (0, 2)))
    assert checks.check_certificates(graph) == []
    pinned = pin(graph, [make_certificate("federation", i, days=days)[1] for i, days in ((0, 700), (1, 12), (2, 700))])
    assert [check.level for check in checks.check_certificates(pinned)] == ["warn"]
    (check,) = checks.check_certificates(pinned, (0, 1))
    assert check.level == "warn" and "the certificate of peer 1 ends on" in check.found and "in 12 days" in check.found
    assert [check.level for check in checks.check_certificates(pinned, (0, 2))] == ["ok"]
    save_graph(pinned, tmp_path / "graph.json")
    assert levels(checks.check_network(tmp_path / "graph.json", 2))["certificates"] == "ok"
    assert levels(checks.check_network(tmp_path / "graph.json", 0))["certificates"] == "warn"


def test_a_name_without_an_address_fails():
    check = checks.check_reachable(1, "no-such-host.invalid:7400")
    assert check.level == "fail" and "has no address" in check.found


def test_an_address_without_an_answer_is_a_warning_after_the_timeout():
    """Method: a listener with a full queue does not answer further connections."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        check = checks.check_reachable(1, f"127.0.0.1:{address[1]}", timeout_s=0.2)
        for filler in fillers:
            filler.close()
    assert check.level == "warn" and "no answer in 0.2 s" in check.found


def test_bad_graph_file_and_unknown_id_fail(tmp_path):
    assert levels(checks.check_network(tmp_path / "none.json", None)) == {"graph file": "fail"}
    assert levels(checks.check_network(graph_of(tmp_path, 7400, 7401), 9)) == {"graph file": "fail"}


def test_a_missing_gpu_fails_only_if_requested():
    assert checks.check_device("cuda:99").level == "fail"
    assert checks.check_device("auto").level == "ok"


def test_a_low_limit_of_open_files_fails():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert checks.check_open_files(1).level == "ok"
    assert checks.check_open_files(soft).level == "fail"


def test_more_threads_than_cores_is_a_warning(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    assert checks.check_threads().level == "warn"


def test_a_disk_that_cannot_be_written_fails():
    assert levels(checks.check_disk(Path("/proc/self")))["disk writing"] == "fail"


def test_json_and_exit_codes(app, tmp_path):
    result = CliRunner().invoke(app, ["--json", "--state-dir", str(tmp_path)])
    assert result.exit_code == 0 and json.loads(result.stdout)["healthy"] is True
    result = CliRunner().invoke(app, ["--json", "--neighbors", str(tmp_path / "none.json")])
    assert result.exit_code == 1 and json.loads(result.stdout)["healthy"] is False


def test_the_table_shows_the_problem_and_the_fix(app, tmp_path):
    result = CliRunner().invoke(app, ["--device", "cuda:99"], env={"COLUMNS": "200"})
    assert result.exit_code == 1 and "cuda:99 requested" in result.stdout and "use --device cpu" in result.stdout

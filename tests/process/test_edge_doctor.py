"""Goal: `peer doctor` tests every edge of a peer over its route, in both directions, and marks no neighbor's record.

Method: real peers with keys run without the peer under test. Times are not asserted, only that they were measured.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tools.histories import lines_of
from tools.http_proxies import Proxies
from tools.running import behind_nat, on_loopback, running_peer, until
from tools.warm_parent import executed

from coordinator_free_bootstrap import Graph, Relay, make_graph, parse_manifest, save_graph
from peer.identity.files import keygen, load_key_pair
from peer.identity.pinning import pin
from peer.ops.deploy.keys import create_keys
from peer.store.history import read_history
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.process

RUN = {
    "rounds": 100_000,
    "model_options": {"hidden": 16},
    "start": {"wait_for": "deadline", "deadline_s": 2.0},
    "timeouts": {"suspicion_s": 10.0, "round_deadline_s": 100.0},
}


def prepared(home: Path, graph: Graph) -> Graph:
    observer = load_key_pair(keygen(home / "keys/observer", graph.manifest.federation, "me"))
    graph = pin(create_keys(graph, home / "keys"), [observer.certificate])
    save_graph(graph, home / "graph.json")
    return graph


def rounds(home: Path, peer_id: int) -> list[dict[str, Any]]:
    return lines_of(StateDir.of_peer(home, peer_id).history, "round")


def doctor(home: Path, peer_id: int, *options: object) -> dict[str, Any]:
    words = ["doctor", "--neighbors", home / "graph.json", "--id", peer_id]
    words += ["--certs", home / f"keys/peer-{peer_id}", "--state-dir", home, "--json", *options]
    done = executed(*words)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    return json.loads(done.stdout)


def start(stack: ExitStack, home: Path, *peers: int) -> None:
    for i in peers:
        stack.enter_context(running_peer(i, home, "--certs", home / f"keys/peer-{i}"))
    logs = [home / f"{i}.log" for i in peers]
    for i in peers:
        until(lambda i=i: len(rounds(home, i)) >= 2, f"peer {i} completes rounds", logs=logs)


def fold_each_other(home: Path, *peers: int) -> None:
    """Wait until the last round of each peer has folded a neighbor; the first ones may be over before the neighbors are met."""
    until(lambda: all(rounds(home, i)[-1]["folded"] for i in peers), "they fold each other")


@pytest.mark.slow
def test_both_directions_of_direct_edges_are_measured(tmp_path: Path) -> None:
    prepared(tmp_path, on_loopback(make_graph("complete", 4, manifest=parse_manifest(RUN, "test"))))
    with ExitStack() as stack:
        start(stack, tmp_path, 1, 2)  # peer 3 does not run
        fold_each_other(tmp_path, 1, 2)
        found = doctor(tmp_path, 0)
        edges = {edge["neighbor"]: edge for edge in found["edges"]}
        for neighbor in (1, 2):
            edge = edges[neighbor]
            assert (edge["route"], edge["outgoing"], edge["incoming"]) == ("direct", "", "")
            assert edge["round_trip_s"] > 0 and edge["upload"] > 0 and edge["download"] > 0 and edge["round_s"] > 0
        assert edges[3]["outgoing"] == "connection refused" and edges[3]["upload"] is None
        levels = {check["name"]: check["level"] for check in found["checks"]}
        assert (levels["edge to peer 1"], levels["edge to peer 3"], levels["cost of a round"]) == ("ok", "warn", "ok")
        cost = found["round"]
        model_bytes = rounds(tmp_path, 1)[-1]["payload_bytes_sent"]  # one model to one live neighbor
        assert cost["sent_bytes"] == 3 * model_bytes
        assert cost["round_s"] >= cost["transfer_s"] > 0 and cost["day_bytes"] > 0
        for neighbor in (1, 2):
            lines = read_history(StateDir.of_peer(tmp_path, neighbor).history)
            assert not any(
                line["kind"] == "neighbor" and line["neighbor"] == 0 and line["state"] == "alive" for line in lines
            )


def test_a_running_peer_is_tested_by_what_its_neighbors_see(tmp_path: Path) -> None:
    prepared(tmp_path, on_loopback(make_graph("line", 2, manifest=parse_manifest(RUN, "test"))))
    with ExitStack() as stack:
        start(stack, tmp_path, 0, 1)
        fold_each_other(tmp_path, 0, 1)
        elsewhere = ("--certs", tmp_path / "keys/peer-0")
        found = doctor(tmp_path, 0, *elsewhere)
        (edge,) = found["edges"]
        assert (edge["route"], edge["outgoing"], edge["incoming"]) == ("direct", "", "")
        checks = {check["name"]: check for check in found["checks"]}
        assert found["healthy"] and checks["own port"]["level"] == "ok", "before, the peer's own port was a failure"
        assert "the running peer" in checks["own port"]["found"]
        assert checks["certificates"]["level"] == "ok"


@pytest.mark.slow
def test_a_tunnel_and_a_relay_are_named_and_tested(tmp_path: Path) -> None:
    """Peer 0 only dials. It is called over its tunnel, and reaches peer 2, which only dials too, via peer 1."""
    graph = on_loopback(make_graph("complete", 3, manifest=parse_manifest(RUN, "test")))
    prepared(tmp_path, behind_nat(graph, 0, 2, via=[(0, 2, 1)]))
    with ExitStack() as stack:
        start(stack, tmp_path, 1, 2)
        fold_each_other(tmp_path, 1, 2)
        edges = {edge["neighbor"]: edge for edge in doctor(tmp_path, 0)["edges"]}
        assert {n: edge["route"] for n, edge in edges.items()} == {1: "direct", 2: "via peer 1"}
        for edge in edges.values():
            assert (edge["outgoing"], edge["incoming"]) == ("", "")
            assert edge["upload"] > 0 and edge["download"] > 0


@pytest.mark.slow
def test_a_slow_relay_is_measured_beside_running_peers_that_do_not_notice(tmp_path: Path) -> None:
    """Before, a megabyte each way filled a relay of 60 kB/s for half a minute: the test failed, and heartbeats waited."""
    graph = on_loopback(make_graph("complete", 3, manifest=parse_manifest(RUN, "test")))
    graph = behind_nat(graph, 0, 2, via=[(0, 2, 1)])
    nodes = (replace(n, relay=Relay(60_000, 8)) if n.relay else n for n in graph.nodes)
    prepared(tmp_path, replace(graph, nodes=tuple(nodes)))
    with ExitStack() as stack:
        start(stack, tmp_path, 0, 1, 2)
        fold_each_other(tmp_path, 0, 1, 2)
        found = doctor(tmp_path, 0, "--state-dir", StateDir.of_peer(tmp_path, 0).root)
        edges = {edge["neighbor"]: edge for edge in found["edges"]}
        assert edges[2]["route"] == "via peer 1" and edges[2]["outgoing"] == edges[2]["incoming"] == ""
        assert 1_000 < edges[2]["upload"] <= 60_000 and 1_000 < edges[2]["download"] <= 60_000
        before = {i: len(rounds(tmp_path, i)) for i in range(3)}
        until(lambda: all(len(rounds(tmp_path, i)) > before[i] for i in range(3)), "the run continues")
        for i in range(3):
            lines = read_history(StateDir.of_peer(tmp_path, i).history)
            assert [line for line in lines if line["kind"] == "neighbor" and line["state"] in ("suspect", "dead")] == []


def test_without_a_key_the_edges_are_not_tested_and_it_says_why(tmp_path: Path) -> None:
    prepared(tmp_path, on_loopback(make_graph("line", 2)))
    found = doctor(tmp_path, 0, "--certs", tmp_path)
    (check,) = [check for check in found["checks"] if check["name"] == "edges"]
    assert check["level"] == "warn" and "not tested" in check["found"] and "--certs" in check["fix"]


@pytest.mark.slow
def test_edges_behind_a_proxy_are_named_and_tested(
    tmp_path: Path, proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peer 0 only dials, through a proxy with a password: the doctor says so, and an observer asks peers the same way.

    What each program answers, `test_http_proxy.py` tests.
    """
    graph = on_loopback(make_graph("complete", 3, manifest=parse_manifest(RUN, "test")))
    graph = prepared(tmp_path, behind_nat(graph, 0))
    proxy_options = ("--proxy", "--state-dir", StateDir.of_peer(tmp_path, 0).root)
    with ExitStack() as stack:
        proxy = stack.enter_context(proxies.running("squid", password=True))
        start(stack, tmp_path, 1, 2)
        fold_each_other(tmp_path, 1, 2)
        monkeypatch.setenv("https_proxy", proxy.url())
        found = doctor(tmp_path, 0, *proxy_options)
        for edge in found["edges"]:
            assert (edge["route"], edge["outgoing"], edge["incoming"]) == (f"proxy {proxy.address}", "", "")
            assert edge["upload"] > 0 and edge["download"] > 0
            assert proxy.asked_for(graph.node(edge["neighbor"]).address) >= 1
        checks = {check["name"]: check for check in found["checks"]}
        assert checks["proxy"]["level"] == "ok" and "peer 1" not in checks
        assert checks["edge to peer 1"]["found"].startswith(f"proxy {proxy.address}; out: answers")

        asked = proxy.connects(graph.node(1).address)
        rows = status(tmp_path, "--proxy")
        assert rows["1"]["phase"] == rows["2"]["phase"] == "running" and "only dials" in rows["0"]
        assert proxy.asked_for(graph.node(1).address, asked) > asked

        monkeypatch.setenv("https_proxy", proxy.url(""))  # without the password
        for edge in doctor(tmp_path, 0, *proxy_options)["edges"]:
            assert edge["outgoing"] == "the proxy demands another user or password (https_proxy)"
        assert "the proxy demands another user or password" in status(tmp_path, "--proxy")["1"]


def status(home: Path, *options: str) -> dict[str, Any]:
    done = executed("status", home / "graph.json", "--certs", home / "keys/observer", "--json", *options)
    assert done.returncode == 40 and done.stdout, done.stderr  # peer 0 does not answer
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_doctor_leaves_the_tunnels_of_a_running_peer_alone(tmp_path: Path) -> None:
    """Peer 0 only dials and has no port that would show that it runs: its state directory shows it."""
    graph = on_loopback(make_graph("line", 3, manifest=parse_manifest(RUN, "test")))
    prepared(tmp_path, behind_nat(graph, 1))
    with ExitStack() as stack:
        start(stack, tmp_path, 0, 1, 2)
        fold_each_other(tmp_path, 0, 1, 2)
        for edge in doctor(tmp_path, 1, "--state-dir", StateDir.of_peer(tmp_path, 1).root)["edges"]:
            assert (edge["route"], edge["outgoing"], edge["incoming"]) == ("direct", "", "")
        found = doctor(tmp_path, 0, "--state-dir", StateDir.of_peer(tmp_path, 0).root)
        (edge,) = found["edges"]
        assert edge["route"] == "tunnel" and "the running peer holds its tunnel" in edge["outgoing"]
        for neighbor in (0, 2):
            log = (tmp_path / f"{neighbor}.log").read_text()
            assert "peer doctor tests this address" not in log, "the doctor took the place of the running peer"


@pytest.mark.slow
def test_a_doctor_that_does_not_know_that_the_peer_runs_leaves_its_tunnels_alone(tmp_path: Path) -> None:
    """Another --state-dir, as on another machine with the same key: the neighbors keep the tunnels, and say why."""
    graph = on_loopback(make_graph("line", 3, manifest=parse_manifest(RUN, "test")))
    prepared(tmp_path, behind_nat(graph, 1))
    with ExitStack() as stack:
        start(stack, tmp_path, 0, 1, 2)
        fold_each_other(tmp_path, 0, 1, 2)
        edges = doctor(tmp_path, 1, "--state-dir", tmp_path / "elsewhere")["edges"]
        assert len(edges) == 2
        for edge in edges:
            assert (edge["route"], edge["outgoing"]) == ("direct", "")
            assert "got one of the running peer, which a probe does not replace" in edge["incoming"]
        for neighbor in (0, 2):
            log = (tmp_path / f"{neighbor}.log").read_text()
            assert "peer doctor tests this address" not in log, "the doctor took the place of the running peer"
            before = len(rounds(tmp_path, neighbor))
            until(lambda n=neighbor, b=before: folds_since(tmp_path, n, b), "the run continues with peer 1")


def folds_since(home: Path, peer_id: int, before: int) -> bool:
    """Return whether a peer has folded a model of peer 1 in a round after the next one."""
    return any(1 in {row[0] for row in line["folded"]} for line in rounds(home, peer_id)[before + 1 :])

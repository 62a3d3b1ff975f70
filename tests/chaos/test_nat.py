"""Goal: peers behind address translation and proxies take full part, and no loss of a connection changes a bit.

Method: real peers in network namespaces on a bridge, the internet of the test. A third of them sit behind routers: private
addresses, iptables MASQUERADE, nothing comes in. One more reaches nothing but an HTTP proxy, and one pair has a relay. The models
equal, bit for bit, those of the simulated backend, which has no network. Then a router forgets its connections in the middle
of a transfer or while they are idle, and gets another public address, and peers of each kind end by SIGKILL.
Needs root, ip, iptables, tc, ss, conntrack and permission to make namespaces.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tools.beds import final_models, same_models
from tools.histories import lines_of
from tools.http_proxies import Proxies, Proxy
from tools.namespaces import Bridge, ip, why_not
from tools.running import behind_nat, running_peer, until
from tools.warm_parent import Forked

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.lab.simulated import simulate
from peer.ops.deploy.keys import at_addresses, create_keys
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.chaos

PORT = 7400
PROXIED = 5
RUN: dict[str, Any] = {
    "rounds": 4,
    "model_options": {"hidden": 16},
    "split_options": {"samples_per_peer": 90, "test_per_peer": 40},
    "start": {"wait_for": "all", "deadline_s": 120.0},
    "timeouts": {"suspicion_s": 60.0, "round_deadline_s": 240.0},
}


FIREWALL = (
    "-P INPUT DROP",
    "-P FORWARD DROP",
    "-A FORWARD -m conntrack --ctstate INVALID -j DROP",
    "-A FORWARD -i lan -j ACCEPT",
    "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT",
    "-t nat -A POSTROUTING -o wire -j MASQUERADE",
)
PROXY_ONLY = (
    "-P FORWARD DROP",
    "-A INPUT -i wire -m conntrack --ctstate NEW -j DROP",
)


class Internet:
    """The peers of a graph: those that can be dialed on the bridge, each other one alone behind its router.

    Args:
        home: of the run.
        stack: ends what was started.
        graph: of the run, without addresses.
        proxied: peers whose router forwards nothing; a proxy runs on it.
    """

    def __init__(
        self,
        home: Path,
        stack: ExitStack,
        graph: Graph,
        proxied: dict[int, Callable[..., AbstractContextManager[Proxy]]] | None = None,
    ) -> None:
        self.home, self._stack, self.bridge = home, stack, Bridge(stack)
        self.proxies: dict[int, Proxy] = {}
        dialers = [node.id for node in graph.nodes if node.dials_only]
        addressed = at_addresses(graph, f"10.99.1.{{id}}:{PORT}")
        nodes = (replace(node, address="") if node.dials_only else node for node in addressed.nodes)
        self.graph = create_keys(replace(addressed, nodes=tuple(nodes)), home / "keys")
        save_graph(self.graph, home / "graph.json")
        for peer_id in graph.ids:
            if peer_id in dialers:
                start_proxy = (proxied or {}).get(peer_id)
                self._behind_router(peer_id, PROXY_ONLY if start_proxy else FIREWALL)
                if start_proxy:
                    inside = self.bridge.inside(self.router(peer_id))
                    self.proxies[peer_id] = stack.enter_context(start_proxy(host="192.168.1.1", prefix=inside))
            else:
                self.bridge.plug(peer_id, f"10.99.1.{peer_id}/16")

    def _behind_router(self, peer_id: int, rules: tuple[str, ...]) -> None:
        """Let a router translate what the peer sends; it drops what it cannot assign to a connection, without an answer."""
        bridge, router = self.bridge, self.router(peer_id)
        bridge.plug(router, f"10.99.1.{peer_id}/16")
        bridge.add(peer_id)
        bridge.wire(peer_id, "wire", router, "lan")
        ip("-n", bridge.of(router), "address", "add", "192.168.1.1/24", "dev", "lan")
        ip("-n", bridge.of(peer_id), "address", "add", "192.168.1.2/24", "dev", "wire")
        ip("-n", bridge.of(peer_id), "route", "add", "default", "via", "192.168.1.1")
        bridge.run(router, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.netfilter.nf_conntrack_tcp_loose=0")
        for rule in rules:
            bridge.run(router, "iptables", *rule.split())

    def router(self, peer_id: int) -> str:
        return f"r{peer_id}"

    def start(self, *ids: int) -> list[Forked]:
        """Start peers, by default all; SIGTERM ends them after the test."""
        return [self._stack.enter_context(self._peer(peer_id)) for peer_id in ids or self.graph.ids]

    def _peer(self, peer_id: int) -> AbstractContextManager[Forked]:
        options: list[object] = ["--certs", self.home / "keys" / f"peer-{peer_id}"]
        environment = {}
        if proxy := self.proxies.get(peer_id):
            options.append("--proxy")
            environment["https_proxy"] = proxy.url()
        namespace = self.bridge.of(peer_id)
        return running_peer(peer_id, self.home, *options, namespace=namespace, environment=environment)

    def history(self, peer_id: int, kind: str) -> list[dict[str, Any]]:
        return lines_of(StateDir.of_peer(self.home, peer_id).history, kind)

    def until(self, holds: Any, what: str) -> Any:
        return until(holds, what, logs=self.home.glob("*.log"), poll_s=0.05)

    def finish(self, processes: list[Forked]) -> None:
        """Wait for the end of all peers; all take part in every round, and the models are those without a network."""
        self.until(lambda: all(process.poll() is not None for process in processes), "all peers end")
        assert [process.returncode for process in processes] == [0] * len(processes)
        for peer_id in self.graph.ids:
            rounds = self.history(peer_id, "round")
            assert {line["round_index"] for line in rounds} == {*range(self.graph.manifest.rounds)}
            assert not any(line["missing"] for line in rounds)  # a killed peer repeats what it did after its checkpoint
            assert "dead" not in {line["state"] for line in self.history(peer_id, "neighbor")}
        simulate(self.graph, self.home / "simulated")
        same_models(*(final_models(place, self.graph) for place in (self.home, self.home / "simulated")))

    def reaches(self, peer_id: int, address: str) -> bool:
        """Return whether a peer gets an answer of any kind from an address: a connection, or its refusal."""
        host, _, port = address.rpartition(":")
        script = f"import socket; s = socket.socket(); s.settimeout(3); print(s.connect_ex(('{host}', {port})))"
        return int(self.bridge.run(peer_id, sys.executable, "-c", script)) in (0, errno.ECONNREFUSED)

    def dropped(self, peer_id: int) -> int:
        """Return how many packets a router did not forward."""
        rows = self.bridge.run(self.router(peer_id), "iptables", "-nvxL", "FORWARD").splitlines()
        return int(rows[0].partition("policy DROP ")[2].split()[0])

    def connections(self, peer_id: int) -> int:
        """Return how many connections with peers a router knows."""
        return self.bridge.run(self.router(peer_id), "conntrack", "-L", "-p", "tcp", "--dport", PORT).count("dport=")

    def unassigned(self, peer_id: int) -> int:
        """Return how many packets from inside a router dropped, since they belong to no connection that it knows."""
        rows = self.bridge.run(self.router(peer_id), "iptables", "-nvxL", "FORWARD").splitlines()
        return sum(int(row.split()[0]) for row in rows if "INVALID" in row)

    def seen_from(self, peer_id: int) -> set[str]:
        """Return the foreign ends of the connections that a peer has accepted, as host:port."""
        rows = self.bridge.run(peer_id, "ss", "-Htn", "state", "established", "sport", "=", f":{PORT}").splitlines()
        return {row.split()[3] for row in rows}

    def bytes_out(self, peer_id: int) -> int:
        """Return how many bytes a router has sent to the internet so far."""
        place = "/sys/class/net/wire/statistics/tx_bytes"
        return int(self.bridge.run(self.router(peer_id), "cat", place))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    if reason := why_not("conntrack", "tc", "ss"):
        pytest.skip(reason)
    with ExitStack() as each:
        yield each


STAR = make_graph("star", 6, manifest=parse_manifest(RUN, "test"))
RING = make_graph("ring", 6, manifest=parse_manifest(RUN, "test"))


@pytest.mark.parametrize(
    ("graph", "kind", "password"),
    [
        pytest.param(
            behind_nat(replace(STAR, edges=(*STAR.edges, (2, 4))), 2, 4, 5, via=((2, 4, 0),)),
            *("tinyproxy", False),
            id="star-tinyproxy",
        ),
        pytest.param(
            behind_nat(replace(RING, edges=(*RING.edges, (0, 2))), 1, 2, 5, via=((1, 2, 0),)),
            *("squid", True),
            id="ring-squid-with-a-password",
        ),
    ],
)
def test_models_are_those_of_a_run_without_address_translation(
    stack: ExitStack, tmp_path: Path, proxies: Proxies, graph: Graph, kind: str, password: bool
) -> None:
    """A third of the peers is translated, peer 5 reaches a proxy alone, and one pair has peer 0 as its relay."""
    net = Internet(tmp_path, stack, graph, proxied={PROXIED: partial(proxies.running, kind, password=password)})
    address = net.graph.node(0).address
    assert net.reaches(2, address)
    assert not net.reaches(PROXIED, address) and net.dropped(PROXIED), "peer 5 gets out without the proxy"
    net.finish(net.start())
    for neighbor in net.graph.neighbors(PROXIED):
        assert net.proxies[PROXIED].connects(net.graph.node(neighbor).address) >= 1


SLOW_BITS = "8mbit"  # a model of 1 MB is under way for a second, so that a fault hits a transfer
FAULTS_RUN: dict[str, Any] = {
    **RUN,
    "rounds": 8,
    "model_options": {"hidden": 3000},
    "timeouts": {"suspicion_s": 30.0, "round_deadline_s": 240.0},
}


def test_forgotten_connections_and_a_new_public_address_change_no_bit(stack: ExitStack, tmp_path: Path) -> None:
    """The router of peer 1 drops packets of connections that it does not know, so no packet tells the ends of the loss."""
    graph = behind_nat(make_graph("line", 3, manifest=parse_manifest(FAULTS_RUN, "test")), 1)
    net = Internet(tmp_path, stack, graph)
    router = net.router(1)
    for place, interface in ((router, "wire"), ("hub", f"to{router}")):
        limit = ("rate", SLOW_BITS, "burst", "64kb", "latency", "400ms")
        net.bridge.run(place, "tc", "qdisc", "add", "dev", interface, "root", "tbf", *limit)
    processes = net.start()
    net.until(lambda: len(net.history(1, "round")) >= 2, "two rounds")

    before = net.seen_from(0)
    in_transfer(net)
    net.bridge.run(router, "conntrack", "-F")
    net.until(lambda: net.seen_from(0) - before, "peer 1 connects again after its router forgot the connections")

    rounds = len(net.history(1, "round"))
    net.until(lambda: len(net.history(1, "round")) > rounds, "a round after it")
    in_transfer(net)
    ip("-n", net.bridge.of(router), "address", "delete", "10.99.1.1/16", "dev", "wire")
    ip("-n", net.bridge.of(router), "address", "add", "10.99.200.1/16", "dev", "wire")
    net.until(lambda: any("10.99.200.1:" in end for end in net.seen_from(0)), "peer 1 connects from its new address")
    assert len(net.history(1, "round")) < graph.manifest.rounds, "the run was over before the last fault"
    net.finish(processes)


def in_transfer(net: Internet) -> None:
    """Wait until peer 1 sends a model: many bytes leave its router between two looks."""
    looks = [net.bytes_out(1)]

    def moving() -> bool:
        looks.append(net.bytes_out(1))
        return looks[-1] - looks[-2] > 20_000

    net.until(moving, "peer 1 sends a model")


LONG_RUN: dict[str, Any] = {**RUN, "rounds": 60}
ONE_DIALER = behind_nat(make_graph("line", 3, manifest=parse_manifest(LONG_RUN, "test")), 1)
RELAYED = behind_nat(make_graph("complete", 3, manifest=parse_manifest(LONG_RUN, "test")), *(1, 2), via=((1, 2, 0),))


@pytest.mark.parametrize(
    ("graph", "killed"),
    [
        pytest.param(ONE_DIALER, 1, id="dialing-end"),
        pytest.param(ONE_DIALER, 0, id="listening-end"),
        pytest.param(RELAYED, 0, id="relay"),
    ],
)
def test_a_killed_peer_comes_back_and_changes_no_bit(
    stack: ExitStack, tmp_path: Path, graph: Graph, killed: int
) -> None:
    net = Internet(tmp_path, stack, graph)
    processes = net.start()
    net.until(lambda: len(net.history(killed, "round")) >= 3, "three rounds")
    processes[killed].kill()
    assert processes[killed].wait() == -9
    assert len(net.history(killed, "round")) < graph.manifest.rounds, "the run was over before the fault"
    (processes[killed],) = net.start(killed)
    net.finish(processes)
    assert len(net.history(killed, "start")) == 2


IDLE_RUN: dict[str, Any] = {
    **RUN,
    "timeouts": {"suspicion_s": 45.0, "round_deadline_s": 240.0},
}
ESTABLISHED = "net.netfilter.nf_conntrack_tcp_timeout_established"


def test_connections_that_a_router_forgets_while_they_are_idle_change_no_bit(stack: ExitStack, tmp_path: Path) -> None:
    """Peers 0 and 1 wait for peer 2, with nothing but heartbeats between them, longer than the router remembers."""
    net = Internet(tmp_path, stack, behind_nat(make_graph("line", 3, manifest=parse_manifest(IDLE_RUN, "test")), 1))
    router = net.router(1)
    processes = net.start(0, 1)
    net.until(lambda: any(line["state"] == "alive" for line in net.history(0, "neighbor")), "peer 0 meets peer 1")
    before, remembered = net.seen_from(0), net.bridge.run(router, "sysctl", "-n", ESTABLISHED).strip()
    assert before and net.connections(1)
    net.bridge.run(router, "sysctl", "-qw", f"{ESTABLISHED}=1")
    net.until(lambda: not net.connections(1), "the router forgets the connections")
    net.until(lambda: net.unassigned(1), "the router drops packets of the forgotten connections")
    net.bridge.run(router, "sysctl", "-qw", f"{ESTABLISHED}={remembered}")
    net.until(lambda: net.seen_from(0) - before, "peer 1 connects again")
    net.finish(processes + net.start(2))

"""Goal: a pulled cable and a firewall have the effects that the fault proxies show.

Method: three peers with keys, each in its own network namespace, on a bridge in a fourth one. A link is set down, or iptables
drops connections to one peer. Needs root, ip, iptables and permission to make namespaces; the machine's own network does
not change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tools.running import running_peer, until

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.deploy.keys import at_addresses, create_keys
from peer.store.history import read_history
from peer.store.state_dir import StateDir

missing = [program for program in ("ip", "iptables") if shutil.which(program) is None]
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.geteuid() != 0 or bool(missing), reason=f"needs root, ip and iptables; missing: {missing}"),
]

PEERS, PORT = 3, 7400
RUN = {
    "rounds": 100_000,
    "start": {"rule": "all", "deadline_s": 4.0},
    "timeouts": {"heartbeat_s": 0.5, "suspicion_s": 2.0},
}


def ip(*words: object) -> None:
    """Run ip; its output is the error message if it fails."""
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {words}: {done.stderr}"


class Net:
    """Peers in namespaces, with their state below `home`."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self._stack = home, stack
        self._name = f"cf{os.getpid()}"
        graph = make_graph("complete", PEERS, manifest=parse_manifest(RUN, "test"))
        graph = at_addresses(graph, f"10.99.0.{{id}}:{PORT}")  # .0 is a host address in a /16
        save_graph(create_keys(graph, home / "keys"), home / "graph.json")
        self._namespace("hub")
        ip("-n", self.of("hub"), "link", "add", "hub", "type", "bridge")
        ip("-n", self.of("hub"), "link", "set", "hub", "up")
        for i in range(PEERS):
            self._namespace(i)
            ip("link", "add", "wire", "netns", self.of(i), "type", "veth", "peer", f"to{i}", "netns", self.of("hub"))
            ip("-n", self.of("hub"), "link", "set", f"to{i}", "master", "hub", "up")
            ip("-n", self.of(i), "address", "add", f"10.99.0.{i}/16", "dev", "wire")
            ip("-n", self.of(i), "link", "set", "wire", "up")

    def of(self, which: int | str) -> str:
        """Return the name of a namespace."""
        return f"{self._name}-{which}"

    def _namespace(self, which: int | str) -> None:
        ip("netns", "add", self.of(which))
        self._stack.callback(ip, "netns", "delete", self.of(which))

    def run(self, peer_id: int) -> None:
        """Start a peer; SIGTERM ends it after the test."""
        certs, inside = self.home / "keys" / f"peer-{peer_id}", ("ip", "netns", "exec", self.of(peer_id))
        self._stack.enter_context(running_peer(peer_id, self.home, "--certs", certs, prefix=inside))

    def history(self, peer_id: int, kind: str) -> list[dict[str, Any]]:
        return [line for line in read_history(StateDir.of_peer(self.home, peer_id).history) if line["kind"] == kind]

    def saw(self, peer_id: int, neighbor: int, state: str) -> bool:
        rows = self.history(peer_id, "neighbor")
        return any(line["neighbor"] == neighbor and line["state"] == state for line in rows)

    def deaths(self, peer_id: int, neighbor: int) -> int:
        """Return how often a peer marked a neighbor dead; each costs one wait."""
        rows = self.history(peer_id, "neighbor")
        return sum(line["neighbor"] == neighbor and line["state"] == "dead" for line in rows)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        until(holds, what, logs=self.home.glob("*.log"))

    def folds(self, peer_id: int, neighbor: int) -> bool:
        """Return whether a peer's last round folded a model of a neighbor."""
        rounds = self.history(peer_id, "round")
        return bool(rounds) and neighbor in {row[0] for row in rounds[-1]["folded"]}


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Skip the tests where root cannot make network namespaces, as in most containers."""
    name = f"cf{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"root cannot make network namespaces here: {made.stderr.strip()}")
    ip("netns", "delete", name)


@pytest.fixture
def net(namespaces: None, tmp_path: Path) -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(tmp_path, stack)


def test_a_pulled_cable_delays_each_peer_once_and_peers_rejoin_afterwards(net: Net) -> None:
    for i in range(PEERS):
        net.run(i)
    net.until(lambda: len(net.history(0, "round")) >= 5 and net.folds(0, 1) and net.folds(1, 0), "all exchange models")
    ip("-n", net.of("hub"), "link", "set", "to1", "down")
    net.until(lambda: net.saw(0, 1, "dead") and net.saw(1, 0, "dead"), "both ends mark the other dead")
    before = len(net.history(0, "round"))
    net.until(lambda: len(net.history(0, "round")) >= before + 10, "the others continue")
    ip("-n", net.of("hub"), "link", "set", "to1", "up")
    net.until(lambda: net.folds(0, 1) and net.folds(1, 0), "they exchange models again")
    assert net.deaths(0, 1) == net.deaths(1, 0) == 1


def firewall(net: Net, action: str) -> None:
    """Append (-A) or delete (-D) the rule that blocks connections to peer 1; its own connections pass."""
    rule = ["INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "DROP"]
    subprocess.run(["ip", "netns", "exec", net.of(1), "iptables", action, *rule], check=True)


def test_no_peer_waits_for_a_peer_that_can_connect_but_cannot_be_reached(net: Net) -> None:
    firewall(net, "-A")
    for i in range(PEERS):
        net.run(i)
    net.until(lambda: len(net.history(0, "round")) >= 10 and bool(net.history(1, "caught_up")), "all continue")
    assert not net.saw(0, 1, "alive") and not net.folds(0, 1) and net.folds(0, 2)
    net.until(
        lambda: "peer 1 sends messages but does not answer ours" in (net.home / "0.log").read_text(),
        "a log line says so",
    )
    firewall(net, "-D")
    net.until(lambda: net.folds(0, 1) and net.folds(1, 0), "they exchange models once the port is open")


def test_a_firewall_that_starts_during_the_run_delays_the_others_once(net: Net) -> None:
    for i in range(PEERS):
        net.run(i)
    net.until(lambda: len(net.history(0, "round")) >= 5 and net.folds(0, 1) and net.folds(1, 0), "all exchange models")
    firewall(net, "-A")
    net.until(lambda: net.saw(0, 1, "dead") and net.saw(2, 1, "dead"), "the others mark peer 1 dead")
    before = len(net.history(0, "round"))
    net.until(lambda: len(net.history(0, "round")) >= before + 20, "they continue")
    net.until(lambda: bool(net.history(1, "caught_up")), "peer 1 continues with pulled models")
    firewall(net, "-D")
    net.until(lambda: net.folds(0, 1) and net.folds(1, 0), "they exchange models once the port is open")
    assert net.deaths(0, 1) == net.deaths(2, 1) == 1

"""Goal: a pulled cable and a firewall have the effects that the fault proxies show.

Method: three peers with keys, each in its own network namespace, on a bridge in a fourth one. A link is set down, or iptables
drops connections to one peer. Needs root, ip, iptables and permission to make namespaces; the machine's own network does
not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tools.histories import lines_of
from tools.namespaces import Bridge, command, ip, why_not
from tools.running import running_peer, until

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.ops.deploy.keys import at_addresses, create_keys
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.chaos

PEERS, PORT = 3, 7400
RUN = {
    "rounds": 100_000,
    "start": {"wait_for": "all", "deadline_s": 4.0},
    "timeouts": {"suspicion_s": 6.0},
}


class Net:
    """Peers in namespaces, with their state below `home`."""

    def __init__(self, home: Path, stack: ExitStack, *, peers: int = PEERS, run: dict[str, Any] = RUN) -> None:
        self.home, self._stack, self._bridge = home, stack, Bridge(stack)
        graph = make_graph("complete", peers, manifest=parse_manifest(run, "test"))
        graph = at_addresses(graph, f"10.99.0.{{id}}:{PORT}")  # .0 is a host address in a /16
        save_graph(create_keys(graph, home / "keys"), home / "graph.json")
        self.of = self._bridge.of
        for i in range(peers):
            self._bridge.plug(i, f"10.99.0.{i}/16")

    def run(self, peer_id: int) -> None:
        """Start a peer; SIGTERM ends it after the test."""
        certs = self.home / "keys" / f"peer-{peer_id}"
        self._stack.enter_context(running_peer(peer_id, self.home, "--certs", certs, namespace=self.of(peer_id)))

    def history(self, peer_id: int, kind: str) -> list[dict[str, Any]]:
        return lines_of(StateDir.of_peer(self.home, peer_id).history, kind)

    def saw(self, peer_id: int, neighbor: int, state: str) -> bool:
        rows = self.history(peer_id, "neighbor")
        return any(line["neighbor"] == neighbor and line["state"] == state for line in rows)

    def deaths(self, peer_id: int, neighbor: int) -> int:
        """Return how often a peer marked a neighbor dead; each costs one wait, whose length the simulation bounds."""
        rows = self.history(peer_id, "neighbor")
        return sum(line["neighbor"] == neighbor and line["state"] == "dead" for line in rows)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        until(holds, what, logs=self.home.glob("*.log"))

    def folds(self, peer_id: int, neighbor: int) -> bool:
        """Return whether a peer's last round folded a model of a neighbor."""
        rounds = self.history(peer_id, "round")
        return bool(rounds) and neighbor in {row[0] for row in rounds[-1]["folded"]}


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    if reason := why_not():
        pytest.skip(reason)
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


def firewall(net: Net, action: str) -> int:
    """Append (-A) or delete (-D) the rule that blocks connections to peer 1; return how many packets it has dropped so far."""
    run = partial(command, "ip", "netns", "exec", net.of(1), "iptables")
    rows = run("-nvxL", "INPUT").splitlines()[2:]
    run(action, "INPUT", "-p", "tcp", "--dport", PORT, "-j", "DROP")
    return int(rows[0].split()[0]) if rows else 0


def test_a_peer_with_a_closed_port_takes_part_over_tunnels_that_it_opens_by_itself(net: Net) -> None:
    firewall(net, "-A")
    for i in range(PEERS):
        net.run(i)
    net.until(lambda: all(net.folds(i, 1) and net.folds(1, i) for i in (0, 2)), "all exchange models with peer 1")
    log = (net.home / "1.log").read_text()
    assert all(f"peer {i} cannot dial this peer, which opens a tunnel to it" in log for i in (0, 2))
    assert firewall(net, "-D") > 0, "the firewall dropped nothing"


def test_a_firewall_that_starts_during_the_run_delays_the_others_once(net: Net) -> None:
    for i in range(PEERS):
        net.run(i)
    net.until(lambda: len(net.history(0, "round")) >= 5 and net.folds(0, 1) and net.folds(1, 0), "all exchange models")
    firewall(net, "-A")
    net.until(lambda: net.saw(0, 1, "dead") and net.saw(2, 1, "dead"), "the others mark peer 1 dead")
    before = len(net.history(0, "round"))
    net.until(lambda: len(net.history(0, "round")) >= before + 5, "they continue")
    net.until(lambda: net.folds(0, 1) and net.folds(1, 0), "they exchange models over the tunnel that peer 1 opens")
    assert firewall(net, "-D") > 0, "the firewall dropped nothing"
    assert net.deaths(0, 1) == net.deaths(2, 1) == 1


def shape(net: Net) -> Callable[[], int]:
    """Limit both directions of peer 1's cable to 512 kbit/s; return a function that counts the packets that had to wait."""
    ends = ((net.of(1), "wire"), (net.of("hub"), "to1"))
    for namespace, device in ends:
        tbf = ("root", "tbf", "rate", "512kbit", "burst", "3000", "latency", "2000ms")
        command("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, *tbf)

    def waited() -> int:
        shown = [command("ip", "netns", "exec", n, "tc", "-s", "qdisc", "show", "dev", d) for n, d in ends]
        return min(int(text.partition("overlimits ")[2].split()[0]) for text in shown)

    return waited


def lose(net: Net) -> Callable[[], int]:
    """Drop a fifth of all packets to peer 1; return a function that counts them."""
    run = partial(command, "ip", "netns", "exec", net.of(1), "iptables")
    dice = ("-p", "tcp", "-m", "statistic", "--mode", "random", "--probability", "0.2", "-j", "DROP")
    run("-A", "INPUT", "-i", "wire", *dice)
    return lambda: int(run("-nvxL", "INPUT").splitlines()[2].split()[0])


@pytest.mark.slow
@pytest.mark.parametrize("fault", [shape, lose])
def test_slow_and_lossy_links_that_nobody_declared_carry_every_model(
    tmp_path: Path, fault: Callable[[Net], Callable[[], int]]
) -> None:
    """One frame of such a model takes twice the suspicion time on the slow link: both ends marked each other dead."""
    if reason := why_not("tc"):
        pytest.skip(reason)
    timeouts = {"suspicion_s": 5.0}
    big = {"model_options": {"hidden": 2000}, "local_epochs": 1, "clusters": 1, "algorithm": "dfedavg", "split": "iid"}
    run = {"rounds": 3, "start": {"wait_for": "all", "deadline_s": 60.0}, "timeouts": timeouts, **big}
    with ExitStack() as stack:
        net = Net(tmp_path, stack, peers=2, run=run)
        count = fault(net)
        for i in range(2):
            net.run(i)
        net.until(lambda: all(net.history(i, "end") for i in range(2)), "both complete the run")
        for i in range(2):
            assert [[row[0] for row in line["folded"]] for line in net.history(i, "round")] == [[1 - i]] * 3
        assert count() > 10, "the fault never came"

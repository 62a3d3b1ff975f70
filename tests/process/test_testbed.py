"""Goal: real processes compute the same models bit for bit in every run, forked or started separately.

Method: testbeds of a few rounds on the bundled digits; final model files are compared as arrays.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tools import invariants
from tools.beds import Bed, same_models
from tools.ports import part_of
from tools.running import ends, running_peer, until

from coordinator_free_bootstrap import make_graph, save_graph
from peer.bed.testbed.ports import free_ports
from peer.bed.testbed.testbed import Supervisor

pytestmark = pytest.mark.process

Make = Callable[..., Bed]


def test_testbed_runs_to_completion(bed: Make) -> None:
    run = bed(peers=6, kind="erdos-renyi", rounds=5)
    result = run.finish()
    assert result["failed"] == {} and set(result["exit_codes"].values()) == {0}
    invariants.completed(run)
    invariants.check(run)
    for peer_id in run.graph.ids:
        assert run.summary(peer_id)["metric"]["value"] is not None
        assert {len(line["folded"]) for line in run.history(peer_id, "round")} == {run.graph.degree(peer_id)}


def test_a_forked_peer_begins_when_all_are_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_peer(peer_id: int, *_: object) -> int:
        siblings = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text()
        (tmp_path / f"{peer_id}.siblings").write_text(siblings)
        # a peer that ends is no longer in the list of children that a slower one reads
        until(lambda: len(list(tmp_path.glob("*.siblings"))) == 12, "every peer has read", poll_s=0.01)
        return 0

    monkeypatch.setattr("peer.runtime.process.run_peer", run_peer)
    bed = Supervisor(make_graph("ring", 12, seed=1), tmp_path, insecure=True, start_method="fork")
    bed.start()
    pids = {str(bed.pid(peer)) for peer in bed.graph.ids}
    assert set(bed.run().values()) == {0}
    for peer in bed.graph.ids:
        assert pids <= set((tmp_path / f"{peer}.siblings").read_text().split()), f"peer {peer} began too early"


def test_no_peer_keeps_pipes_of_the_peers_forked_before_it(bed: Make) -> None:
    peers = 10
    run = bed(peers=peers, rounds=100_000)
    run.until_round(1, 0, peers - 1)
    pids = run.state()["processes"]
    first, last = (pipes_of(pids[str(peer)]) for peer in (0, peers - 1))
    assert last - first < peers - 1  # the parent has two for each peer
    run.stop()


def pipes_of(pid: int) -> int:
    """Return how many pipes a process keeps; the files that it opens and closes in every round may vanish meanwhile."""
    found = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(entry.path).startswith("pipe:")
    return found


def test_two_runs_give_the_same_models_bit_for_bit(bed: Make) -> None:
    runs = [bed(name, peers=6, kind="erdos-renyi", rounds=6) for name in ("one", "two")]
    for run in runs:
        run.finish()
    same_models(runs[0].models(), runs[1].models())


def test_runs_over_tls_and_through_proxies_give_the_same_models(bed: Make) -> None:
    plain = bed("plain", rounds=5)
    secure = bed("secure", rounds=5, insecure=False, proxy=True)
    plain.finish()
    result = secure.finish()
    assert all(counters["bytes_passed"] > 0 for counters in result["counters"].values())
    same_models(plain.models(), secure.models())


@pytest.mark.slow
def test_eight_processes_of_peer_run_end_with_the_models_of_a_testbed(bed: Make, tmp_path: Path) -> None:
    forked = bed(peers=8, kind="erdos-renyi", rounds=4, start={"wait_for": "all"})
    forked.finish()
    separate = Bed.__new__(Bed)
    separate.directory, separate.graph = tmp_path, forked.graph
    save_graph(forked.graph, tmp_path / "graph.json")
    with ExitStack() as stack:
        peers = [stack.enter_context(running_peer(i, tmp_path, "--insecure")) for i in forked.graph.ids]
        assert [process.wait(150) for process in peers] == [0] * 8, ends(tmp_path.glob("*.log"))
    invariants.completed(separate)
    same_models(forked.models(), separate.models())


def test_ports_of_peers_are_outside_the_outgoing_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "range"
    monkeypatch.setattr("peer.bed.testbed.ports.EPHEMERAL_PORTS", setting)
    for first, last in ((32_768, 60_999), (16_000, 60_000), (20_000, 65_535)):
        setting.write_text(f"{first}\t{last}\n")
        ports = free_ports(50)
        assert len(set(ports)) == 50
        assert not any(first <= port <= last for port in ports)
    setting.write_text("1024\t65535\n")  # no other ports remain
    assert len(set(free_ports(50))) == 50


def test_no_port_is_drawn_twice_while_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second testbed of a process would take the port of a peer of the first that has not bound it yet."""
    monkeypatch.setattr("peer.bed.testbed.ports.PORTS", range(16_000, 16_200))
    monkeypatch.setattr("peer.bed.testbed.ports._drawn", set())
    drawn = [port for _ in range(10) for port in free_ports(15)]
    assert len(set(drawn)) == 150
    assert len(set(free_ports(100))) == 100


def test_workers_of_a_test_run_draw_different_ports() -> None:
    names = [{"PYTEST_XDIST_WORKER": f"gw{i}", "PYTEST_XDIST_WORKER_COUNT": "4"} for i in range(4)]
    parts = [part_of(range(15_000, 65_536), name) for name in names]
    assert sorted(port for part in parts for port in part) == list(range(15_000, 65_536))
    own = part_of(range(15_000, 65_536), os.environ)
    assert set(free_ports(50)) <= set(own)

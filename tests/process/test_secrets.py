"""After a run over TLS, private keys are only in their files, which only their owner can read. An observer reads status."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from tools.running import until

from coordinator_free_bootstrap import Graph, load_graph, make_graph
from coordinator_free_bootstrap.manifest import Limits, Timeouts
from peer.identity.files import load_key_pair
from peer.observe.peer_status import read_status
from peer.testbed.testbed import OBSERVER, Testbed, free_ports, identity_files, warm_up, with_settings
from peer.wire.client import NeighborLink
from peer.wire.security import MutualTls

pytestmark = pytest.mark.process


def small_graph() -> Graph:
    graph = with_settings(make_graph("ring", 3), ["run.rounds=2", "run.local_epochs=1"])
    nodes = (replace(n, address=f"127.0.0.1:{p}") for n, p in zip(graph.nodes, free_ports(3), strict=True))
    return replace(graph, nodes=tuple(nodes))


async def watched(directory: Path) -> list[dict[str, object]]:
    """Return the status of each peer, read as the testbed's observer."""
    graph = load_graph(directory / "graph.json")
    tls = MutualTls(graph, OBSERVER, load_key_pair(identity_files(directory, OBSERVER)))
    found = []
    for node in graph.nodes:
        link = NeighborLink(node.id, node.address, limits=Limits(), timeouts=Timeouts(), security=tls.channel(node.id))
        found.append(await link.status())
        await link.close()
    return found


def test_private_keys_are_only_in_their_key_files(tmp_path: Path) -> None:
    graph = small_graph()
    warm_up(graph, None)
    bed = Testbed(graph, tmp_path)
    bed.start()
    try:
        assert bed.run() == {0: 0, 1: 0, 2: 0}
    finally:
        bed.stop()
    keys = sorted(tmp_path.rglob("*.key"))
    assert len(keys) == 4 and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in keys)
    secrets = [path.read_bytes().splitlines()[1] for path in keys]
    for path in tmp_path.rglob("*"):
        if path.is_file() and path not in keys:
            data = path.read_bytes()
            assert b"PRIVATE KEY" not in data and not any(secret in data for secret in secrets), path


def test_testbed_serves_its_observer_and_keeps_its_keys_after_a_restart(tmp_path: Path) -> None:
    graph = with_settings(small_graph(), ["run.rounds=100000"])
    warm_up(graph, None)
    bed = Testbed(graph, tmp_path)
    pins = [node.pins for node in bed.graph.nodes]
    bed.start()
    try:
        histories = [tmp_path / f"peer-{i}/history.jsonl" for i in range(3)]
        until(lambda: bed.poll(0) or all(path.exists() for path in histories), "all peers have started")
        assert not bed.exit_codes
        statuses = asyncio.run(watched(tmp_path))
    finally:
        bed.stop()
    assert [read_status(status, peer_id).peer_id for peer_id, status in enumerate(statuses)] == [0, 1, 2]
    assert not any("PRIVATE" in repr(status) for status in statuses)
    assert [node.pins for node in Testbed(load_graph(tmp_path / "graph.json"), tmp_path).graph.nodes] == pins

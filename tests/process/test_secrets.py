"""After a run over TLS, private keys are only in their files, which only their owner can read. An observer reads status."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.beds import Bed

from coordinator_free_bootstrap import Graph, load_graph, make_graph
from coordinator_free_bootstrap.manifest import Timeouts
from peer.bed.testbed.directory import with_settings
from peer.bed.testbed.testbed import Supervisor
from peer.identity.files import OBSERVER, identity_files, load_key_pair
from peer.view.state.peer_status import read_status
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.security import MutualTls

pytestmark = pytest.mark.process


def small_graph() -> Graph:
    return with_settings(make_graph("ring", 3), ["run.rounds=2", "run.local_epochs=1"])


async def watched(directory: Path) -> list[dict[str, object]]:
    """Return the status of each peer, read as the testbed's observer."""
    graph = load_graph(directory / "graph.json")
    tls = MutualTls(graph, OBSERVER, load_key_pair(identity_files(directory, OBSERVER)))
    found = []
    for node in graph.nodes:
        link = NeighborLink(
            node.id, node.address, limits=WireLimits(), timeouts=Timeouts(), security=tls.channel(node.id)
        )
        found.append(await link.status())
        await link.close()
    return found


def test_private_keys_are_only_in_their_key_files(bed: Callable[..., Bed]) -> None:
    run = bed(graph=small_graph(), insecure=False)
    assert run.finish()["failed"] == {}
    keys = sorted(run.directory.rglob("*.key"))
    assert len(keys) == 4 and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in keys)
    secrets = [path.read_bytes().splitlines()[1] for path in keys]
    for path in run.directory.rglob("*"):
        if path.is_file() and path not in keys:
            data = path.read_bytes()
            assert b"PRIVATE KEY" not in data and not any(secret in data for secret in secrets), path


def test_testbed_serves_its_observer_and_keeps_its_keys_after_a_restart(bed: Callable[..., Bed]) -> None:
    run = bed(graph=with_settings(small_graph(), ["run.rounds=100000"]), insecure=False)
    run.until_round(1)
    pins = [node.pins for node in load_graph(run.directory / "graph.json").nodes]
    statuses = asyncio.run(watched(run.directory))
    run.stop()
    assert [read_status(status, peer_id)["peer_id"] for peer_id, status in enumerate(statuses)] == [0, 1, 2]
    assert not any("PRIVATE" in repr(status) for status in statuses)
    again = Supervisor(load_graph(run.directory / "graph.json"), run.directory)
    assert [node.pins for node in again.graph.nodes] == pins

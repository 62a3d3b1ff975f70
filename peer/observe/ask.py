"""Ask running peers what they are doing, as an observer, and say in one line each what they wait for and why."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import Graph, Manifest, load_graph
from coordinator_free_bootstrap.errors import NeighborUnavailable, RemoteProtocolError
from peer.identity.files import OBSERVER, KeyFiles, identity_files
from peer.wire.client import NeighborLink
from peer.wire.security import MutualTls, SecureChannel, load_tls

Status = dict[str, Any]


async def status_of(peer_id: int, address: str, manifest: Manifest, security: SecureChannel | None = None) -> Status:
    """Return one peer's answer.

    Raises:
        NeighborUnavailable: it does not answer.
        RemoteProtocolError: it refuses, for example a caller that is no observer of its graph.
    """
    link = NeighborLink(peer_id, address, limits=manifest.limits, timeouts=manifest.timeouts, security=security)
    try:
        return await link.status()
    finally:
        await link.close()


async def statuses(graph: Graph, tls: MutualTls | None) -> dict[int, Status | str]:
    """Return what each peer of a graph answers, or a sentence where it does not."""

    async def one(peer_id: int) -> Status | str:
        try:
            channel = tls.channel(peer_id) if tls else None
            return await status_of(peer_id, graph.node(peer_id).address, graph.manifest, channel)
        except (NeighborUnavailable, RemoteProtocolError) as error:
            return str(error)

    return dict(zip(graph.ids, await asyncio.gather(*map(one, graph.ids)), strict=True))


def testbed_statuses(directory: Path) -> dict[int, Status | str]:
    """Return what each peer of a testbed's directory answers, with the keys that lie there.

    Raises:
        GraphError: there is no graph file.
        IdentityError: the observer's keys cannot be used.
    """
    graph = load_graph(Path(directory) / "graph.json")
    files: KeyFiles = identity_files(directory, OBSERVER)
    tls = load_tls(graph, OBSERVER, files) if graph.observers and files.exist() else None
    return asyncio.run(statuses(graph, tls))


def sentence(status: Status) -> str:
    """Return where a peer is, what it waits for, and why it waits no shorter and no longer."""
    line = f"round {status['round_index']} of {status['rounds_total']}, {status['stage'].replace('_', ' ')}"
    neighbors = status["neighbors"]
    line += f"; {sum(state == 'alive' for state in neighbors.values())} of {len(neighbors)} neighbors alive"
    others = [f"{n} {state}" for n, state in neighbors.items() if state != "alive"]
    line += f" ({', '.join(others)})" if others else ""
    if status["waiting_for"]:
        line += f"; waits {status.get('waiting_s', 0.0):.1f} s for {_reasons(status)}"
    if status["storage_error"]:
        line += f"; {status['storage_error']}"
    return line


def _reasons(status: Status) -> str:
    """Say of each neighbor that is waited for what it is doing, and when its silence would end the wait."""
    reasons = []
    for n in map(str, status["waiting_for"]):
        text = f"{n}, which is in round {status.get('neighbor_rounds', {}).get(n, '?')}"
        if status["neighbors"][n] == "suspect":
            silent, limit = status.get("silent_s", {}).get(n) or 0.0, status.get("suspicion_s", 0.0)
            text = f"{n}, silent for {silent:.1f} s and held dead after {limit:g} s"
        reasons.append(text)
    return "; for ".join(reasons)

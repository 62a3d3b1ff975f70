"""Query running peers as an observer, and describe the state of each in one line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import Graph, Manifest, load_graph
from coordinator_free_bootstrap.errors import IdentityError, NeighborUnavailable, RemoteProtocolError
from peer.identity.files import OBSERVER, KeyFiles, identity_files
from peer.wire.client import NeighborLink
from peer.wire.security import MutualTls, SecureChannel, load_tls

Status = dict[str, Any]


async def status_of(peer_id: int, address: str, manifest: Manifest, security: SecureChannel | None = None) -> Status:
    """Return the status of one peer.

    Raises:
        NeighborUnavailable: the peer does not answer.
        RemoteProtocolError: the peer refuses, for example because its graph file does not list this observer.
    """
    link = NeighborLink(peer_id, address, limits=manifest.limits, timeouts=manifest.timeouts, security=security)
    try:
        return await link.status()
    finally:
        await link.close()


async def statuses(graph: Graph, tls: MutualTls | None) -> dict[int, Status | str]:
    """Return the status of each peer of a graph, or the error message of a peer without an answer."""

    async def one(peer_id: int) -> Status | str:
        try:
            channel = tls.channel(peer_id) if tls else None
            return await status_of(peer_id, graph.node(peer_id).address, graph.manifest, channel)
        except (NeighborUnavailable, RemoteProtocolError) as error:
            return str(error)

    return dict(zip(graph.ids, await asyncio.gather(*map(one, graph.ids)), strict=True))


def testbed_statuses(directory: Path) -> dict[int, Status | str]:
    """Return the status of each peer of a testbed directory, using the observer key in it.

    Raises:
        GraphError: the graph file is missing or not valid.
        IdentityError: the observer's key cannot be used.
    """
    graph = load_graph(Path(directory) / "graph.json")
    files: KeyFiles = identity_files(directory, OBSERVER)
    tls = load_tls(graph, OBSERVER, files) if graph.observers and files.exist() else None
    return asyncio.run(statuses(graph, tls))


def graph_statuses(path: Path, certs: Path | None) -> dict[int, Status | str]:
    """Return the status of each peer of a graph file.

    Args:
        path: the graph file of the run.
        certs: the folder with an observer's certificate and key; None: ``certs`` beside the graph file. Not used if the peers
            use plaintext.

    Raises:
        GraphError: the graph file is missing or not valid.
        IdentityError: the peers have keys, and the folder has no key of an observer in the graph file.
    """
    graph = load_graph(path)
    if not any(node.pins for node in graph.nodes):
        return asyncio.run(statuses(graph, None))
    folder = certs or path.parent / "certs"
    names = [observer.name for observer in graph.observers]
    name = next((name for name in names if KeyFiles.of(folder, name).exist()), None)
    if name is None:
        raise IdentityError(
            f"{folder}: found no key of an observer; the graph file lists {', '.join(names) or 'no observers'}; generate a "
            f"key with `peer keygen --observer me --out {folder}`, pin it with `peer graph pin {path} {folder}/me.pem`, and "
            "copy the new graph file to all peers"
        )
    return asyncio.run(statuses(graph, load_tls(graph, name, KeyFiles.of(folder, name), certs=folder)))


def plaintext_status(address: str) -> Status:
    """Return the status of the peer at ``host:port``.

    Raises:
        NeighborUnavailable: the peer does not answer in plaintext.
    """
    try:
        return asyncio.run(status_of(-1, address, Manifest()))
    except NeighborUnavailable as error:
        reason = str(error).partition(": Status: ")[2] or str(error)
        raise NeighborUnavailable(
            f"{address}: no answer in plaintext ({reason}); if the peer uses TLS, name its graph file: peer status graph.json"
        ) from error


def sentence(status: Status) -> str:
    """Return a peer's round, stage and neighbors, what it waits for, and when that wait ends."""
    line = f"round {status['round_index']} of {status['rounds_total']}, {status['stage'].replace('_', ' ')}"
    neighbors = status["neighbors"]
    line += f"; {sum(state == 'alive' for state in neighbors.values())} of {len(neighbors)} neighbors alive"
    others = [f"{n} {state}" for n, state in neighbors.items() if state != "alive"]
    line += f" ({', '.join(others)})" if others else ""
    if reasons := _reasons(status):
        line += f"; has waited {status.get('waiting_s', 0.0):.1f} s for {'; for '.join(reasons)}"
    if status["storage_error"]:
        line += f"; {status['storage_error']}"
    return line


def _reasons(status: Status) -> list[str]:
    """Return one reason for each neighbor that has not sent its models or not accepted ours."""
    reasons = []
    for n in map(str, status["waiting_for"]):
        text = f"models of {n}, in round {status.get('neighbor_rounds', {}).get(n, '?')}"
        if status["neighbors"][n] == "suspect":
            silent, limit = status.get("silent_s", {}).get(n) or 0.0, status.get("suspicion_s", 0.0)
            text = f"models of {n}, silent for {silent:.1f} s and marked dead after {limit:g} s"
        reasons.append(text)
    return reasons + [f"{n} to accept our models" for n in status.get("owed_to", ())]

"""Ask running peers what they are doing, as an observer, and say in one line each what they wait for and why."""

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


def graph_statuses(path: Path, certs: Path | None) -> dict[int, Status | str]:
    """Return what each peer of a graph file answers.

    Args:
        path: the graph file that the peers run with.
        certs: the folder with an observer's certificate and key; default: ``certs`` beside the graph file. Not needed where
            the peers speak plaintext.

    Raises:
        GraphError: the graph file cannot be used.
        IdentityError: the peers have keys, and no observer that they know has its key here.
    """
    graph = load_graph(path)
    if not any(node.pins for node in graph.nodes):
        return asyncio.run(statuses(graph, None))
    folder = certs or path.parent / "certs"
    names = [observer.name for observer in graph.observers]
    name = next((name for name in names if KeyFiles.of(folder, name).exist()), None)
    if name is None:
        known = (
            f"the graph file knows the observers {', '.join(names)}" if names else "the graph file knows no observer"
        )
        raise IdentityError(
            f"{folder}: no observer's key; {known}; make one with `peer keygen --observer me --out {folder}`, add it "
            f"with `peer graph pin {path} {folder}/me.pem`, and give all peers the new graph file"
        )
    return asyncio.run(statuses(graph, load_tls(graph, name, KeyFiles.of(folder, name), certs=folder)))


def plaintext_status(address: str) -> Status:
    """Return what the one peer at ``host:port`` answers.

    Raises:
        NeighborUnavailable: it does not answer, or not in plaintext.
    """
    try:
        return asyncio.run(status_of(-1, address, Manifest()))
    except NeighborUnavailable as error:
        reason = str(error).partition(": Status: ")[2] or str(error)
        raise NeighborUnavailable(
            f"{address} does not answer in plaintext ({reason}); if its peer has keys, ask with its graph file: "
            "peer status graph.json"
        ) from error


def sentence(status: Status) -> str:
    """Return where a peer is, what it waits for, and why it waits no shorter and no longer."""
    line = f"round {status['round_index']} of {status['rounds_total']}, {status['stage'].replace('_', ' ')}"
    neighbors = status["neighbors"]
    line += f"; {sum(state == 'alive' for state in neighbors.values())} of {len(neighbors)} neighbors alive"
    others = [f"{n} {state}" for n, state in neighbors.items() if state != "alive"]
    line += f" ({', '.join(others)})" if others else ""
    if reasons := _reasons(status):
        line += f"; waits {status.get('waiting_s', 0.0):.1f} s for {'; for '.join(reasons)}"
    if status["storage_error"]:
        line += f"; {status['storage_error']}"
    return line


def _reasons(status: Status) -> list[str]:
    """Say of each neighbor waited for what it is doing and when its silence would end the wait, and who owes an answer."""
    reasons = []
    for n in map(str, status["waiting_for"]):
        text = f"{n}, which is in round {status.get('neighbor_rounds', {}).get(n, '?')}"
        if status["neighbors"][n] == "suspect":
            silent, limit = status.get("silent_s", {}).get(n) or 0.0, status.get("suspicion_s", 0.0)
            text = f"{n}, silent for {silent:.1f} s and held dead after {limit:g} s"
        reasons.append(text)
    return reasons + [f"{n} to take our models" for n in status.get("owed_to", ())]

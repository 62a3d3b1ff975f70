"""Peers of one graph in one process, each with a recorder, a server and its edges, for the tests of tunnels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from tools.running import behind_nat
from wire_support import Recorder, hello_of

from coordinator_free_bootstrap import Graph, Node, Observer, parse_manifest
from coordinator_free_bootstrap.errors import NeighborUnavailable, RemoteProtocolError
from peer.bed.testbed.ports import free_ports
from peer.identity.certificates import make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.runtime.edges import Edges
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.pacing import UNLIMITED, Pacing
from peer.wire.security import MutualTls
from peer.wire.server import PeerServer
from peer.wire.switchboard import Switchboard

RELAY, LEFT, RIGHT, NEIGHBOR, STRANGER = range(5)
RUN = {"timeouts": {"suspicion_s": 5.0}}


def key_of(subject: int | str) -> KeyPair:
    private, certificate = make_certificate("federation", subject)
    return KeyPair(private, certificate, certificate.pem())


KEYS: dict[int | str, KeyPair] = {subject: key_of(subject) for subject in (*range(5), "laptop")}


def graph_of() -> Graph:
    """Return peers 1 and 2 that only dial, joined by relay 0, neighbor 3 of the relay, and peer 4 without an edge to it."""
    nodes = tuple(Node(i, f"127.0.0.1:{port}") for i, port in enumerate(free_ports(5)))
    edges = ((RELAY, LEFT), (RELAY, RIGHT), (LEFT, RIGHT), (RELAY, NEIGHBOR), (NEIGHBOR, STRANGER))
    graph = Graph(nodes, edges, parse_manifest(RUN, "test"), observers=(Observer("laptop"),))
    graph = pin(graph, [pair.certificate for pair in KEYS.values()])
    return behind_nat(graph, LEFT, RIGHT, via=((LEFT, RIGHT, RELAY),))


@dataclass
class End:
    """One peer."""

    recorder: Recorder
    edges: Edges

    def link(self, neighbor: int) -> NeighborLink:
        return self.edges.links[neighbor]

    async def reaches(self, neighbor: int, sender: int) -> None:
        """Say hello to a neighbor until it answers; a tunnel needs a moment to come up."""
        async with asyncio.timeout(30):
            while True:
                with suppress(NeighborUnavailable):
                    await self.edges.hello(neighbor, hello_of(sender))
                    return
                await asyncio.sleep(0.02)  # between two attempts


@asynccontextmanager
async def peers(
    *ids: int,
    graph: Graph | None = None,
    secure: bool = True,
    board: Callable[[Switchboard], Switchboard] = lambda own: own,
    pacing: Mapping[int, Pacing] | None = None,
) -> AsyncIterator[dict[int, End]]:
    """Run peers of the graph; ``board`` may replace the relay's switchboard by that of an attacker."""
    graph, pacing = graph or graph_of(), pacing or {}
    async with AsyncExitStack() as stack:
        ends = {}
        for peer_id in ids:
            tls = MutualTls(graph, peer_id, KEYS[peer_id]) if secure else None
            own = pacing.get(peer_id, UNLIMITED)
            edges = Edges(peer_id, graph, tls, pacing=own)
            if peer_id == RELAY:
                edges.switchboard = board(edges.switchboard)
            recorder = Recorder(peer_id)
            recorder.reached = edges.reached
            server = PeerServer(
                recorder,
                graph.node(peer_id).address,
                limits=WireLimits(),
                timeouts=graph.manifest.timeouts,
                credentials=tls.server_credentials() if tls else None,
                identify=tls.identify if tls else None,
                switchboard=edges.switchboard,
                local=edges.service,
                pacing=own,
            )
            await server.start()
            stack.push_async_callback(server.stop, 0)
            edges.open()
            stack.push_async_callback(edges.close)
            ends[peer_id] = End(recorder, edges)
        yield ends


@asynccontextmanager
async def caller(graph: Graph, subject: int | str, key: KeyPair | None = None) -> AsyncIterator[NeighborLink]:
    """Open a link to the relay as any subject, with its key or another one: its own graph file says that all is well."""
    if subject == STRANGER:
        graph = replace(graph, edges=(*graph.edges, (RELAY, STRANGER)))
    if key is not None:
        graph = replace(graph, nodes=pinned(graph, key))
    tls = MutualTls(graph, subject, key or KEYS[subject])
    node, manifest = graph.node(RELAY), graph.manifest
    security = tls.channel(RELAY)
    link = NeighborLink(RELAY, node.address, limits=WireLimits(), timeouts=manifest.timeouts, security=security)
    try:
        yield link
    finally:
        await link.close()


def pinned(graph: Graph, key: KeyPair) -> tuple[Node, ...]:
    """Return the nodes of a forger's graph file: its own key stands for a peer."""
    _, subject = key.certificate.name
    forged = {"pins": (key.certificate.fingerprint,), "certificates": (key.certificate.text(),)}
    return tuple(replace(node, **forged) if node.id == subject else node for node in graph.nodes)


async def refused(work: Coroutine[Any, Any, Any]) -> RemoteProtocolError:
    """Return the refusal that ends a call."""
    try:
        await work
    except RemoteProtocolError as error:
        return error
    raise AssertionError("the call was not refused")

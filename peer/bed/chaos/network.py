"""The network of a testbed: one process that runs a fault proxy for every ordered pair of neighbors of which one dials the other.

The parent binds all ports before the fork, so that it knows the addresses of each peer's proxies. It sends requests to the
process as JSON lines over a socket pair, and gets one line back for each. The parent needs no threads and no event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from coordinator_free_bootstrap import Graph, split_address
from coordinator_free_bootstrap.errors import NeighborUnavailable
from coordinator_free_bootstrap.routes import dialed
from peer.bed.chaos.proxy import DirectedEdge, FaultProxy
from peer.bed.chaos.toxics import Counters, Direction, Toxics
from peer.store.system import START_METHOD, end_with_parent

ANSWER_S = 10.0  # a request takes milliseconds; a longer silence means that the process has ended


class FaultyNetwork:
    """Proxies between all neighbors of a graph that dial each other. Create it before the peers are forked.

    A tunnel runs over the connection of the end that dials, and has the faults of that connection.

    Args:
        graph: with the addresses where the peers listen.
        seed: of the jitter.
    """

    def __init__(self, graph: Graph, seed: int = 0) -> None:
        self._graph = graph
        self._sockets: dict[Direction, socket.socket] = {}
        for direction in dialed(graph):
            listening = socket.socket()
            listening.bind(("127.0.0.1", 0))
            listening.listen(64)
            self._sockets[direction] = listening
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(ANSWER_S)
        self._answers = self.socket.makefile("rb")
        arguments = (graph, self._sockets, self.socket, theirs, seed)
        context: Any = multiprocessing.get_context(START_METHOD)
        self._process = context.Process(target=_child, args=arguments, name="network")
        self._process.start()
        theirs.close()
        self._ports = {direction: each.getsockname()[1] for direction, each in self._sockets.items()}
        for each in self._sockets.values():
            each.close()

    def graph_of(self, peer_id: int) -> Graph:
        """Return the graph for one peer: the addresses of its neighbors are those of its proxies."""
        nodes = tuple(
            replace(node, address=f"127.0.0.1:{self._ports[peer_id, node.id]}")
            if (peer_id, node.id) in self._ports
            else node
            for node in self._graph.nodes
        )
        return replace(self._graph, nodes=nodes)

    def set(self, directions: Iterable[Direction], toxics: Toxics) -> None:
        """Replace the toxics of directed edges; ``reset`` also resets the open connections."""
        self._ask({"do": "set", "directions": [*directions], "toxics": toxics.model_dump(exclude_unset=True)})

    def toxics(self) -> dict[Direction, Toxics]:
        """Return the toxics of the directed edges that have any."""
        return {(a, b): Toxics(**values) for a, b, values in self._ask({"do": "toxics"})}

    def counters(self) -> dict[Direction, Counters]:
        """Return the counters of each directed edge."""
        return {(a, b): Counters(**values) for a, b, values in self._ask({"do": "counters"})}

    def total(self) -> Counters:
        """Return the sum of all counters."""
        total = Counters()
        for each in self.counters().values():
            total += each
        return total

    def close(self) -> None:
        """End the process."""
        self._answers.close()
        self.socket.close()
        self._process.join(2.0)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()

    def _ask(self, request: dict[str, object]) -> Any:
        try:
            self.socket.sendall(json.dumps(request).encode() + b"\n")
            answer = self._answers.readline()
        except OSError as error:
            raise NeighborUnavailable(f"the testbed's network process does not answer: {error}") from error
        if not answer:
            raise NeighborUnavailable("the testbed's network process has ended. Start the testbed again.")
        return json.loads(answer)


def _child(
    graph: Graph, sockets: dict[Direction, socket.socket], parents: socket.socket, own: socket.socket, seed: int
) -> None:
    end_with_parent(signal.SIGKILL)  # the testbed ends the network last
    parents.close()
    asyncio.run(_Proxies(graph, seed).serve(sockets, own))
    sys.exit(0)


class _Proxies:
    def __init__(self, graph: Graph, seed: int) -> None:
        directions = [pair for a, b in graph.edges for pair in ((a, b), (b, a))]
        self.directed_edges = {direction: DirectedEdge(direction, seed) for direction in directions}
        self.proxies = {
            (src, dst): FaultProxy(
                (self.directed_edges[src, dst], self.directed_edges[dst, src]), split_address(graph.node(dst).address)
            )
            for src, dst in dialed(graph)
        }

    async def serve(self, sockets: dict[Direction, socket.socket], own: socket.socket) -> None:
        for direction, listening in sockets.items():
            await self.proxies[direction].start(listening)
        reader, writer = await asyncio.open_connection(sock=own)
        while line := await reader.readline():
            writer.write(json.dumps(self.answer(json.loads(line))).encode() + b"\n")
            with contextlib.suppress(OSError):
                await writer.drain()
        for proxy in self.proxies.values():
            await proxy.close()

    def answer(self, request: dict[str, Any]) -> Any:
        if request["do"] == "counters":
            return [[*direction, edge.counters.as_dict()] for direction, edge in self.directed_edges.items()]
        if request["do"] == "toxics":
            return [[*d, e.toxics.model_dump()] for d, e in self.directed_edges.items() if not e.toxics.is_clean]
        toxics = Toxics(**request["toxics"])
        for src, dst in map(tuple, request["directions"]):
            self.directed_edges[src, dst].set(toxics)
            for direction in ((src, dst), (dst, src)) if toxics.reset else ():
                if direction in self.proxies:
                    self.proxies[direction].reset()
        return True

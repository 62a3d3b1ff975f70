"""What a tunnel costs: pushes to a neighbor that is dialed, over the tunnel that it opens, and over a relay; repeats interleaved.

    python benchmarks/tunnel.py [--size 100] [--repeats 9] [--markdown FILE]

Each way has its own processes on loopback: sender, receiver and, on a relayed edge, the relay. Pushes run with TLS through
everything that a peer does with a model (`transport.py`). Processor time is that of all processes of a way for one push.
Extra memory is their peak resident memory during the pushes, minus that of the dialed edge. The ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from common import show
from tls import processor_seconds
from transport import MEGABYTE, FoldingReceiver, memory_bytes, schema_of

from coordinator_free_bootstrap import Graph, Relay, make_graph
from peer.core.encoding import encode
from peer.core.messages import ModelHeader, Outcome
from peer.identity.certificates import Certificate, make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.runtime.edges import Edges
from peer.testbed.testbed import free_ports
from peer.wire.security import MutualTls
from peer.wire.server import PeerServer

SENDER, RECEIVER, RELAY = 0, 1, 2
WAYS = ("dialed", "tunnel", "relay")
AIM = 1.5  # times the processor time of a dialed edge
WARM_UP = 2  # pushes before the first that counts: connections, flow control, memory
UNLIMITED = 1 << 40  # bytes per second of the relay
PAUSE_S = 0.05  # between two attempts while the tunnels come up


def graph_of(way: str) -> tuple[Graph, list[KeyPair]]:
    """Return a graph of three peers on free ports in which the sender reaches the receiver in one way, and their keys."""
    graph = make_graph("complete", 3)
    dialers = {"dialed": (), "tunnel": (RECEIVER,), "relay": (SENDER, RECEIVER)}[way]
    nodes = (
        replace(node, address=f"127.0.0.1:{port}", dials_only=node.id in dialers, relay=Relay(UNLIMITED, 8))
        if node.id not in dialers
        else replace(node, address="", dials_only=True)
        for node, port in zip(graph.nodes, free_ports(3), strict=True)
    )
    graph = replace(graph, nodes=tuple(nodes), via=((SENDER, RECEIVER, RELAY),) if way == "relay" else ())
    made = [make_certificate("federation", peer_id) for peer_id in graph.ids]
    pairs = [KeyPair(private, certificate, certificate.pem()) for private, certificate in made]
    return pin(graph, [pair.certificate for pair in pairs]), pairs


def peer(peer_id: int, graph: Graph, private: bytes, pem: bytes, size: int, orders: Connection) -> None:
    """Run one peer; it pushes one model for each order, and answers with the seconds that it took."""
    tls = MutualTls(graph, peer_id, KeyPair(private, Certificate.from_pem(pem, "own"), pem))
    asyncio.run(_peer(peer_id, graph, tls, size, orders))


async def _peer(peer_id: int, graph: Graph, tls: MutualTls, size: int, orders: Connection) -> None:
    edges = Edges(peer_id, graph, tls)
    server = PeerServer(
        FoldingReceiver(size // 4 if peer_id == RECEIVER else 1),
        graph.node(peer_id).address,
        limits=graph.manifest.limits,
        timeouts=graph.manifest.timeouts,
        credentials=tls.server_credentials(),
        identify=tls.identify,
        switchboard=edges.switchboard,
        local=edges.service,
    )
    await server.start()
    edges.open()
    theta = np.random.default_rng(1).standard_normal(size // 4 if peer_id == SENDER else 1, np.float32)
    header = ModelHeader(SENDER, 1, 0, 0, 0, 0, 1, 100, 1.0, (), theta.nbytes, "float32")
    payload = encode(theta, schema_of(theta.size), "float32")
    orders.send("up")
    while await asyncio.to_thread(orders.recv) == "push":
        began = time.perf_counter()
        try:
            reply = await edges.links[RECEIVER].push(header, payload)
            orders.send(time.perf_counter() - began if reply.outcome is Outcome.FOLDED else reply.reason)
        except Exception as error:  # the tunnel is not up yet; the caller ends the benchmark if that stays so
            orders.send(str(error))


class Way:
    """The processes of one way."""

    def __init__(self, name: str, size: int) -> None:
        graph, pairs = graph_of(name)
        context = multiprocessing.get_context("spawn")
        self.orders, self.pids, self.seconds, self.used = {}, [], [], []
        self._processes = []
        for peer_id in graph.ids if name == "relay" else (SENDER, RECEIVER):
            ours, theirs = context.Pipe()
            pair = pairs[peer_id]
            arguments = (peer_id, graph, pair.private_key, pair.chain, size, theirs)
            process = context.Process(target=peer, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)
            self.orders[peer_id] = ours
            self.pids.append(process.pid or 0)
        for each in self.orders.values():
            each.recv()

    def push(self, attempts: int = 1) -> None:
        """Push one model and note seconds and processor seconds."""
        for attempt in range(attempts):
            before = sum(map(processor_seconds, self.pids))
            self.orders[SENDER].send("push")
            answer = self.orders[SENDER].recv()
            if isinstance(answer, float):
                self.seconds.append(answer)
                self.used.append(sum(map(processor_seconds, self.pids)) - before)
                return
            if attempt + 1 == attempts:
                raise SystemExit(f"push: {answer}")
            time.sleep(PAUSE_S)

    def peak_bytes(self) -> int:
        """Return the peak resident memory of all processes."""
        return sum(memory_bytes("VmHWM", pid) for pid in self.pids)

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()


def measure(size: int, repeats: int) -> list[list[object]]:
    """Return the rows of one model size."""
    ways = {name: Way(name, size) for name in WAYS}
    try:
        for repeat in range(WARM_UP + repeats):
            for way in ways.values():
                way.push(attempts=200 if repeat == 0 else 1)
        memory = {name: way.peak_bytes() for name, way in ways.items()}
    finally:
        for way in ways.values():
            way.stop()
    rows: list[list[object]] = []
    base = statistics.median(ways["dialed"].used[WARM_UP:])
    for name, way in ways.items():
        used, seconds = (statistics.median(values[WARM_UP:]) for values in (way.used, way.seconds))
        extra = "" if name == "dialed" else f"{(memory[name] - memory['dialed']) / MEGABYTE:.0f} MB"
        ratio = f"{used / base:.2f} (aim {AIM:g})" if name == "tunnel" else f"{used / base:.2f}"
        speed = f"{size / seconds / 1e9:.2f} GB/s"
        rows.append([f"{size / MEGABYTE:g} MB, {name}", speed, f"{1000 * used:.0f} ms", ratio, extra])
    return rows


def main() -> None:
    """Measure all sizes and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, nargs="+", default=[100], help="model sizes in MB")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows = [row for size in options.size for row in measure(round(size * MEGABYTE) // 4 * 4, options.repeats)]
    header = ["push", "speed", "processor time, all ends", "times dialed", "extra memory"]
    show("A tunneled edge beside a dialed one", header, rows, options.markdown)


if __name__ == "__main__":
    main()

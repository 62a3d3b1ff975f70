"""What a link's rate costs: a first and a second model over a link that has shown nothing yet, and the heartbeats beside them.

A sender and a receiver, which folds as `transport.py` describes, in two processes, over loopback or behind a proxy in the
sender's process that passes so many kB/s in each direction. A heartbeat is sent every tenth of a second; the slowest one tells
how much of a model is ahead of it in buffers, and after five seconds it fails.

    python benchmarks/slow_link.py [--megabytes 18] [--rates 0 8 40 300 2000] [--seconds 20] [--repeats 5] [--save]
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import time
from contextlib import suppress

import numpy as np
from record import new_parser, record
from transport import LIMITS, MEGABYTE, TIMEOUTS, receive_as_peer, schema_of

from coordinator_free_bootstrap import Graph, Manifest, Node
from coordinator_free_bootstrap.errors import NeighborUnavailable
from peer.bed.chaos.proxy import DirectedEdge, FaultProxy
from peer.bed.chaos.toxics import Toxics
from peer.core.encoding import encode
from peer.core.messages import Heartbeat, ModelHeader, Phase
from peer.wire.client import NeighborLink
from peer.wire.pacing import Pacing

GRAPH = Graph((Node(1, "a:1"), Node(2, "a:2")), ((1, 2),), Manifest())
BEAT_S = 0.1


class Beats:
    """Heartbeats beside a transfer: the slowest one, and how many failed."""

    def __init__(self, link: NeighborLink) -> None:
        self.slowest_s, self.failed = 0.0, 0
        self._task = asyncio.ensure_future(self._send(link))

    async def _send(self, link: NeighborLink) -> None:
        while True:
            began = time.perf_counter()
            try:
                await link.heartbeat(Heartbeat(2, 1, 0, Phase.RUNNING))
            except NeighborUnavailable:
                self.failed += 1
            self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
            await asyncio.sleep(BEAT_S)

    async def end(self) -> None:
        """Stop."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def measure(port: int, size: int, kb_s: float) -> tuple[float, float, float, int]:
    """Return the seconds of a first and a second push, those of the slowest heartbeat, and the failed heartbeats."""
    edges = DirectedEdge((2, 1)), DirectedEdge((1, 2))
    proxy, listening = FaultProxy(edges, ("127.0.0.1", port)), socket.socket()
    listening.bind(("127.0.0.1", 0))
    await proxy.start(listening)
    address = f"127.0.0.1:{listening.getsockname()[1] if kb_s else port}"
    link = NeighborLink(1, address, limits=LIMITS, timeouts=TIMEOUTS, pacing=Pacing.of(GRAPH, 2))
    for edge in edges:
        edge.set(Toxics(bandwidth_kb_s=kb_s or None))
    theta = np.ones(size // 4, np.float32)
    payload = encode(theta, schema_of(theta.size), "float32")
    await link.heartbeat(Heartbeat(2, 1, 0, Phase.RUNNING))
    beats, seconds = Beats(link), []
    for index in range(2):
        began = time.perf_counter()
        try:
            await link.push(ModelHeader(2, 1, index, 0, 0, 0, 1, 100, 1.0, theta.nbytes, "float32"), payload)
            seconds.append(time.perf_counter() - began)
        except NeighborUnavailable:
            seconds.append(float("nan"))
    await beats.end()
    await link.close()
    await proxy.close()
    return seconds[0], seconds[1], beats.slowest_s, beats.failed


def main() -> None:
    """Measure each rate and print one table."""
    parser = new_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=18)
    parser.add_argument("--rates", type=float, nargs="+", default=[0, 8, 40, 300, 2000], help="kB/s; 0: loopback")
    parser.add_argument(
        "--seconds", type=float, default=20, help="of a model at a rate, at most: a smaller one if it takes longer"
    )
    parser.add_argument("--repeats", type=int, default=5, help="over loopback")
    options = parser.parse_args()
    context, rows = multiprocessing.get_context("spawn"), []
    for rate in options.rates:
        size = (
            round(min(options.megabytes * MEGABYTE, options.seconds * rate * 1000 if rate else float("inf"))) // 4 * 4
        )
        ours, theirs = context.Pipe()
        receiver = context.Process(target=receive_as_peer, args=(size, theirs), daemon=True)
        receiver.start()
        port = ours.recv()
        found = [asyncio.run(measure(port, size, rate)) for _ in range(1 if rate else options.repeats)]
        receiver.terminate()
        first, second, slowest, failed = (statistics.median(column) for column in zip(*found, strict=True))
        ideal = f"{size / rate / 1000:.1f}" if rate else "-"
        rows.append(
            [f"{rate:g} kB/s" if rate else "loopback", f"{size / 1e6:.2f}", ideal, f"{first:.3f}", f"{second:.3f}"]
        )
        rows[-1] += [f"{slowest:.2f}", failed]
    columns = [
        "link",
        "MB",
        "s at the rate",
        "first push s",
        "second push s",
        "slowest heartbeat s",
        "heartbeats failed",
    ]
    record("slow-link", "Models over a link that has shown nothing yet", columns, rows, save=options.save)


if __name__ == "__main__":
    main()

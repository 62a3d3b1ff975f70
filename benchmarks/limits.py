"""The real rate of --upload-limit and --download-limit: four links send models over loopback for some seconds.

    python benchmarks/limits.py [--limit 2MB] [--seconds 10] [--links 4] [--markdown FILE]

Counted are the payload bytes that arrive in the time after the first frame, on all links together. The
graph declares the limit, as a graph file with "upload_limit" or "download_limit" does; "undeclared" is the download limit of a
command line alone, for which senders use frames of limits.frame_bytes_max; it is skipped where `peer run` refuses it.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import show
from transport import LIMITS, TIMEOUTS, FoldingReceiver

from coordinator_free_bootstrap import Graph, Manifest, Node
from coordinator_free_bootstrap.errors import ConfigError, Refusal
from coordinator_free_bootstrap.rates import check_limits, parse_rate
from peer.core.messages import ModelHeader
from peer.wire.client import NeighborLink
from peer.wire.handler import Arrival
from peer.wire.pacing import Pacing
from peer.wire.server import PeerServer

MODEL_BYTES = 64 << 20
LIMITED = 0  # the peer with the limit


class Counting(FoldingReceiver):
    """Accepts every model and notes when each of its frames came."""

    def __init__(self) -> None:
        super().__init__(1)
        self.times: list[float] = []

    async def offered(self, caller: int | None, header: ModelHeader) -> Arrival:
        """Accept into a new buffer."""
        now = asyncio.get_running_loop().time
        return Arrival(header, np.zeros(header.size_bytes, np.uint8), on_frame=lambda: self.times.append(now()))

    def lost(self, arrival: Arrival, reason: str, code: Refusal | None) -> None:
        """Ignore the models that are cut off at the end."""

    def refused(self, caller: int | None, code: Refusal, sentence: str) -> None:
        """Ignore them here too."""


async def measure(way: str, limit: int, links: int, seconds: float) -> float:
    """Return the payload bytes per second of all links together."""
    uploads, declared = way == "upload", {} if way == "undeclared" else {f"{way}_limit": limit}
    first = replace(Node(LIMITED, "a:1"), **declared)  # type: ignore[arg-type]
    nodes = (first, *(Node(i, f"a:{i + 1}") for i in range(1, links + 1)))
    graph = Graph(nodes, tuple((LIMITED, i) for i in range(1, links + 1)), Manifest(limits=LIMITS, timeouts=TIMEOUTS))
    own = limit if way == "undeclared" else None
    check_limits(graph, LIMITED, None, own)
    limited, receiver = Pacing.of(graph, LIMITED, None, own), Counting()
    server = PeerServer(
        receiver,
        "127.0.0.1:0",
        limits=LIMITS,
        timeouts=TIMEOUTS,
        pacing=Pacing() if uploads else limited,
    )
    address = f"127.0.0.1:{await server.start()}"
    opened, pushes = [], []
    for i in range(1, links + 1):
        target, sender, pacing = (i, LIMITED, limited) if uploads else (LIMITED, i, Pacing.of(graph, i))
        link = NeighborLink(target, address, limits=LIMITS, timeouts=TIMEOUTS, pacing=pacing)
        header = ModelHeader(sender, 1, 0, 0, 0, 0, 1, 1, 1.0, (), MODEL_BYTES, "float32")
        opened.append(link)
        pushes.append(asyncio.ensure_future(link.push(header, np.zeros(MODEL_BYTES, np.uint8))))
        frame = pacing.frame_bytes(target, LIMITS.frame_bytes_max)
    while not receiver.times or receiver.times[-1] < receiver.times[0] + seconds:
        await asyncio.sleep(0.05)
    for push in pushes:
        push.cancel()
    await asyncio.gather(*pushes, return_exceptions=True)
    for link in opened:
        await link.close()
    await server.stop(0)
    return sum(receiver.times[0] < at <= receiver.times[0] + seconds for at in receiver.times) * frame / seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", default="2MB")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--links", type=int, default=4)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    limit, rows = parse_rate(given.limit, "--limit"), []
    for way in ("upload", "download", "undeclared"):
        try:
            found = asyncio.run(measure(way, limit, given.links, given.seconds))
        except ConfigError as error:
            print(f"skipped: {error}")
            continue
        rows.append((way, limit, round(found), f"{100 * (found / limit - 1):+.1f} %"))
    title = f"Limits over {given.seconds:g} s, {given.links} links"
    show(title, ("limit", "bytes/s allowed", "bytes/s found", "difference"), rows, given.markdown)


if __name__ == "__main__":
    main()

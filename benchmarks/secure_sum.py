"""What a secure sum costs beside plain models: processor time, bytes and memory of one model.

    python benchmarks/secure_sum.py [--sizes 0.3 10 44] [--neighbors 4 7] [--repeats 9] [--save]

Sender and receiver are in one process, gRPC over loopback: the processor time is that of both ends. The channel has TLS, as in
every run with secure sums; "in plaintext" is the ratio without it. Plain: encode, push, check, fold. Summed: mask, push, add; and
the model's part of what opens the sum of n models: their own masks taken off, the mean made. "one dead": all but one have
delivered, and the masks that they share with it are taken off too. Bytes: what comes with each model: keys with signatures of 72
bytes, shares, and the messages that open the sum. Memory: the peak of what Python and NumPy allocate during one push, both ends.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from record import new_parser, record
from security import both_ends
from transport import LIMITS, MEGABYTE, TIMEOUTS, FoldingReceiver, schema_of
from typing_extensions import override

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.core import messages
from peer.core.arrivals import Arrival
from peer.core.encoding import MASKED, encode
from peer.core.messages import SumMessage
from peer.secure_sum.arithmetic import Mask, MaskedModel, factor, plain
from peer.secure_sum.keys import Unsigned
from peer.secure_sum.sums import SecureSums
from peer.wire.client import NeighborLink
from peer.wire.security import MutualTls
from peer.wire.server import PeerServer

BOUND = 16.0
SIGNATURE_BYTES = 72
HEADINGS = [
    "model",
    "neighbors",
    "plain ms",
    "summed ms",
    "ratio (aim 1.5)",
    "in plaintext",
    "one dead ms",
    "bytes more",
    "of float32 (aim 1.05)",
    "plain peak MB",
    "summed peak MB",
]


class AddingReceiver(FoldingReceiver):
    """Folds plain models, and adds masked ones to a sum."""

    def __init__(self, elements: int) -> None:
        super().__init__(elements)
        self.total = np.zeros(elements, np.uint32)

    @override
    def _fold(self, arrival: Arrival) -> None:
        if arrival.header.encoding == MASKED:
            np.add(self.total, arrival.buffer.view("<u4"), out=self.total)
        else:
            super()._fold(arrival)


def streams(count: int) -> list[Mask]:
    return [(os.urandom(16), 1) for _ in range(count)]


async def peak_mb(work: Callable[[], Awaitable[None]]) -> float:
    """Return the peak of what Python and NumPy allocate during one push."""
    tracemalloc.start()
    await work()
    peak = tracemalloc.get_traced_memory()[1] / MEGABYTE
    tracemalloc.stop()
    return peak


async def measure(
    size: int, neighbors: int, repeats: int, *, encrypted: bool
) -> tuple[float, float, float, float, float]:
    """Return processor ms of one model, medians: plain, summed, summed with one dead neighbor; and peaks of memory, MB."""
    theta = np.random.default_rng(1).standard_normal(size // 4, np.float32)
    receiver = AddingReceiver(theta.size)
    graph, pairs = both_ends()
    there, here = (MutualTls(graph, i, pairs[i]) for i in (0, 1))
    secure = {"credentials": there.server_credentials(), "identify": there.identify} if encrypted else {}
    server = PeerServer(receiver, "127.0.0.1:0", limits=LIMITS, timeouts=TIMEOUTS, **secure)
    address, security = f"127.0.0.1:{await server.start()}", here.channel(0) if encrypted else None
    link = NeighborLink(0, address, limits=LIMITS, timeouts=TIMEOUTS, security=security)
    scale = factor(BOUND, neighbors) / neighbors

    def header(encoding: str) -> messages.ModelHeader:
        return messages.ModelHeader(1, 1, 0, 0, 0, 0, 1, 100, 1.0, theta.nbytes, encoding)

    async def plain_model() -> None:
        await link.push(header("float32"), encode(theta, schema_of(theta.size), "float32"))

    async def masked_model() -> None:
        await link.push(header(MASKED), MaskedModel(theta, scale, streams(neighbors)))

    def opened(masks: int) -> None:
        plain(receiver.total, scale, streams(masks))

    taken: dict[str, list[float]] = {"plain": [], "masked": [], "opened": [], "dead": []}
    for repeat in range(repeats + 2):
        for name, work in (("plain", plain_model), ("masked", masked_model)):
            began = time.process_time()
            await work()
            taken[name].append(1000 * (time.process_time() - began))
        for name, masks in (("opened", neighbors), ("dead", 2 * (neighbors - 1))):
            began = time.process_time()
            opened(masks)
            taken[name].append(1000 * (time.process_time() - began))
        if repeat < 2:  # the first two warm up
            for times in taken.values():
                times.clear()
    peaks = [await peak_mb(work) for work in (plain_model, masked_model)]
    await link.close()
    await server.stop(1.0)
    median = {name: statistics.median(times) for name, times in taken.items()}
    return (
        median["plain"],
        median["masked"] + median["opened"] / neighbors,
        median["masked"] + median["dead"] / (neighbors - 1),
        peaks[0],
        peaks[1],
    )


def bytes_beside(neighbors: int) -> int:
    """Return the bytes that come with one model of a sum: key and shares of the sender, and the messages both ways."""
    made = make_graph("complete", neighbors + 1, seed=1)
    graph = Graph(made.nodes, made.edges, Manifest(algorithm="dfedavg", secure_sum=BOUND))
    peers = {i: SecureSums(i, graph, Unsigned(), os.urandom) for i in graph.ids}
    for n in range(1, neighbors + 1):
        peers[0].meets(n, 1, peers[n].announcement(1))
    roster = peers[0].begin(0, [(n, 1) for n in range(1, neighbors + 1)])
    total = neighbors * (len(roster) + neighbors * SIGNATURE_BYTES)
    for n in range(1, neighbors + 1):
        peers[n].join(0, 0, roster, 1)
        shares = peers[n].shares(0, 0)
        peers[0].delivered(n, shares)
        total += len(shares)
    queue = [(0, *message) for message in peers[0].fix()]
    while queue:
        sender, to, kind, data = queue.pop(0)
        total += len(data)
        queue += [(to, *message) for message in peers[to].take(SumMessage(sender, 1, 0, kind, data))]
    return total // neighbors


def row(size: int, neighbors: int, repeats: int) -> list[str]:
    unmasked, summed, dead, plain_mb, summed_mb = asyncio.run(measure(size, neighbors, repeats, encrypted=True))
    bare, bare_summed, *_ = asyncio.run(measure(size, neighbors, repeats, encrypted=False))
    more = bytes_beside(neighbors)
    return [
        f"{size / MEGABYTE:g} MB",
        str(neighbors),
        f"{unmasked:.2f}",
        f"{summed:.2f}",
        f"{summed / unmasked:.2f}",
        f"{bare_summed / bare:.2f}",
        f"{dead:.2f}",
        str(more),
        f"{1 + more / size:.4f}",
        f"{plain_mb:.1f}",
        f"{summed_mb:.1f}",
    ]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.3, 10, 44], help="model sizes in MB")
    parser.add_argument("--neighbors", type=int, nargs="+", default=[4, 7], help="of a receiver")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    sizes = [round(megabytes * MEGABYTE) // 4 * 4 for megabytes in options.sizes]
    rows = [row(size, neighbors, options.repeats) for neighbors in options.neighbors for size in sizes]
    record(
        "secure-sum",
        "Secure sums: one model, both ends",
        HEADINGS,
        rows,
        save=options.save,
    )


if __name__ == "__main__":
    main()

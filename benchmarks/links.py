"""What a link carries: other models under a rate limit, small models and heartbeats beside a large one, models at a low rate.

    python benchmarks/links.py [limits large slow] [--limit 2MB] [--megabytes 1000] [--rates 0 8 40 300 2000] [--save]

limits: four links send models over loopback for some seconds. Counted are the payload bytes that arrive in the time after the
first frame, on all links together. The graph declares the limit, as a graph file with "upload_limit" or "download_limit" does;
"undeclared" is the download limit of a command line alone, for which senders use frames of full size; it is
skipped where `peer run` refuses it.

large: three processes, a sender of the large model, a sender of small ones, and one receiver, which checks and folds both kinds
as `transport.py` describes. The small models are pushed one after another, and heartbeats sent, first alone, then until the
large model is folded. Extra memory is the receiver's peak during the large push minus what it held before, over the large
model's size.

slow: a first and a second model over a link that has shown nothing yet. A sender and a receiver in two processes, over loopback
or behind a proxy in the sender's process that passes a number of kB/s in each direction. A heartbeat is sent every tenth of a
second; the slowest one shows how much of a model is ahead of it in buffers, and after five seconds it fails.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
from record import new_parser, record
from transport import (
    LIMITS,
    MEGABYTE,
    TIMEOUTS,
    FoldingReceiver,
    memory_bytes,
    peer_sender,
    receive_as_peer,
    schema_of,
)
from typing_extensions import override

from coordinator_free_bootstrap import Graph, Manifest, Node
from coordinator_free_bootstrap.errors import ConfigError, NeighborUnavailable, Refusal
from coordinator_free_bootstrap.rates import check_limits, parse_rate
from peer.bed.chaos.proxy import DirectedEdge, FaultProxy
from peer.bed.chaos.toxics import Toxics
from peer.core import messages
from peer.core.arrivals import Arrival
from peer.core.encoding import encode
from peer.core.messages import Heartbeat, ModelHeader, Phase
from peer.wire.client import NeighborLink
from peer.wire.pacing import Pacing
from peer.wire.server import PeerServer

PARTS = ("limits", "large", "slow")

# ---- limits -----------------------------------------------------------------------------------------------------------

MODEL_BYTES = 64 << 20
LIMITED = 0  # the peer with the limit


class Counting(FoldingReceiver):
    """Accepts every model and notes when each of its frames came."""

    def __init__(self) -> None:
        super().__init__(1)
        self.times: list[float] = []

    @override
    async def offered(self, header: ModelHeader) -> Arrival:
        """Accept into a new buffer."""
        return Arrival(header, np.zeros(header.size_bytes, np.uint8))

    @override
    def frame(self, arrival: Arrival) -> None:
        """Note the time."""
        self.times.append(asyncio.get_running_loop().time())

    @override
    def lost(self, arrival: Arrival, refusal: Refusal | None) -> None:
        """Ignore the models that are cut off at the end."""

    @override
    def refused(self, caller: int | None, refusal: Refusal) -> None:
        """Ignore them here too."""


async def rate(way: str, limit: int, links: int, seconds: float) -> float:
    """Return the payload bytes per second of all links together."""
    uploads, declared = way == "upload", {} if way == "undeclared" else {f"{way}_limit": limit}
    first = replace(Node(LIMITED, "a:1"), **declared)  # type: ignore[arg-type]
    nodes = (first, *(Node(i, f"a:{i + 1}") for i in range(1, links + 1)))
    graph = Graph(nodes, tuple((LIMITED, i) for i in range(1, links + 1)), Manifest(timeouts=TIMEOUTS))
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
        header = ModelHeader(sender, 1, 0, 0, 0, 0, 1, 1, 1.0, MODEL_BYTES, "float32")
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


def limits(limit: int, links: int, seconds: float) -> list[list[object]]:
    """Return a row for each kind of limit."""
    rows: list[list[object]] = []
    for way in ("upload", "download", "undeclared"):
        try:
            measured = asyncio.run(rate(way, limit, links, seconds))
        except ConfigError as error:
            print(f"skipped: {error}")
            continue
        rows.append([way, limit, round(measured), f"{100 * (measured / limit - 1):+.1f} %"])
    return rows


# ---- a large model ----------------------------------------------------------------------------------------------------

ALONE = 60  # small pushes before the large one
MEMORY_AIM, SLOWER_AIM = 1.1, 2.0


class TwoSizes(FoldingReceiver):
    """Folds large models here, and small ones with a receiver of their own, which has its own fold thread."""

    def __init__(self, large_bytes: int, small_bytes: int) -> None:
        super().__init__(large_bytes // 4)
        self._small, self._small_bytes = FoldingReceiver(small_bytes // 4), small_bytes
        self._average.fill(0)  # as after an earlier round: all of it is resident
        self.measuring = True

    @override
    async def offered(self, header: ModelHeader) -> Arrival | messages.PushReply:
        """Take the model with the receiver of its size."""
        if header.size_bytes == self._small_bytes:
            return await self._small.offered(header)
        return await super().offered(header)

    @override
    async def complete(self, arrival: Arrival) -> messages.PushReply:
        """Fold with the receiver of its size."""
        if arrival.header.size_bytes == self._small_bytes:
            return await self._small.complete(arrival)
        return await super().complete(arrival)

    @override
    async def heartbeat(self, heartbeat: messages.Heartbeat) -> None:
        """Accept."""


def receive(large_bytes: int, small_bytes: int, pipe: Connection) -> None:
    """Serve until terminated."""

    async def main() -> None:
        limits = replace(LIMITS, requests_per_second=1e6)
        server = PeerServer(TwoSizes(large_bytes, small_bytes), "127.0.0.1:0", limits=limits, timeouts=TIMEOUTS)
        pipe.send(await server.start())
        await asyncio.Event().wait()

    asyncio.run(main())


def send_large(port: int, size: int, pipe: Connection) -> None:
    """Push one large model when told to; tell seconds and own extra memory."""

    async def main() -> None:
        send, link = peer_sender(port, np.ones(size // 4, np.float32))
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        before, began = memory_bytes("VmRSS"), time.perf_counter()
        await send()
        seconds = time.perf_counter() - began
        extra = (await link.status())["extra_bytes"]
        pipe.send((seconds, extra, memory_bytes("VmHWM") - before))
        await link.close()

    asyncio.run(main())


async def push_small(port: int, size: int, large: Connection) -> tuple[list[float], list[float], list[float]]:
    """Push small models alone, then beside the large one; return both kinds of seconds, and heartbeats' beside it."""
    send, link = peer_sender(port, np.ones(size // 4, np.float32))
    alone, beside, beats = [], [], []
    for _ in range(ALONE + 3):
        began = time.perf_counter()
        await send()
        alone.append(time.perf_counter() - began)
    large.send("go")
    while not large.poll():
        began = time.perf_counter()
        await send()
        beside.append(time.perf_counter() - began)
        beats.append(await beat(link))
    await link.close()
    return alone[3:], beside, beats


async def beat(link: NeighborLink) -> float:
    """Return the seconds that a heartbeat takes."""
    began = time.perf_counter()
    await link.heartbeat(Heartbeat(2, 1, 0, Phase.RUNNING))
    return time.perf_counter() - began


def beside_a_large_model(large: int, small: int) -> list[list[object]]:
    """Push models of these bytes; return the rows."""
    context = multiprocessing.get_context("spawn")
    (ports, theirs), (pipe, sender_pipe) = context.Pipe(), context.Pipe()
    receiver = context.Process(target=receive, args=(large, small, theirs), daemon=True)
    receiver.start()
    port = ports.recv()
    sender = context.Process(target=send_large, args=(port, large, sender_pipe), daemon=True)
    sender.start()
    pipe.recv()
    alone, beside, beats = asyncio.run(push_small(port, small, pipe))
    seconds, extra, _own = pipe.recv()
    sender.join()
    receiver.terminate()
    usual, slowed = statistics.median(alone), statistics.median(beside)
    return [
        ["large model", f"{large / 1e6:.0f} MB in {seconds:.2f} s, {large / seconds / 1e9:.2f} GB/s, folded", ""],
        ["receiver's extra memory, models", f"{extra / large:.3f}", f"{MEMORY_AIM}"],
        [f"small model of {small / 1e6:g} MB alone, median", f"{1000 * usual:.1f} ms", ""],
        [
            "the same beside the large one, median",
            f"{1000 * slowed:.1f} ms ({slowed / usual:.1f}x)",
            f"{SLOWER_AIM:g}x",
        ],
        [f"the slowest of {len(beside)} beside it", f"{1000 * max(beside):.0f} ms ({max(beside) / usual:.1f}x)", ""],
        ["the slowest heartbeat beside it", f"{1000 * max(beats):.0f} ms", f"{TIMEOUTS.suspicion_s:g} s"],
    ]


# ---- slow -------------------------------------------------------------------------------------------------------------

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


async def push_twice(port: int, size: int, kb_s: float) -> tuple[float, float, float, int]:
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


def models_at(rates: list[float], megabytes: float, seconds: float, repeats: int) -> list[list[object]]:
    """Return a row for each rate, kB/s; 0: loopback."""
    context = multiprocessing.get_context("spawn")
    rows: list[list[object]] = []
    for kb_s in rates:
        size = round(min(megabytes * MEGABYTE, seconds * kb_s * 1000 if kb_s else float("inf"))) // 4 * 4
        ours, theirs = context.Pipe()
        receiver = context.Process(target=receive_as_peer, args=(size, theirs), daemon=True)
        receiver.start()
        port = ours.recv()
        pushed = [asyncio.run(push_twice(port, size, kb_s)) for _ in range(1 if kb_s else repeats)]
        receiver.terminate()
        first, second, slowest, failed = (statistics.median(column) for column in zip(*pushed, strict=True))
        ideal = f"{size / kb_s / 1000:.1f}" if kb_s else "-"
        rows.append(
            [f"{kb_s:g} kB/s" if kb_s else "loopback", f"{size / 1e6:.2f}", ideal, f"{first:.3f}", f"{second:.3f}"]
        )
        rows[-1] += [f"{slowest:.2f}", failed]
    return rows


def main() -> None:
    """Measure the parts that are named and print a table for each."""
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--limit", default="2MB", help="limits: bytes per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="limits: of each kind")
    parser.add_argument("--links", type=int, default=4, help="limits: number of links")
    parser.add_argument("--megabytes", type=float, default=1000, help="large: of the large model")
    parser.add_argument("--small", type=float, default=1, help="large: megabytes of the small models")
    parser.add_argument("--rates", type=float, nargs="+", default=[0, 8, 40, 300, 2000], help="slow: kB/s; 0: loopback")
    parser.add_argument("--size", type=float, default=18, help="slow: megabytes of a model")
    parser.add_argument(
        "--longest", type=float, default=20, help="slow: seconds of a model at a rate; longer ones are smaller"
    )
    parser.add_argument("--repeats", type=int, default=5, help="slow: over loopback")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"expected {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if "limits" in given.parts:
        rows = limits(parse_rate(given.limit, "--limit"), given.links, given.seconds)
        title = f"Limits over {given.seconds:g} s, {given.links} links"
        columns = ("limit", "bytes/s allowed", "bytes/s measured", "difference")
        record("limits", title, columns, rows, save=given.save)
    if "large" in given.parts:
        sizes = [round(megabytes * MEGABYTE) // 4 * 4 for megabytes in (given.megabytes, given.small)]
        rows = beside_a_large_model(*sizes)
        record("large-model", "A large model", ["what", "measured", "aim, at most"], rows, save=given.save)
    if "slow" in given.parts:
        head = [
            "link", "MB", "s at the rate", "first push s", "second push s", "slowest heartbeat s", "heartbeats failed",
        ]  # fmt: skip
        rows = models_at(given.rates, given.size, given.longest, given.repeats)
        record("slow-link", "Models over a link that has shown nothing yet", head, rows, save=given.save)


if __name__ == "__main__":
    main()

"""What a link carries: models under a rate limit, beside a large model, at a low rate, over a slow relay, and over a tunnel.

    python benchmarks/links.py [limits large slow relay tunnel firewall] [--limit 2MB] [--rates 0 8 300] [--pushed 1 100] [--save]

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

relay: the same beside a model of some seconds, pushed and pulled, over a relay with a limit of its own
(`relay.bytes_per_second`); all peers in this process.

tunnel: pushes to a neighbor that is dialed, over the tunnel that it opens, and over a relay; repeats interleaved.

Each way has its own new processes on loopback: sender, receiver and, on a relayed edge, the relay. Pushes run with TLS through
everything that a peer does with a model (`transport.py`); small ones in a row, since the clock of processes counts hundredths
of a second. Processor time is that of all processes of a way for one push; the ratio is that of the medians. `floor` is a dialed
push plus a bare gRPC stream of as many bytes, with TLS and frames of 1 MiB: the bytes of a tunnel cross gRPC twice.
Memory is how far the resident memory of each end rose above what it was before the first push, at its highest.

firewall: accuracy of peers that cannot be dialed, and of their neighbors, in runs of real processes: a ring in which a
third of the peers sit behind a firewall that lets nothing in. *Without tunnels* those peers open none, so their neighbors
cannot call them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import grpc.aio
import numpy as np
from growing import processor_s
from record import new_parser, record
from testbeds import Outcome as Run
from testbeds import loopback_graph, run
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

from coordinator_free_bootstrap import Graph, Manifest, Node, Relay, make_graph
from coordinator_free_bootstrap.errors import ConfigError, NeighborUnavailable, Refusal
from coordinator_free_bootstrap.rates import check_limits, parse_rate
from peer.bed.chaos.proxy import DirectedEdge, FaultProxy
from peer.bed.chaos.toxics import Toxics
from peer.bed.testbed.ports import free_ports
from peer.core import messages
from peer.core.arrivals import Arrival
from peer.core.encoding import Payload, encode
from peer.core.messages import Heartbeat, ModelHeader, Outcome, Phase
from peer.identity.certificates import Certificate, make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.lab.comparison import half_width
from peer.runtime.edges import Edges
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.memory import keep_frame_memory
from peer.wire.options import channel_options, server_options
from peer.wire.pacing import Pacing
from peer.wire.security import MutualTls, open_channel
from peer.wire.server import PeerServer

PARTS = ("limits", "large", "slow", "relay", "tunnel", "firewall")

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
    """Push one large model on request; report seconds and own extra memory."""

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

    def __init__(self, link: NeighborLink, sender: int = 2) -> None:
        self.slowest_s, self.failed = 0.0, 0
        self._task = asyncio.ensure_future(self._send(link, sender))

    async def _send(self, link: NeighborLink, sender: int) -> None:
        while True:
            began = time.perf_counter()
            try:
                await link.heartbeat(Heartbeat(sender, 1, 0, Phase.RUNNING))
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


# ---- relay ------------------------------------------------------------------------------------------------------------


class Pulled(FoldingReceiver):
    """Also gives a model to those that pull it."""

    def __init__(self, header: ModelHeader, payload: Payload) -> None:
        super().__init__(header.size_bytes // 4)
        self._model = replace(header, sender=RECEIVER), payload

    @override
    async def pull(self, request: messages.PullRequest) -> tuple[ModelHeader, Payload]:
        """Return the model."""
        return self._model


async def model_over_relay(way: str, kb_s: float, size: int) -> tuple[float, float, int]:
    """Return the seconds of a push or pull over a relay, those of the slowest heartbeat beside it, and the failed heartbeats."""
    graph, pairs = graph_of("relay", round(1000 * kb_s))
    theta = np.ones(size // 4, np.float32)
    header = ModelHeader(SENDER, 1, 0, 0, 0, 0, 1, 100, 1.0, theta.nbytes, "float32")
    payload = encode(theta, schema_of(theta.size), "float32")
    async with AsyncExitStack() as stack:
        for peer_id in reversed(graph.ids):  # the relay first, and the sender last
            tls, pacing = MutualTls(graph, peer_id, pairs[peer_id]), Pacing.of(graph, peer_id)
            edges = Edges(peer_id, graph, tls, pacing=pacing)
            server = server_of(peer_id, graph, tls, edges, Pulled(header, payload), pacing)
            await server.start()
            stack.push_async_callback(server.stop, 0)
            edges.open()
            stack.push_async_callback(edges.close)
        link = edges.links[RECEIVER]
        for _ in range(ATTEMPTS):
            with suppress(NeighborUnavailable):
                await link.heartbeat(Heartbeat(SENDER, 1, 0, Phase.RUNNING))
                break
            await asyncio.sleep(PAUSE_S)
        beats, began = Beats(link, SENDER), time.perf_counter()
        await (link.push(header, payload) if way == "push" else link.pull(messages.PullRequest(SENDER, 1, 0)))
        seconds = time.perf_counter() - began
        await beats.end()
    return seconds, beats.slowest_s, beats.failed


def models_over_relays(rates: list[float], seconds: float) -> list[list[object]]:
    """Return two rows for each rate of a relay, kB/s."""
    rows: list[list[object]] = []
    for kb_s in filter(None, rates):
        size = round(seconds * kb_s * 1000) // 4 * 4
        for way in ("push", "pull"):
            took, slowest, failed = asyncio.run(model_over_relay(way, kb_s, size))
            figures = (f"{size / 1e6:.2f}", f"{seconds:.1f}", f"{took:.1f}", f"{slowest:.2f}", failed)
            rows.append([f"{way}, {kb_s:g} kB/s", *figures])
    return rows


# ---- tunnel --------------------------------------------------------------------------------------------------------------

SENDER, RECEIVER, RELAY = 0, 1, 2
WAYS = ("dialed", "tunnel", "relay", "bare")
AIM = 1.5  # times the processor time of a dialed edge
WARM_UP = 2  # pushes before the first that counts: connections, flow control, memory
UNLIMITED = 1 << 40  # bytes per second of the relay
PAUSE_S, ATTEMPTS = 0.05, 200  # between two attempts while the tunnels come up
BURST_BYTES, BURST_MAX = 20 * MEGABYTE, 100  # pushes in a row: their bytes, and the largest number of them
BARE_FRAME_BYTES = 1 << 20


def graph_of(way: str, rate: int = UNLIMITED) -> tuple[Graph, list[KeyPair]]:
    """Return a graph of three peers on free ports in which the sender reaches the receiver in one way, and their keys."""
    graph = make_graph("complete", 3)
    dialers = {"tunnel": (RECEIVER,), "relay": (SENDER, RECEIVER)}.get(way, ())
    nodes = (
        replace(node, address=f"127.0.0.1:{port}", dials_only=node.id in dialers, relay=Relay(rate, 8))
        if node.id not in dialers
        else replace(node, address="", dials_only=True)
        for node, port in zip(graph.nodes, free_ports(3), strict=True)
    )
    graph = replace(graph, nodes=tuple(nodes), via=((SENDER, RECEIVER, RELAY),) if way == "relay" else ())
    made = [make_certificate("federation", peer_id) for peer_id in graph.ids]
    pairs = [KeyPair(private, certificate, certificate.pem()) for private, certificate in made]
    return pin(graph, [pair.certificate for pair in pairs]), pairs


def peer(peer_id: int, way: str, graph: Graph, private: bytes, pem: bytes, size: int, orders: Connection) -> None:
    """Run one peer until it is ended; it obeys orders."""
    tls = MutualTls(graph, peer_id, KeyPair(private, Certificate.from_pem(pem, "own"), pem))
    asyncio.run((_bare if way == "bare" else _peer)(peer_id, graph, tls, size, orders))


def server_of(
    peer_id: int, graph: Graph, tls: MutualTls, edges: Edges, receiver: FoldingReceiver, pacing: Pacing | None = None
) -> PeerServer:
    """Return the server of one peer."""
    return PeerServer(
        receiver,
        graph.node(peer_id).address,
        limits=WireLimits(),
        timeouts=graph.manifest.timeouts,
        credentials=tls.server_credentials(),
        identify=tls.identify,
        switchboard=edges.switchboard,
        local=edges.service,
        pacing=pacing or Pacing(),
    )


async def _peer(peer_id: int, graph: Graph, tls: MutualTls, size: int, orders: Connection) -> None:
    edges = Edges(peer_id, graph, tls)
    await server_of(peer_id, graph, tls, edges, FoldingReceiver(size // 4 if peer_id == RECEIVER else 1)).start()
    edges.open()
    theta = np.random.default_rng(1).standard_normal(size // 4 if peer_id == SENDER else 1, np.float32)
    header = ModelHeader(SENDER, 1, 0, 0, 0, 0, 1, 100, 1.0, theta.nbytes, "float32")
    payload = encode(theta, schema_of(theta.size), "float32")

    async def push() -> None:
        reply = await edges.links[RECEIVER].push(header, payload)
        if reply is not Outcome.FOLDED:
            raise SystemExit(f"push: {reply}")

    await _obey(orders, push)


async def _bare(peer_id: int, graph: Graph, tls: MutualTls, size: int, orders: Connection) -> None:
    """The bytes of a push through gRPC with TLS, and nothing else."""
    keep_frame_memory()

    async def take(_requests: object, context: Any) -> bytes:
        while await context.read() is not grpc.aio.EOF:
            pass
        return b""

    timeouts, address = graph.manifest.timeouts, graph.node(RECEIVER).address
    server = grpc.aio.server(options=server_options(timeouts, WireLimits()))
    methods = {"Take": grpc.stream_unary_rpc_method_handler(take)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", methods),))
    server.add_secure_port(graph.node(peer_id).address, tls.server_credentials())
    await server.start()
    stream = open_channel(address, channel_options(timeouts), tls.channel(1 - peer_id)).stream_unary("/bare/Take")
    frames = [bytes(min(BARE_FRAME_BYTES, size - start)) for start in range(0, size, BARE_FRAME_BYTES)]

    async def push() -> None:
        call = stream()
        for frame in frames:
            await call.write(frame)
        await call.done_writing()
        await call

    await _obey(orders, push)


async def _obey(orders: Connection, push: Callable[[], Awaitable[None]]) -> None:
    """Answer each order, a number of pushes, with their seconds or an error; answer 0 with the bytes that memory grew by."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident memory from now on
    before = memory_bytes("VmRSS")
    orders.send("up")
    while True:
        pushes = await asyncio.to_thread(orders.recv)
        began = time.perf_counter()
        try:
            for _ in range(pushes):
                await push()
            orders.send(time.perf_counter() - began if pushes else memory_bytes("VmHWM") - before)
        except Exception as error:  # the tunnel is not up yet; the caller ends the benchmark if that stays so
            orders.send(str(error))


class Way:
    """The processes of one way."""

    def __init__(self, name: str, size: int) -> None:
        graph, pairs = graph_of(name)
        context = multiprocessing.get_context("spawn")
        self.orders: dict[int, Connection] = {}
        self.pids: list[int] = []
        self.seconds: list[float] = []
        self.used: list[float] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._burst = max(1, min(BURST_MAX, BURST_BYTES // size))
        for peer_id in graph.ids if name == "relay" else (SENDER, RECEIVER):
            ours, theirs = context.Pipe()
            pair = pairs[peer_id]
            arguments = (peer_id, name, graph, pair.private_key, pair.chain, size, theirs)
            process = context.Process(target=peer, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that the end of the process ends a wait for its answer
            self._processes.append(process)
            self.orders[peer_id] = ours
            self.pids.append(process.pid or 0)

    def wait_until_up(self) -> None:
        """Wait until all processes serve."""
        for each in self.orders.values():
            each.recv()

    def push(self, attempts: int = 1) -> None:
        """Push models in a row, and note the seconds and processor seconds of one."""
        for attempt in range(attempts):
            before = sum(map(processor_s, self.pids))
            self.orders[SENDER].send(self._burst)
            answer = self.orders[SENDER].recv()
            if isinstance(answer, float):
                self.seconds.append(answer / self._burst)
                self.used.append((sum(map(processor_s, self.pids)) - before) / self._burst)
                return
            if attempt + 1 == attempts:
                raise SystemExit(f"push: {answer}")
            time.sleep(PAUSE_S)

    def grown(self) -> list[int]:
        """Return by how many bytes the memory of each end grew: sender, receiver, relay."""
        for each in self.orders.values():
            each.send(0)
        return [each.recv() for each in self.orders.values()]

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()


def measure(size: int, repeats: int) -> list[list[object]]:
    """Return the rows of one model size."""
    ways = {name: Way(name, size) for name in WAYS}
    try:
        for way in ways.values():
            way.wait_until_up()
        for repeat in range(WARM_UP + repeats):
            for way in ways.values():
                way.push(attempts=200 if repeat == 0 else 1)
        grown_by = {name: way.grown() for name, way in ways.items()}
    finally:
        for way in ways.values():
            way.stop()
    rows: list[list[object]] = []
    used = {name: statistics.median(way.used[WARM_UP:]) for name, way in ways.items()}
    used["floor"] = used["dialed"] + used.pop("bare")
    for name, seconds in used.items():
        ratio = f"{seconds / used['dialed']:.2f}" + (f" (aim {AIM:g})" if name == "tunnel" else "")
        measured = name in ways  # the floor is a sum
        speed = f"{size / statistics.median(ways[name].seconds[WARM_UP:]) / MEGABYTE:.3g}" if measured else ""
        memory = " / ".join(f"{grown / MEGABYTE:.0f}" for grown in grown_by[name]) if measured else ""
        rows.append([f"{size / MEGABYTE:g} MB, {name}", speed, f"{1000 * seconds:.3g}", ratio, memory])
    return rows


# ---- accuracy ----------------------------------------------------------------------------------------------------------

CLOSED = "127.0.0.1:9"  # nothing listens there
PEERS, BEHIND = 6, (1, 4)
SETTINGS = [
    "run.split=iid",
    "run.batch_size=10",
    "run.model_options.hidden=16",
    "run.start.deadline_s=5",
    "run.timeouts.suspicion_s=10",
    "run.timeouts.round_deadline_s=20",
]
CASES = {  # name -> algorithm, firewall, tunnels
    "local": ("local", False, False),
    "dfedavg, without tunnels": ("dfedavg", True, False),
    "dfedavg, with tunnels": ("dfedavg", True, True),
    "dfedavg, no firewall": ("dfedavg", False, False),
}


def dials_only(graph: Graph) -> Graph:
    """Return the graph in which the peers behind the firewall only dial."""
    nodes = (replace(node, address="", dials_only=True) if node.id in BEHIND else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@contextmanager
def no_tunnels() -> Iterator[None]:
    """Make the peers behind the firewall unreachable, and let them open no tunnel."""
    open_links = Edges.open

    def opened(edges: Edges, *, offers: bool = True) -> None:
        open_links(edges, offers=offers)
        for neighbor in edges.links.keys() & set(BEHIND):
            edges.links[neighbor].redirect(CLOSED)

    with patch.object(Edges, "open", opened), patch.object(Edges, "offer_to", lambda _edges, _neighbor: None):
        yield


def outcome_of(case: str, rounds: int, samples: int, seed: int) -> Run:
    """Run one case with one seed."""
    algorithm, firewall, tunnels = CASES[case]
    settings = [*SETTINGS, f"run.algorithm={algorithm}", f"run.rounds={rounds}", f"run.seed={seed}"]
    settings += [f"run.split_options.samples_per_peer={samples}", "run.split_options.test_per_peer=100"]
    graph = loopback_graph("ring", PEERS, settings)
    if firewall and tunnels:
        return run(dials_only(graph))
    if firewall:
        with no_tunnels():
            return run(graph, codes=(0, 51))  # 51: a peer behind the firewall may be alone in most rounds
    return run(graph)


def accuracies(outcome: Run) -> tuple[float, float, float]:
    """Return the mean accuracy behind the firewall and of the others, in percent, and the models folded per peer and round."""
    last, folded = {}, []
    for peer_id, history in outcome.histories.items():
        rounds = [line for line in history if line["kind"] == "round"]
        last[peer_id] = 100 * rounds[-1]["metric_value"]
        folded += [len(line["folded"]) for line in rounds]
    behind = statistics.mean(last[peer_id] for peer_id in BEHIND)
    return behind, statistics.mean(last[p] for p in last if p not in BEHIND), statistics.mean(folded)


def accuracy(rounds: int, samples: int, seeds: list[int]) -> list[list[object]]:
    """Return a row for each case."""
    rows: list[list[object]] = []
    for case in CASES:
        outcomes = [outcome_of(case, rounds, samples, seed) for seed in seeds]
        behind, beside, folded = (list(values) for values in zip(*map(accuracies, outcomes), strict=True))
        rows.append([case, shown(behind), shown(beside), f"{statistics.mean(folded):.2f}"])
    return rows


def shown(values: list[float]) -> str:
    """Return the mean and half of its 95 % interval over the seeds."""
    half = half_width(values)
    return f"{statistics.mean(values):.1f}" + ("" if half is None else f" ± {half:.1f}")


# ---- all of them ---------------------------------------------------------------------------------------------------------


def main() -> None:
    """Measure the parts that are named and print a table for each."""
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--limit", default="2MB", help="limits: bytes per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="limits: of each kind")
    parser.add_argument("--links", type=int, default=4, help="limits: number of links")
    parser.add_argument("--megabytes", type=float, default=1000, help="large: of the large model")
    parser.add_argument("--small", type=float, default=1, help="large: megabytes of the small models")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0, 8, 40, 300, 2000], help="slow, relay: kB/s; 0: loopback"
    )
    parser.add_argument("--size", type=float, default=18, help="slow: megabytes of a model")
    parser.add_argument(
        "--longest", type=float, default=20, help="slow, relay: seconds of a model at a rate; longer ones are smaller"
    )
    parser.add_argument("--repeats", type=int, help="slow: over loopback, default 5; tunnel: of each way, default 9")
    parser.add_argument("--pushed", type=float, nargs="*", default=[0.01, 1, 100], help="tunnel: model sizes in MB")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="firewall: runs")
    parser.add_argument("--rounds", type=int, default=40, help="firewall: of a run")
    parser.add_argument("--samples", type=int, default=60, help="firewall: of a peer")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"expected {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if "firewall" in given.parts:  # first: the testbed forks, which must not happen once gRPC has started here
        head = [
            "run",
            "accuracy behind the firewall, %",
            "accuracy of their neighbors, %",
            "models folded per peer and round",
        ]
        title = f"Ring of {PEERS}, peers {BEHIND} behind a firewall, {len(given.seeds)} seeds"
        record("tunnel-accuracy", title, head, accuracy(given.rounds, given.samples, given.seeds), save=given.save)
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
        rows = models_at(given.rates, given.size, given.longest, given.repeats or 5)
        record("slow-link", "Models over a link that has shown nothing yet", head, rows, save=given.save)
    if "relay" in given.parts:
        head = ["model, relay", "MB", "s at the rate", "s", "slowest heartbeat s", "heartbeats failed"]
        rows = models_over_relays(given.rates, given.longest)
        record("slow-relay", "Models over a slow relay", head, rows, save=given.save)
    if "tunnel" in given.parts:
        rows = [row for size in given.pushed for row in measure(round(size * MEGABYTE) // 4 * 4, given.repeats or 9)]
        head = ["push", "MB/s", "processor ms, all ends", "times dialed", "memory grown: sender / receiver / relay, MB"]
        record("tunnel", "A tunneled edge beside a dialed one", head, rows, save=given.save)


if __name__ == "__main__":
    main()

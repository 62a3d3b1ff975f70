"""Benchmark 1, transport: one model from a sender's tensors to a receiver's folded average, against two limits.

Two processes on loopback. ``peer`` is NeighborLink.push -> PeerServer: framed, written in place, size, digest and
finiteness checked, folded into a running average, acknowledged. The limits, measured in the same run with repeats
interleaved, carry the same bytes and do nothing with them: ``grpc`` is a bare grpc.aio client stream with identity
serializers and gRPC's defaults, at the best of three frame sizes; ``tcp`` is a socket read into one buffer. Speeds are
medians, ratios are medians of the ratios within a repeat. Extra memory is the receiver's peak resident memory during a
push whose buffer is new, minus what it held before, over the model's size.

    python benchmarks/transport.py [--sizes 1 10 100] [--repeats 15] [--save]
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the testbed does: one thread per peer

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from record import new_parser, record

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.manifest import Timeouts
from peer.core import messages
from peer.core.arrivals import Arrival
from peer.core.averaging import fold
from peer.core.encoding import Payload, decode, encode
from peer.core.schema import Schema, TensorSpec
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.round_ring import RoundRing
from peer.wire.server import PeerServer

FRAME_SIZES = {"256 KiB": 256 << 10, "1 MiB": 1 << 20, "3 MiB": 3 << 20}
LIMITS, TIMEOUTS = WireLimits(), Timeouts()
MEGABYTE = 1_000_000
TARGETS = {"grpc": 0.8, "tcp": 0.25, "memory": 1.3}


class FoldingReceiver:
    """A request handler that reads every model into a reused buffer and folds it on one thread."""

    def __init__(self, elements: int) -> None:
        self._schema = schema_of(elements)
        self._average = np.zeros(elements, np.float32)
        self._folded = 1.0
        self._buffer: np.ndarray | None = None
        self._fold_thread = ThreadPoolExecutor(1, thread_name_prefix="fold")
        self._resident_before = 0
        self.measuring = False
        self.extra_bytes = 0
        self.rounds = RoundRing()

    async def offered(self, header: messages.ModelHeader) -> Arrival | messages.PushReply:
        """Accept; while memory is measured, into a new buffer."""
        if self.measuring:
            self._buffer = None
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present resident memory
            self._resident_before = memory_bytes("VmRSS")
        if self._buffer is None:
            self._buffer = np.empty(header.size_bytes, np.uint8)
        return Arrival(header, self._buffer)

    async def complete(self, arrival: Arrival) -> messages.PushReply:
        """Fold on the fold thread, as a peer does."""
        await asyncio.get_running_loop().run_in_executor(self._fold_thread, self._fold, arrival)
        if self.measuring:
            self.extra_bytes = memory_bytes("VmHWM") - self._resident_before
        return messages.Outcome.FOLDED

    def _fold(self, arrival: Arrival) -> None:
        model = decode(arrival.buffer, self._schema, arrival.header.encoding)
        self._folded = fold(self._average, self._folded, model)

    def status(self) -> dict[str, Any]:
        """Return the extra memory of the last measured push."""
        return {"extra_bytes": self.extra_bytes}

    async def heartbeat(self, heartbeat: messages.Heartbeat) -> Refusal | None:
        """Start to measure memory."""
        self.measuring = True
        return None

    async def control(self, message: messages.Control) -> Refusal | None:
        """Accept."""
        return None

    async def hello(self, hello: messages.Hello) -> messages.HelloReply:
        """Accept."""
        return messages.HelloReply(hello)

    async def pull(self, request: messages.PullRequest) -> tuple[messages.ModelHeader, Payload] | Refusal:
        """Refuse."""
        return Refusal(RefusalCode.SLOT_OUT_OF_RANGE)

    def frame(self, arrival: Arrival) -> None:
        """Do nothing: no heartbeat waits."""

    def lost(self, arrival: Arrival, refusal: Refusal | None) -> None:
        """Stop the benchmark."""
        raise SystemExit(f"a push was lost: {refusal or 'its stream ended'}")

    def refused(self, caller: int | None, refusal: Refusal) -> None:
        """Stop the benchmark."""
        raise SystemExit(f"a push was refused: {refusal}")


def memory_bytes(field: str, process: int | str = "self") -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def schema_of(elements: int) -> Schema:
    return Schema((TensorSpec("model", (elements,)),))


def receive_as_peer(size: int, ports: Connection) -> None:
    async def main() -> None:
        server = PeerServer(FoldingReceiver(size // 4), "127.0.0.1:0", limits=LIMITS, timeouts=TIMEOUTS)
        ports.send(await server.start())
        await asyncio.Event().wait()

    asyncio.run(main())


def receive_bare_grpc(size: int, ports: Connection) -> None:
    async def swallow(_requests: Any, context: Any) -> bytes:
        received = 0
        while (frame := await context.read()) is not grpc.aio.EOF:
            received += len(frame)
        return received.to_bytes(8, "little")

    async def main() -> None:
        server = grpc.aio.server()
        handler = grpc.stream_unary_rpc_method_handler(swallow)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Push": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ports.send(port)
        await asyncio.Event().wait()

    asyncio.run(main())


def receive_raw_tcp(size: int, ports: Connection) -> None:
    buffer = memoryview(bytearray(size))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports.send(listener.getsockname()[1])
        connection, _address = listener.accept()
        while True:
            filled = 0
            while filled < size:
                count = connection.recv_into(buffer[filled:])
                if count == 0:
                    return
                filled += count
            connection.sendall(b"\1")


Send = Callable[[], Awaitable[None]]
Seconds = dict[str, list[float]]


def peer_sender(port: int, theta: np.ndarray) -> tuple[Send, NeighborLink]:
    link = NeighborLink(1, f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS)
    schema = schema_of(theta.size)
    header = messages.ModelHeader(2, 1, 0, 0, 0, 0, 1, 100, 1.0, theta.nbytes, "float32")

    async def send() -> None:
        reply = await link.push(header, encode(theta, schema, "float32"))
        if reply is not messages.Outcome.FOLDED:
            raise SystemExit(f"push: {reply}")

    return send, link


def bare_sender(channel: grpc.aio.Channel, theta: np.ndarray, frame_bytes: int) -> Send:
    data = theta.tobytes()
    chunks = [data[start : start + frame_bytes] for start in range(0, len(data), frame_bytes)]
    push = channel.stream_unary("/bare/Push")

    async def send() -> None:
        call = push()
        for chunk in chunks:
            await call.write(chunk)
        await call.done_writing()
        if int.from_bytes(await call, "little") != len(data):
            raise SystemExit("bare grpc lost bytes")

    return send


def tcp_sender(port: int, theta: npt.NDArray[np.float32]) -> Send:
    connection = socket.create_connection(("127.0.0.1", port))
    view = theta.view(np.uint8).data

    async def send() -> None:
        connection.sendall(view)
        if connection.recv(1) != b"\1":
            raise SystemExit("raw TCP lost bytes")

    return send


async def measure(size: int, repeats: int, ports: dict[str, int]) -> tuple[Seconds, float]:
    """Return the seconds of each way, repeat by repeat, and the receiver's extra memory in models."""
    theta = np.random.default_rng(1).standard_normal(size // 4, np.float32)
    send_peer, link = peer_sender(ports["peer"], theta)
    ways = {"peer": send_peer, "tcp": tcp_sender(ports["tcp"], theta)}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['grpc']}") as channel:
        for name, frame_bytes in FRAME_SIZES.items():
            ways[f"grpc {name}"] = bare_sender(channel, theta, frame_bytes)
        seconds: Seconds = {name: [] for name in ways}
        for repeat in range(repeats + 2):
            for name, send in ways.items():
                start = time.perf_counter()
                await send()
                if repeat >= 2:  # the first two warm up connections, flow control and memory
                    seconds[name].append(time.perf_counter() - start)
    await link.heartbeat(
        messages.Heartbeat(2, 1, 0, messages.Phase.RUNNING)
    )  # from now on the receiver measures its memory
    extra = []
    for _ in range(3):
        await send_peer()
        extra.append((await link.status())["extra_bytes"] / size)
    await link.close()
    return seconds, statistics.median(extra)


def benchmark(size: int, repeats: int) -> tuple[Seconds, float]:
    """Start one receiver process per way, measure, and stop them."""
    receivers = {"peer": receive_as_peer, "grpc": receive_bare_grpc, "tcp": receive_raw_tcp}
    context = multiprocessing.get_context("spawn")
    ports, processes = {}, []
    for name, receive in receivers.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=receive, args=(size, theirs), daemon=True)
        process.start()
        processes.append(process)
        ports[name] = ours.recv()
    try:
        return asyncio.run(measure(size, repeats, ports))
    finally:
        for process in processes:
            process.terminate()
            process.join()


def row(size: int, seconds: Seconds, extra: float) -> list[str]:
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    best = min((name for name in median if name.startswith("grpc")), key=lambda name: median[name])
    return [
        f"{size / MEGABYTE:g} MB",
        f"{size / median['peer'] / 1e9:.2f}",
        f"{size / median[best] / 1e9:.2f} ({best.removeprefix('grpc ')})",
        f"{size / median['tcp'] / 1e9:.2f}",
        f"{speed_against(seconds, best):.2f}",
        f"{speed_against(seconds, 'tcp'):.2f}",
        f"{extra:.2f}",
    ]


def speed_against(seconds: Seconds, limit: str) -> float:
    """Return the median, over repeats, of the limit's time over the peer's: neighbors in time share a noisy machine."""
    return statistics.median(theirs / ours for theirs, ours in zip(seconds[limit], seconds["peer"], strict=True))


HEADINGS = [
    "model",
    "peer GB/s",
    "bare grpc GB/s (frames)",
    "raw TCP GB/s",
    f"of grpc (aim {TARGETS['grpc']})",
    f"of TCP (aim {TARGETS['tcp']})",
    f"extra memory, models (aim {TARGETS['memory']})",
]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 10, 100], help="model sizes in MB")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    sizes = [round(megabytes * MEGABYTE) // 4 * 4 for megabytes in options.sizes]
    rows = [row(size, *benchmark(size, options.repeats)) for size in sizes]
    record("transport", "Transport: one model, end to end, loopback", HEADINGS, rows, save=options.save)


if __name__ == "__main__":
    main()

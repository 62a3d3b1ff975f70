"""A TCP fault proxy for one ordered pair of peers: it accepts the connections of ``src`` in place of ``dst``.

It forwards both directions of a connection. Toxics belong to a direction of an edge, not to a connection: a one-way fault
affects the requests on connections of one peer and the replies on connections of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from peer.bed.chaos.toxics import Counters, Direction, Toxics

CHUNK_BYTES = 1 << 16
QUEUE_CHUNKS = 16  # read before a delayed writer; a full queue slows the sender, as a full link does
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST


@dataclass
class DirectedEdge:
    """One direction of one edge: its present toxics and its counters."""

    direction: Direction
    seed: int = 0
    toxics: Toxics = field(default_factory=Toxics)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed}/{self.direction}")
        self.changed = asyncio.Event()
        self.allowance: int | None = None  # bytes until a connection is reset

    def set(self, toxics: Toxics) -> None:
        """Replace the toxics and wake the connections that wait."""
        self.toxics, self.allowance = toxics, toxics.cut_after_bytes
        self.changed.set()
        self.changed = asyncio.Event()

    async def wait_until_open(self) -> None:
        """Wait while the direction is a black hole."""
        if self.toxics.black_hole:
            self.counters.held += 1
        while self.toxics.black_hole:
            await self.changed.wait()

    def delay_s(self) -> float:
        """Return the delay of the next chunk in seconds."""
        t = self.toxics
        spread = self.random.uniform(-t.jitter_ms, t.jitter_ms) if t.jitter_ms else 0.0
        return max(0.0, t.latency_ms + spread) / 1000


class FaultProxy:
    """The proxy of one ordered pair.

    Args:
        directed_edges: from src to dst, and from dst to src.
        target: host and port where dst listens.
    """

    def __init__(self, directed_edges: tuple[DirectedEdge, DirectedEdge], target: tuple[str, int]) -> None:
        self._edges = directed_edges
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: set[Callable[[], None]] = set()

    async def start(self, listening: socket.socket) -> None:
        """Accept connections on a bound socket."""
        self._server = await asyncio.start_server(self._connected, sock=listening)

    async def close(self) -> None:
        """Stop listening and reset all open connections, uncounted."""
        if self._server is not None:
            self._server.close()
        self.reset(count=False)

    def reset(self, *, count: bool = True) -> None:
        """Reset all open connections."""
        for drop in list(self._open):
            if count:
                self._edges[0].counters.resets += 1
            drop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forward, backward = self._edges
        forward.counters.connections += 1
        if forward.toxics.reset or backward.toxics.reset:
            (forward if forward.toxics.reset else backward).counters.refused += 1
            abort(writer)
            return
        writers = [writer]
        task = asyncio.current_task()

        def drop() -> None:
            for each in writers:
                abort(each)
            if task is not None:
                task.cancel()

        self._open.add(drop)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await forward.wait_until_open()
                far_reader, far_writer = await asyncio.open_connection(*self._target)
                writers.append(far_writer)
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(pump(forward, reader, far_writer, drop))
                    pumps.create_task(pump(backward, far_reader, writer, drop))
        finally:
            self._open.discard(drop)
            for each in writers:
                abort(each)


async def pump(
    edge: DirectedEdge, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: Callable[[], None]
) -> None:
    """Forward the bytes of one direction of a connection, with the toxics of its edge, until the end."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE_CHUNKS)
    async with asyncio.TaskGroup() as group:
        group.create_task(_read(edge, reader, queue))
        group.create_task(_write(edge, queue, writer, drop))


async def _read(edge: DirectedEdge, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        await edge.wait_until_open()
        try:
            data = await reader.read(CHUNK_BYTES)
        except OSError:  # the other end was killed: forward the end
            data = b""
        delay = edge.delay_s()
        edge.counters.delayed += delay > 0
        await queue.put((clock() + delay, data))
        if not data:
            return


async def _write(
    edge: DirectedEdge,
    queue: asyncio.Queue[tuple[float, bytes]],
    writer: asyncio.StreamWriter,
    drop: Callable[[], None],
) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due, data = await queue.get()
        if due > clock():
            await asyncio.sleep(due - clock())
        await edge.wait_until_open()
        if not data:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()
            return
        cut_at, edge.allowance = _spend(edge.allowance, len(data))
        try:
            await _forward(edge, data[:cut_at], writer)
        except OSError:  # the receiver is gone
            drop()
            return
        if cut_at is not None:
            edge.counters.cuts += 1
            drop()
            return


def _spend(allowance: int | None, size: int) -> tuple[int | None, int | None]:
    """Return where to cut a chunk (None: do not cut) and the allowance that remains; it allows one cut."""
    if allowance is None:
        return None, None
    return (allowance, None) if size >= allowance else (None, allowance - size)


async def _forward(edge: DirectedEdge, data: bytes, writer: asyncio.StreamWriter) -> None:
    toxics = edge.toxics
    rate = toxics.bandwidth_kb_s
    steps = [toxics.slice_bytes, rate and max(1, round(rate * 50))]  # 50 ms of bandwidth at a time
    size = min((step for step in steps if step), default=len(data)) or 1
    edge.counters.sliced += bool(toxics.slice_bytes and len(data) > toxics.slice_bytes)
    edge.counters.throttled += rate is not None
    for start in range(0, len(data), size):
        part = data[start : start + size]
        if rate is not None:
            await asyncio.sleep(len(part) / (rate * 1000))
        await edge.wait_until_open()
        writer.write(part)
        await writer.drain()
        edge.counters.bytes_passed += len(part)


def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()

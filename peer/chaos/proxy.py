"""A TCP fault proxy for one ordered pair of peers: it listens in place of ``dst`` for the connections that ``src`` opens.

Both directions of a connection pass through it. Toxics belong to directions of an edge, not to connections, because a
one-way fault must hit the requests of one peer's connection and the replies on the other's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from peer.chaos.toxics import Counters, Toxics

CHUNK_BYTES = 1 << 16
QUEUE_CHUNKS = 16  # read ahead of a delayed writer; then the sender feels it, as on a full link
RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: close sends RST

Direction = tuple[int, int]  # bytes that flow from the first peer to the second


@dataclass
class Lane:
    """One direction of one edge: its toxics now, and what they did."""

    direction: Direction
    seed: int = 0
    toxics: Toxics = field(default_factory=Toxics)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed}/{self.direction}")
        self.changed = asyncio.Event()
        self.allowance: int | None = None  # bytes until a connection is cut

    def set(self, toxics: Toxics) -> None:
        """Change the toxics; what waits looks again."""
        self.toxics, self.allowance = toxics, toxics.cut_after_bytes
        self.changed.set()
        self.changed = asyncio.Event()

    async def passable(self) -> None:
        """Wait while the lane is a black hole."""
        if self.toxics.black_hole:
            self.counters.held += 1
        while self.toxics.black_hole:
            await self.changed.wait()

    def delay_s(self) -> float:
        """Return how much later the next chunk arrives."""
        t = self.toxics
        spread = self.random.uniform(-t.jitter_ms, t.jitter_ms) if t.jitter_ms else 0.0
        return max(0.0, t.latency_ms + spread) / 1000


class FaultProxy:
    """Serve one ordered pair.

    Args:
        lanes: (bytes from src to dst, bytes from dst to src).
        target: where dst really listens.
    """

    def __init__(self, lanes: tuple[Lane, Lane], target: tuple[str, int]) -> None:
        self._lanes = lanes
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: set[Callable[[], None]] = set()

    async def start(self, listening: socket.socket) -> None:
        """Accept connections on a bound socket."""
        self._server = await asyncio.start_server(self._connected, sock=listening)

    async def close(self) -> None:
        """Stop listening and drop what is open."""
        if self._server is not None:
            self._server.close()
        self.reset(count=False)

    def reset(self, *, count: bool = True) -> None:
        """Reset all open connections."""
        for drop in list(self._open):
            if count:
                self._lanes[0].counters.resets += 1
            drop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forth, back = self._lanes
        forth.counters.connections += 1
        if forth.toxics.reset or back.toxics.reset:
            (forth if forth.toxics.reset else back).counters.refused += 1
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
                await forth.passable()
                far_reader, far_writer = await asyncio.open_connection(*self._target)
                writers.append(far_writer)
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(pump(forth, reader, far_writer, drop))
                    pumps.create_task(pump(back, far_reader, writer, drop))
        finally:
            self._open.discard(drop)
            for each in writers:
                abort(each)


async def pump(
    lane: Lane, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: Callable[[], None]
) -> None:
    """Carry bytes in one direction of one connection, with the lane's toxics, until its end."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE_CHUNKS)
    async with asyncio.TaskGroup() as group:
        group.create_task(_read(lane, reader, queue))
        group.create_task(_write(lane, queue, writer, drop))


async def _read(lane: Lane, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        await lane.passable()
        try:
            data = await reader.read(CHUNK_BYTES)
        except OSError:  # the other end was killed: pass the end on
            data = b""
        delay = lane.delay_s()
        lane.counters.delayed += delay > 0
        await queue.put((clock() + delay, data))
        if not data:
            return


async def _write(
    lane: Lane, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, drop: Callable[[], None]
) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due, data = await queue.get()
        if due > clock():
            await asyncio.sleep(due - clock())
        await lane.passable()
        if not data:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()
            return
        cut_at, lane.allowance = _spend(lane.allowance, len(data))
        try:
            await _pass_on(lane, data[:cut_at], writer)
        except OSError:  # the receiver is gone
            drop()
            return
        if cut_at is not None:
            lane.counters.cuts += 1
            drop()
            return


def _spend(allowance: int | None, size: int) -> tuple[int | None, int | None]:
    """Return where to cut a chunk (None: not at all), and the allowance that is left; one cut uses it up."""
    if allowance is None:
        return None, None
    return (allowance, None) if size >= allowance else (None, allowance - size)


async def _pass_on(lane: Lane, data: bytes, writer: asyncio.StreamWriter) -> None:
    toxics = lane.toxics
    rate = toxics.bandwidth_kb_s
    steps = [toxics.slice_bytes, rate and max(1, round(rate * 50))]  # 50 ms of bandwidth at a time
    size = min((step for step in steps if step), default=len(data)) or 1
    lane.counters.sliced += bool(toxics.slice_bytes and len(data) > toxics.slice_bytes)
    lane.counters.throttled += rate is not None
    for start in range(0, len(data), size):
        part = data[start : start + size]
        if rate is not None:
            await asyncio.sleep(len(part) / (rate * 1000))
        await lane.passable()
        writer.write(part)
        await writer.drain()
        lane.counters.bytes_passed += len(part)


def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that its other end is told with a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()

"""Carry the bytes of one connection over a gRPC stream: between a local socket and a stream, or between two streams.

Each direction reads, then waits until what it read is written: a slow reader holds its writer by flow control, and no more
than one frame of a direction is in memory. The connection ends as a whole when either direction ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress

import grpc
import grpc.aio

from coordinator_free_bootstrap.errors import RemoteProtocolError
from peer.wire.calls import Stream
from peer.wire.frames import chunk_frame, data_of

PIPE_BYTES_MAX = 256 << 10  # read from a socket at once
SOCKET_BUFFER_BYTES = 1 << 20
BROKEN = (OSError, grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, RemoteProtocolError)

ByteBudget = Callable[[int], Awaitable[None]]  # waits until a number of bytes may be carried


async def join_socket(local: socket.socket, stream: Stream, first: bytes | None = None) -> None:
    """Carry bytes between a connected, non-blocking socket and a stream until one of them ends; close the socket.

    Args:
        local: the socket.
        stream: the other side.
        first: a frame that was already read from the stream.
    """
    local.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    with local:
        await _until_one_ends(_from_socket(local, stream), _to_socket(local, stream, first))


async def join_streams(one: Stream, other: Stream, budget: ByteBudget, most: int) -> None:
    """Carry frames between two streams until one of them ends, those of more than ``most`` bytes in parts.

    At a low rate a long frame would be silence at the receiver, and then many bytes at once.
    """
    await _until_one_ends(_forward(one, other, budget, most), _forward(other, one, budget, most))


async def _from_socket(local: socket.socket, stream: Stream) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(local, PIPE_BYTES_MAX):
        await stream.write(chunk_frame(memoryview(data)))


async def _to_socket(local: socket.socket, stream: Stream, frame: bytes | None) -> None:
    loop = asyncio.get_running_loop()
    if frame is None:
        frame = await stream.read()
    while frame is not grpc.aio.EOF:
        await loop.sock_sendall(local, data_of(frame))
        frame = await stream.read()


async def _forward(source: Stream, target: Stream, budget: ByteBudget, most: int) -> None:
    while (frame := await source.read()) is not grpc.aio.EOF:
        for part in _parts(frame, most):
            await budget(len(part))
            await target.write(part)


def _parts(frame: bytes, most: int) -> Iterator[bytes]:
    """Yield a frame as it is, or frames that carry at most ``most`` of its bytes each."""
    if len(frame) <= most:
        yield frame
        return
    data = data_of(frame)
    yield from (chunk_frame(data[start : start + most]) for start in range(0, len(data), most))


async def _until_one_ends(*directions: Coroutine[object, None, None]) -> None:
    """Run both directions until the first ends or breaks, then cancel the other."""
    tasks = [asyncio.ensure_future(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, *BROKEN):
                await task

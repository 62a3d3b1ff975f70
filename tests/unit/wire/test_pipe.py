"""A tunnel's frames carry the bytes of a socket in order, none is lost, and a stopped stream holds the socket's writer."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios

import grpc.aio
import numpy as np
import pytest

from peer.wire.frames import chunk_frame, data_of
from peer.wire.pipe import PIPE_BYTES_MAX, join_socket

MESSAGE = bytes(range(250)) * 4


class Held:
    """A stream that keeps frames, each write waiting until it is let through; it has nothing to read until it ends."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.open, self.ended = asyncio.Event(), asyncio.Event()
        self.writing = asyncio.Event()

    async def write(self, frame: bytes) -> None:
        self.written.append(bytes(data_of(frame)))
        self.writing.set()
        await self.open.wait()

    async def read(self) -> object:
        await self.ended.wait()
        return grpc.aio.EOF


def unread(end: socket.socket) -> int:
    """Return how many bytes wait in a socket."""
    return int(struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, bytes(4)))[0])


def pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


@pytest.mark.parametrize("size", [1, PIPE_BYTES_MAX, PIPE_BYTES_MAX + 1, 3 << 20])
def test_all_bytes_arrive_in_order_in_frames_of_limited_size(size: int) -> None:
    async def test() -> None:
        local, caller = pair()
        stream, sent = Held(), np.random.default_rng(size).bytes(size)
        stream.open.set()
        joining = asyncio.ensure_future(join_socket(local, stream))
        await asyncio.get_running_loop().sock_sendall(caller, sent)
        caller.close()
        await joining
        assert b"".join(stream.written) == sent
        assert max(map(len, stream.written)) <= PIPE_BYTES_MAX

    asyncio.run(asyncio.wait_for(test(), 30))


def test_the_writer_waits_while_the_stream_is_stopped() -> None:
    async def test() -> None:
        local, caller = pair()
        stream, loop = Held(), asyncio.get_running_loop()
        joining = asyncio.ensure_future(join_socket(local, stream))
        sending = asyncio.ensure_future(loop.sock_sendall(caller, bytes(16 << 20)))
        await stream.writing.wait()
        previous = -1
        while previous != (previous := unread(local)) or not previous:  # until the socket is full and stays full
            for _ in range(100):
                await asyncio.sleep(0)
        assert not sending.done() and len(stream.written) == 1
        sending.cancel()
        stream.ended.set()
        await joining
        caller.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_the_end_of_the_stream_closes_the_socket_after_what_it_carried() -> None:
    async def test() -> None:
        local, caller = pair()
        stream = Held()
        stream.ended.set()
        await join_socket(local, stream, chunk_frame(memoryview(MESSAGE)))
        assert caller.recv(1 << 20) == MESSAGE and caller.recv(1) == b""
        caller.close()

    asyncio.run(asyncio.wait_for(test(), 30))

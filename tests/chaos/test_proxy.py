"""The fault proxy: without toxics bytes pass unchanged, and each toxic has its effect and its counter."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from peer.bed.chaos.proxy import DirectedEdge, FaultProxy
from peer.bed.chaos.toxics import Toxics

pytestmark = pytest.mark.process

DATA = bytes(range(256)) * 1024  # 256 KiB


class Pair:
    """A client of peer 1, an echo server that is peer 2, and the proxy between them."""

    def __init__(self, proxy: FaultProxy, forth: DirectedEdge, back: DirectedEdge, port: int) -> None:
        self.proxy, self.forth, self.back, self.port = proxy, forth, back, port

    async def echo(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        writer.write_eof()
        try:
            return await reader.read()
        finally:
            writer.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def pair(seed: int = 0) -> AsyncIterator[Pair]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    forth, back = DirectedEdge((1, 2), seed), DirectedEdge((2, 1), seed)
    proxy = FaultProxy((forth, back), server.sockets[0].getsockname())
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    await proxy.start(listening)
    try:
        async with asyncio.timeout(20):
            yield Pair(proxy, forth, back, listening.getsockname()[1])
    finally:
        await proxy.close()
        server.close()


def run(test: object) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


def test_without_toxics_bytes_pass_unchanged() -> None:
    async def check() -> None:
        async with pair() as p:
            assert await p.echo(DATA) == DATA
            assert p.forth.counters.bytes_passed == p.back.counters.bytes_passed == len(DATA)
            assert (p.forth.counters.delayed, p.forth.counters.held, p.forth.counters.sliced) == (0, 0, 0)

    run(check())


def test_latency_delays_one_direction_only() -> None:
    async def check() -> None:
        async with pair() as p:
            p.forth.set(Toxics(latency_ms=150))
            clock = asyncio.get_running_loop().time
            began = clock()
            assert await p.echo(b"x") == b"x"
            assert clock() - began >= 0.15
            assert p.forth.counters.delayed > 0 == p.back.counters.delayed

    run(check())


def test_jitter_keeps_the_order_and_depends_on_its_seed_only() -> None:
    async def check() -> None:
        async with pair() as p:
            p.forth.set(Toxics(latency_ms=5, jitter_ms=5, slice_bytes=1000))
            assert await p.echo(DATA[:50_000]) == DATA[:50_000]
            assert p.forth.counters.sliced > 0

    run(check())
    edges = [DirectedEdge((1, 2), seed, Toxics(latency_ms=5, jitter_ms=5)) for seed in (3, 3, 4)]
    draws = [[edge.delay_s() for _ in range(5)] for edge in edges]
    assert draws[0] == draws[1] != draws[2]


def test_bandwidth_is_limited() -> None:
    async def check() -> None:
        async with pair() as p:
            p.back.set(Toxics(bandwidth_kb_s=200))
            clock = asyncio.get_running_loop().time
            began = clock()
            assert await p.echo(DATA[:100_000]) == DATA[:100_000]
            assert clock() - began >= 0.5
            assert p.back.counters.throttled > 0

    run(check())


def test_a_black_hole_holds_bytes_until_it_is_removed() -> None:
    async def check() -> None:
        async with pair() as p:
            p.forth.set(Toxics(black_hole=True))
            waiting = asyncio.ensure_future(p.echo(DATA))
            while not p.forth.counters.held:
                await asyncio.sleep(0.01)  # between two looks
            await asyncio.wait([waiting], timeout=0.3)  # in which bytes could pass
            assert not waiting.done() and p.forth.counters.bytes_passed == p.back.counters.bytes_passed == 0
            p.forth.set(Toxics())
            assert await waiting == DATA

    run(check())


def test_reset_ends_open_connections_and_refuses_new_ones() -> None:
    async def check() -> None:
        async with pair() as p:
            reader, writer = await asyncio.open_connection("127.0.0.1", p.port)
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            p.forth.set(Toxics(reset=True))
            p.proxy.reset()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            with pytest.raises(ConnectionError):
                await p.echo(DATA)
            assert p.forth.counters.resets == 1 and p.forth.counters.refused == 1
            p.forth.set(Toxics())
            assert await p.echo(DATA) == DATA

    run(check())


@pytest.mark.parametrize("count", [0, 1, 70_000, len(DATA) - 1])
def test_one_connection_is_reset_after_n_bytes(count: int) -> None:
    async def check() -> None:
        async with pair() as p:
            p.forth.set(Toxics(cut_after_bytes=count))
            with pytest.raises(ConnectionResetError):
                await p.echo(DATA)
            assert p.forth.counters.cuts == 1 and p.forth.counters.bytes_passed == count
            assert await p.echo(DATA) == DATA

    run(check())

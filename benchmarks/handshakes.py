"""What one handshake costs the peer that is called, and its caller: processor time, by what the caller brings.

A flood is as expensive as its handshakes. The last column says how many a second take a fifth of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from abuse import processor_seconds
from common import show

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from target import ATTACKER
from target_process import TargetProcess

from peer.wire.options import SERVICE

Deed = Callable[[TargetProcess], Coroutine[Any, Any, None]]


async def connect(target: TargetProcess) -> None:
    """Open a TCP connection and close it."""
    with socket.create_connection(("127.0.0.1", target.port)):
        pass


def _channel(target: TargetProcess, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    options = [("grpc.ssl_target_name_override", "peer-0.federation"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(f"127.0.0.1:{target.port}", credentials, options=options)


def _proved(target: TargetProcess) -> grpc.ChannelCredentials:
    pair = target.pairs[ATTACKER]
    return grpc.ssl_channel_credentials(target.pairs[0].chain, pair.private_key, pair.chain)


async def _call(target: TargetProcess, credentials: grpc.ChannelCredentials, *methods: str) -> None:
    async with _channel(target, credentials) as channel:
        for method in methods:
            with suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/{SERVICE}/{method}")(b"\x08\x03", timeout=2)


async def stranger(target: TargetProcess) -> None:
    """A TLS handshake without a certificate: it fails."""
    await _call(target, grpc.ssl_channel_credentials(target.pairs[0].chain), "Hello")


async def silent(target: TargetProcess) -> None:
    """A TLS handshake with a neighbor's certificate, and no call."""
    async with _channel(target, _proved(target)) as channel:
        await channel.channel_ready()


async def unknown(target: TargetProcess) -> None:
    """The same, and a call of a method that does not exist: gRPC alone answers."""
    await _call(target, _proved(target), "Nothing")


async def neighbor(target: TargetProcess) -> None:
    """The same, and a hello that is refused."""
    await _call(target, _proved(target), "Hello")


async def ten(target: TargetProcess) -> None:
    """The same, and ten such hellos on the one connection."""
    await _call(target, _proved(target), *["Hello"] * 10)


def measure(target: TargetProcess, deed: Deed, count: int) -> list[object]:
    """Return a row: what it is, and the milliseconds of both sides."""

    async def all_of_them() -> None:
        for _ in range(count):
            await deed(target)

    asyncio.run(deed(target))
    theirs, mine = processor_seconds(target.process.pid), time.process_time()
    asyncio.run(all_of_them())
    mine = time.process_time() - mine
    target.ask()  # by now it has dealt with all of them
    theirs = processor_seconds(target.process.pid) - theirs
    each = 1000 * theirs / count
    return [str(deed.__doc__).rstrip("."), f"{each:.2f}", f"{1000 * mine / count:.2f}", f"{200 / each:.0f}"]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        TargetProcess(Path(place), {"limits": {"requests_per_second": 1e6}}) as target,
    ):
        rows = [measure(target, deed, arguments.count) for deed in (connect, stranger, silent, unknown, neighbor, ten)]
    header = ["what the caller does", "the peer, ms", "the caller, ms", "a second that take a fifth of a core"]
    show("The processor time of one handshake", header, rows, arguments.markdown)


if __name__ == "__main__":
    main()

"""A model of 1 GB, end to end on loopback: the receiver's extra memory, and what happens beside it.

Three processes: a sender of the large model, a sender of small ones, and one receiver, which checks and folds both kinds as
`transport.py` describes. The small models are pushed one after another, and heartbeats sent, first alone, then until the
large model is folded. Extra memory is the receiver's peak during the large push minus what it held before, over the large
model's size.

    python benchmarks/large_model.py [--megabytes 1000] [--small 1] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from common import show
from transport import LIMITS, MEGABYTE, TIMEOUTS, FoldingReceiver, memory_bytes, peer_sender

from peer.core import messages
from peer.wire.client import NeighborLink
from peer.wire.handler import Arrival
from peer.wire.server import PeerServer

ALONE = 60  # small pushes before the large one
MEMORY_AIM, SLOWER_AIM = 1.1, 2.0


class TwoSizes(FoldingReceiver):
    """Folds large models here, and small ones with a receiver of their own, which has its own fold thread."""

    def __init__(self, large_bytes: int, small_bytes: int) -> None:
        super().__init__(large_bytes // 4)
        self._small, self._small_bytes = FoldingReceiver(small_bytes // 4), small_bytes
        self._average.fill(0)  # as after an earlier round: all of it is resident
        self.measuring = True

    async def offered(self, caller: int | None, header: messages.ModelHeader) -> Arrival | messages.PushReply:
        """Take the model with the receiver of its size."""
        if header.size_bytes == self._small_bytes:
            return await self._small.offered(caller, header)
        return await super().offered(caller, header)

    async def complete(self, arrival: Arrival) -> messages.PushReply:
        """Fold with the receiver of its size."""
        if arrival.header.size_bytes == self._small_bytes:
            return await self._small.complete(arrival)
        return await super().complete(arrival)

    async def heartbeat(self, caller: int | None, heartbeat: messages.Heartbeat) -> None:
        """Accept."""


def receive(large_bytes: int, small_bytes: int, pipe: Connection) -> None:
    """Serve until terminated."""

    async def main() -> None:
        limits = LIMITS.model_copy(update={"requests_per_second": 1e6})
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
    await link.heartbeat(messages.Heartbeat(2, 1, 0, messages.Phase.RUNNING))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--small", type=float, default=1, help="megabytes of the small models")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    large, small = (round(megabytes * MEGABYTE) // 4 * 4 for megabytes in (options.megabytes, options.small))
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
    rows = [
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
    show("A large model", ["what", "measured", "aim, at most"], rows, options.markdown)


if __name__ == "__main__":
    main()

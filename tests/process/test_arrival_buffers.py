"""Buffers of arrivals in a running peer: at most as many as its engine counts."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import pytest
from target import ATTACKER, GOOD, call, under_attack, until
from target import push as push_frames

from peer.core.arrivals import Arrival
from peer.core.stages import EXCHANGE
from peer.wire import convert, frames
from peer.wire.generated import peer_pb2

pytestmark = pytest.mark.process


def test_running_peer_keeps_at_most_the_buffers_that_its_engine_counts(tmp_path: Path) -> None:
    """A model that is pushed again, by the same or a newer incarnation, ends its earlier stream."""

    async def test() -> None:
        async with under_attack(tmp_path) as target:
            await target.connect(ATTACKER, GOOD)
            await target.reach(*EXCHANGE)
            arrivals, reserve = target.host.state.arrivals, target.host.receiving.reserve
            reserved: asyncio.Queue[None] = asyncio.Queue()
            buffers: list[weakref.ref[Any]] = []

            def watched(arrival: Arrival) -> None:
                reserve(arrival)
                buffers.append(weakref.ref(arrival.model))
                reserved.put_nowait(None)

            def in_memory() -> int:
                return sum(buffer() is not None for buffer in buffers)

            target.host.receiving.reserve = watched  # type: ignore[method-assign]
            async with target.channel(ATTACKER) as channel:
                pushes = []
                for incarnation in (7, 7, 7, 8, 8, 9, 10):
                    await call(channel, "Hello", convert.pack_hello(target.hello(ATTACKER, incarnation=incarnation)))
                    header = target.header(ATTACKER, incarnation=incarnation)
                    first_chunk = frames.chunk_frame(memoryview(target.model().tobytes())[:1000])
                    messages = [convert.pack_header(header), first_chunk]
                    pushes.append(asyncio.create_task(push_frames(channel, messages, hold=True)))
                    async with asyncio.timeout(30):
                        await reserved.get()
                    assert in_memory() == arrivals.buffers() == 1
                for push in pushes:
                    push.cancel()
                await asyncio.gather(*pushes, return_exceptions=True)
                await until(lambda: not target.open_streams() and not in_memory())
                assert arrivals.buffers() == 0 and not target.world.requests._open
            reply = await target.push_good()
            assert reply.outcome == peer_pb2.OUTCOME_FOLDED, reply

    asyncio.run(test())

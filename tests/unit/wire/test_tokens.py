"""The token bucket, on a clock that moves only when the event loop would sleep."""

from __future__ import annotations

import asyncio

from peer.wire.tokens import BURST_S, TokenBucket


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual: waiting for a timer takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        select = self._selector.select

        def jump(timeout: float | None = None) -> list:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = jump

    def time(self) -> float:
        return self.now


def seconds_of(work) -> float:
    """Return how long a coroutine takes on the virtual clock."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        loop = runner.get_loop()
        before = loop.time()
        runner.run(work())
        return loop.time() - before


def test_bytes_beyond_a_burst_take_the_time_of_the_rate():
    async def work():
        bucket = TokenBucket(1000)
        for _ in range(100):
            await bucket.take(100)

    assert abs(seconds_of(work) - (10.0 - BURST_S)) < 0.01


def test_all_takers_share_one_rate():
    async def work():
        bucket = TokenBucket(1000)

        async def taker():
            for _ in range(25):
                await bucket.take(100)

        await asyncio.gather(*(taker() for _ in range(4)))

    assert abs(seconds_of(work) - (10.0 - BURST_S)) < 0.01


def test_a_pause_earns_one_burst_and_no_more():
    async def work():
        bucket = TokenBucket(1000)
        await bucket.take(100)
        await asyncio.sleep(60)
        await bucket.take(1000)

    assert abs(seconds_of(work) - (60.0 + 1.0 - BURST_S)) < 0.01

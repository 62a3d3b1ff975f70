"""The token bucket on virtual clocks: ten seconds of takers stay within a tenth of the rate, without a sleep."""

from __future__ import annotations

import asyncio
import heapq

import grpc.aio
import pytest
from tools.virtual_clock import seconds_of

from coordinator_free_bootstrap import Relay
from peer.wire.pacing import BURST_S, Pacing, TokenBucket
from peer.wire.switchboard import Switchboard


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


def passed(rate: int, takers: int, size: int, seconds: float, pauses_s: float = 0.0) -> int:
    """Return the bytes that takers pass in some seconds; each takes again when its last bytes have passed, after a pause."""
    bucket = TokenBucket(rate)
    waiting = [(1.0, taker) for taker in range(takers)]
    total = 0
    while True:
        now, taker = heapq.heappop(waiting)
        if now >= 1.0 + seconds:
            return total
        done = now + bucket.spend(size, now)
        total += size if done < 1.0 + seconds else 0
        heapq.heappush(waiting, (done + pauses_s, taker))


@pytest.mark.parametrize(("takers", "size"), [(1, 10_000), (1, 200_000), (8, 10_000), (8, 200_000), (3, 1_000)])
def test_ten_seconds_are_within_a_tenth_of_the_rate(takers: int, size: int) -> None:
    rate = 2_000_000
    assert 0.9 * 10 * rate <= passed(rate, takers, size, 10.0) <= 1.1 * 10 * rate


def test_takers_with_pauses_pass_no_more_than_the_rate_and_one_burst() -> None:
    total = passed(1_000_000, 4, 100_000, 10.0, pauses_s=0.3)
    assert 9_000_000 <= total <= (10.0 + BURST_S) * 1_000_000 + 100_000


def test_a_pause_saves_up_no_more_than_one_burst() -> None:
    bucket = TokenBucket(1_000)
    assert bucket.spend(1_000, 10.0) == pytest.approx(1.0 - BURST_S)
    assert bucket.spend(1_000, 1_000.0) == pytest.approx(1.0 - BURST_S)
    assert bucket.spend(500, 1_000.0) == pytest.approx(1.5 - BURST_S)


def test_without_a_limit_nothing_waits() -> None:
    assert TokenBucket().spend(1 << 40, 5.0) == 0.0
    pacing = Pacing()
    assert not pacing.upload.limited and pacing.options() == [] and pacing.frame_bytes(3, 1 << 20) == 1 << 20


class Frames:
    """A stream that ends after its frames; without any it stays silent."""

    def __init__(self, *frames: bytes) -> None:
        self.unread, self.written, self.silent = list(frames), 0, not frames

    def peer(self) -> str:
        return "an address"

    async def read(self) -> object:
        if self.unread:
            return self.unread.pop()
        return await asyncio.Event().wait() if self.silent else grpc.aio.EOF

    async def write(self, frame: bytes) -> None:
        self.written += len(frame)


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_what_a_peer_relays_waits_for_its_own_limits(direction: str) -> None:
    async def work() -> None:
        pacing, target = Pacing(), Frames()
        setattr(pacing, direction, TokenBucket(1000))
        board = Switchboard(0, relayed={(1, 2)}, limits=Relay(1 << 40, 1), pacing=pacing)
        offering = asyncio.ensure_future(board.offer(1, 2, target))
        await asyncio.sleep(0)
        await board.relay(2, 1, Frames(*[bytes(100)] * 100))
        await offering
        assert board.bytes_relayed == target.written == 10_000

    assert abs(seconds_of(work) - (10.0 - BURST_S)) < 0.01

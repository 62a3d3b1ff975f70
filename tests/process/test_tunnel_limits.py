"""Goal: the limits of every peer count a model that crosses a tunnel or a relay, each time that the peer sends or receives it.

Method: real tunnels with TLS; each token bucket notes the bytes that are taken from it, and lets them pass at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from tunnel_support import LEFT, RELAY, RIGHT, peers
from wire_support import header_of

from peer.core.messages import PullRequest
from peer.wire.pacing import Pacing, TokenBucket

pytestmark = pytest.mark.process
MODEL = np.zeros(4 << 20, np.uint8)
OVERHEAD = 1.02  # of messages, and of TLS and HTTP/2 where a relay counts a connection


class Meter(TokenBucket):
    """Notes what is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.models = 0.0  # bytes of long messages, over those of the model

    def count(self, size_bytes: int) -> None:
        self.models += size_bytes / MODEL.size

    async def take(self, size_bytes: int) -> None:
        self.count(size_bytes)


def meters(*ids: int) -> dict[int, Pacing]:
    made = {peer_id: Pacing() for peer_id in ids}
    for pacing in made.values():
        pacing.upload, pacing.download = Meter(), Meter()
    return made


def models_of(pacing: Pacing) -> tuple[float, float]:
    """Return how many models were sent and received."""
    assert isinstance(pacing.upload, Meter) and isinstance(pacing.download, Meter)
    return pacing.upload.models, pacing.download.models


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90):
            await test()

    asyncio.run(bounded())


def assert_near(found: tuple[float, float], sent: int, received: int) -> None:
    for models, expected in zip(found, (sent, received), strict=True):
        assert expected <= models < expected * OVERHEAD + 0.02


def test_a_model_over_a_tunnel_counts_once_at_each_end() -> None:
    async def test() -> None:
        pacing = meters(RELAY, LEFT)
        async with peers(RELAY, LEFT, pacing=pacing) as ends:
            await ends[RELAY].reaches(LEFT, RELAY)
            await ends[RELAY].link(LEFT).push(header_of(MODEL.size, sender=RELAY), MODEL)
            assert_near(models_of(pacing[RELAY]), 1, 0)
            assert_near(models_of(pacing[LEFT]), 0, 1)
            ends[LEFT].recorder.pulled = header_of(MODEL.size, sender=LEFT), MODEL
            await ends[RELAY].link(LEFT).pull(PullRequest(RELAY, 7, 1), size_bytes=MODEL.size)
            assert_near(models_of(pacing[RELAY]), 1, 1)
            assert_near(models_of(pacing[LEFT]), 1, 1)

    run(test)


def test_a_model_over_a_relay_counts_once_at_each_end_and_as_received_and_sent_at_the_relay() -> None:
    async def test() -> None:
        pacing = meters(RELAY, LEFT, RIGHT)
        async with peers(RELAY, LEFT, RIGHT, pacing=pacing) as ends:
            await ends[LEFT].reaches(RIGHT, LEFT)
            await ends[LEFT].link(RIGHT).push(header_of(MODEL.size, sender=LEFT), MODEL)
            assert_near(models_of(pacing[LEFT]), 1, 0)
            assert_near(models_of(pacing[RIGHT]), 0, 1)
            assert_near(models_of(pacing[RELAY]), 1, 1)
            assert ends[RELAY].edges.switchboard.bytes_relayed >= MODEL.size

    run(test)

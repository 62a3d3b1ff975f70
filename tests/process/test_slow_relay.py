"""Goal: heartbeats over a slow relay do not wait behind a model.

Method: two peers joined by a relay of a low rate, real tunnels with TLS. One pushes a model, or the other one pulls it, and
either end sends heartbeats beside it; counted are the frames of the model that arrive between the sending of a heartbeat and
its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tunnel_support import LEFT, RELAY, RIGHT, End, graph_of, peers
from wire_support import header_of

import peer.wire.client
from coordinator_free_bootstrap import Graph, Relay
from peer.core.messages import Heartbeat, Outcome, Phase, PullRequest
from peer.wire.frames import Frame, read_frame
from peer.wire.pacing import Pacing

pytestmark = pytest.mark.process
RATE = 1_000_000  # bytes per second, of both directions together
MODEL = np.zeros(2_000_000, np.uint8)
AHEAD_MAX = 2  # frames: the one on its way, and one that was written in the same step of the event loop


def slow_relay() -> Graph:
    graph = graph_of()
    nodes = (replace(node, relay=Relay(RATE, 8)) if node.id == RELAY else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@asynccontextmanager
async def two_behind_it() -> AsyncIterator[dict[int, End]]:
    graph = slow_relay()
    pacing = {peer_id: Pacing.of(graph, peer_id) for peer_id in (LEFT, RIGHT)}
    async with asyncio.timeout(60), peers(RELAY, LEFT, RIGHT, graph=graph, pacing=pacing) as ends:
        for peer_id, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
            await ends[peer_id].reaches(other, peer_id)
        yield ends


async def check_that_heartbeats_pass(
    transfer: asyncio.Future[Any], beats: End, to: int, frames: Callable[[], int]
) -> None:
    """Send heartbeats until a transfer is done; check that few of its frames precede each of them, and that it had many."""
    ahead = []
    while not transfer.done():
        came = frames()
        await beats.link(to).heartbeat(Heartbeat(beats.recorder.peer_id, 7, 3, Phase.RUNNING))
        ahead.append(frames() - came)
    assert frames() > 2 * AHEAD_MAX and len(ahead) >= frames() / AHEAD_MAX, ahead
    assert max(ahead) <= AHEAD_MAX, ahead


def test_heartbeats_pass_between_the_frames_of_a_model() -> None:
    async def test() -> None:
        async with two_behind_it() as ends:
            push = asyncio.ensure_future(ends[LEFT].link(RIGHT).push(header_of(MODEL.size, sender=LEFT), MODEL))
            recorder = ends[RIGHT].recorder
            await check_that_heartbeats_pass(push, ends[LEFT], RIGHT, lambda: recorder.frames)
            assert await push is Outcome.FOLDED

    asyncio.run(test())


@pytest.mark.parametrize("beats", [LEFT, RIGHT], ids=["of the puller", "of the pulled"])
def test_heartbeats_pass_between_the_frames_of_a_pulled_model(beats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = 0

    def read(frame: bytes) -> Frame:
        nonlocal frames
        frames += 1
        return read_frame(frame)

    async def test() -> None:
        async with two_behind_it() as ends:
            monkeypatch.setattr(peer.wire.client.frames, "read_frame", read)
            ends[RIGHT].recorder.pulled = header_of(MODEL.size, sender=RIGHT), MODEL
            pull = asyncio.ensure_future(ends[LEFT].link(RIGHT).pull(PullRequest(LEFT, 7, 1)))
            await check_that_heartbeats_pass(pull, ends[beats], LEFT + RIGHT - beats, lambda: frames)
            header, payload = await pull
            assert header.size_bytes == payload.size == MODEL.size

    asyncio.run(test())

"""Goal: heartbeats pass beside a model on a link far below the expected rate."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from wire_support import LIMITS, Recorder, header_of, serving

from coordinator_free_bootstrap import Graph, Manifest, Node
from coordinator_free_bootstrap.manifest import Timeouts
from peer.bed.chaos.proxy import DirectedEdge, FaultProxy
from peer.bed.chaos.toxics import Toxics
from peer.core.messages import Heartbeat, Outcome, Phase
from peer.wire.client import NeighborLink
from peer.wire.pacing import Pacing

pytestmark = pytest.mark.process

TIMEOUTS = Timeouts()
THETA = np.arange(100_000, dtype=np.float32)
GRAPH = Graph((Node(1, "a:1"), Node(2, "a:2")), ((1, 2),), Manifest(timeouts=TIMEOUTS))


@asynccontextmanager
async def slowed(recorder: Recorder, timeouts: Timeouts, kb_s: float) -> AsyncIterator[tuple[NeighborLink, Pacing]]:
    """Serve the recorder behind a proxy that passes so many kB/s in each direction; the proxy must have throttled."""
    edges = DirectedEdge((2, 1)), DirectedEdge((1, 2))
    async with serving(recorder, timeouts=timeouts, pacing=Pacing.of(GRAPH, 1)) as port:
        proxy, listening, own = FaultProxy(edges, ("127.0.0.1", port)), socket.socket(), Pacing.of(GRAPH, 2)
        listening.bind(("127.0.0.1", 0))
        await proxy.start(listening)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        link = NeighborLink(1, address, limits=LIMITS, timeouts=timeouts, pacing=own)
        for edge in edges:
            edge.set(Toxics(bandwidth_kb_s=kb_s))
        try:
            yield link, own
        finally:
            await link.close()
            await proxy.close()
    assert all(edge.counters.throttled for edge in edges)


@pytest.mark.slow
def test_heartbeats_pass_a_model_on_a_slow_link_whose_limit_is_not_declared() -> None:
    """The model takes 10 s; it lay in buffers, and a heartbeat behind it failed after 5 s."""

    async def test() -> None:
        recorder = Recorder()
        async with slowed(recorder, TIMEOUTS, 40) as (link, own):
            pushing = asyncio.ensure_future(link.push(header_of(THETA.nbytes), THETA.view(np.uint8)))
            beats = 0
            while not pushing.done():
                assert await link.heartbeat(Heartbeat(2, 7, 3, Phase.RUNNING)) is None
                beats += 1
            assert (await pushing) is Outcome.FOLDED and beats > 1
            np.testing.assert_array_equal(recorder.models[0][1].view(np.float32), THETA)
            assert own.is_unproven(1) and link.sends_model is False

    asyncio.run(test())

"""Goal: heartbeats over a slow relay do not wait behind a model.

Method: two peers joined by a relay of a low rate, real tunnels with TLS. One pushes a model and sends heartbeats beside it;
counted are the frames of the model that arrive between the sending of a heartbeat and its answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tunnel_support import LEFT, RELAY, RIGHT, graph_of, peers
from wire_support import header_of

from coordinator_free_bootstrap import Graph, Relay
from peer.core.messages import Heartbeat, Outcome, Phase
from peer.wire.pacing import Pacing

pytestmark = pytest.mark.process
RATE = 1_000_000  # bytes per second, of both directions together
MODEL = np.zeros(2_000_000, np.uint8)
AHEAD_MAX = 2  # frames: the one on its way, and one that was written in the same step of the event loop


def slow_relay() -> Graph:
    graph = graph_of()
    nodes = (replace(node, relay=Relay(RATE, 8)) if node.id == RELAY else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def test_heartbeats_pass_between_the_frames_of_a_model() -> None:
    async def test() -> None:
        graph = slow_relay()
        pacing = {peer_id: Pacing.of(graph, peer_id) for peer_id in (LEFT, RIGHT)}
        async with asyncio.timeout(60), peers(RELAY, LEFT, RIGHT, graph=graph, pacing=pacing) as ends:
            await ends[LEFT].reaches(RIGHT, LEFT)
            link, recorder = ends[LEFT].link(RIGHT), ends[RIGHT].recorder
            push = asyncio.ensure_future(link.push(header_of(MODEL.size, sender=LEFT), MODEL))
            ahead = []
            while not push.done():
                came = recorder.frames
                await link.heartbeat(Heartbeat(LEFT, 7, 3, Phase.RUNNING))
                ahead.append(recorder.frames - came)
            assert await push is Outcome.FOLDED
            assert recorder.frames > 2 * AHEAD_MAX and len(ahead) >= recorder.frames / AHEAD_MAX, ahead
            assert max(ahead) <= AHEAD_MAX, ahead

    asyncio.run(test())

"""Goal: a peer with limits sends and receives at their pace, in small frames, and is not marked dead meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tools import invariants
from tools.beds import Bed
from wire_support import LIMITS, TIMEOUTS, Recorder, header_of, serving

from coordinator_free_bootstrap import Graph, Manifest, Node, make_graph, parse_manifest
from peer.core.messages import Heartbeat, Outcome, Phase, PullRequest
from peer.wire.client import NeighborLink
from peer.wire.pacing import Pacing

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
MANIFEST = Manifest(timeouts=TIMEOUTS)


def pacing(peer_id: int, **limits: int) -> Pacing:
    """Return the pacing of peer 1 or 2, which are neighbors; peer 2 has limits in the graph file."""
    return Pacing.of(Graph((Node(1, "a:1"), Node(2, "a:2", **limits)), ((1, 2),), MANIFEST), peer_id)


def link_to(port: int, own: Pacing) -> NeighborLink:
    return NeighborLink(1, f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS, pacing=own)


@pytest.mark.parametrize("slow", ["sender", "receiver"])
def test_a_declared_limit_makes_frames_small_and_the_model_arrives(slow: str) -> None:
    limit = {"upload_limit": 200_000} if slow == "sender" else {"download_limit": 200_000}
    ends = (2, 1) if slow == "sender" else (1, 2)

    async def test() -> None:
        recorder, theta = Recorder(), np.arange(50_000, dtype=np.float32)
        async with asyncio.timeout(60), serving(recorder, pacing=pacing(ends[1], **limit)) as port:
            own = pacing(ends[0], **limit)
            link = NeighborLink(ends[1], f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS, pacing=own)
            reply = await link.push(header_of(theta.nbytes, sender=ends[0]), theta.view(np.uint8))
            assert reply is Outcome.FOLDED
            assert recorder.frames == 10  # 200,000 bytes, a tenth of a second each
            np.testing.assert_array_equal(recorder.models[0][1].view(np.float32), theta)
            recorder.pulled = header_of(theta.nbytes, sender=ends[1]), theta.view(np.uint8)
            _, pulled = await link.pull(PullRequest(ends[0], 7, 1), size_bytes=theta.nbytes)
            np.testing.assert_array_equal(pulled.view(np.float32), theta)
            await link.close()

    asyncio.run(test())


def test_heartbeats_pass_a_model_that_waits_for_the_limit() -> None:
    """The model needs 40 s; a heartbeat that waited behind it would fail after 5 s."""

    async def test() -> None:
        recorder, theta = Recorder(), np.zeros(100_000, np.float32)
        async with serving(recorder) as port:
            link = link_to(port, pacing(2, upload_limit=10_000))
            pushing = asyncio.ensure_future(link.push(header_of(theta.nbytes), theta.view(np.uint8)))
            await recorder.until(lambda: recorder.frames >= 2)
            assert await link.heartbeat(Heartbeat(2, 7, 3, Phase.RUNNING)) is None
            assert not pushing.done() and len(recorder.messages) == 1
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)
            await link.close()

    asyncio.run(test())


@pytest.mark.slow
def test_a_round_longer_than_the_suspicion_time_marks_no_neighbor_dead(bed: Make) -> None:
    suspicion_s, limit = 8.0, 30_000
    timeouts = {"suspicion_s": suspicion_s, "round_deadline_s": 250.0}
    run = {"rounds": 1, "model_options": {"hidden": 500}, "start": {"wait_for": "all"}, "timeouts": timeouts}
    graph = make_graph("complete", 3, manifest=parse_manifest(run, "test"))
    graph = replace(graph, nodes=(replace(graph.nodes[0], upload_limit=limit), *graph.nodes[1:]))
    slow = bed(graph=graph)
    slow.finish()
    (line,) = slow.history(0, "round")
    assert line["payload_bytes_sent"] / limit > suspicion_s, "the transfer was not slow"
    for peer_id in graph.ids:
        assert not any(slow.saw(peer_id, other, "dead") for other in graph.neighbors(peer_id))
        assert [len(row["folded"]) for row in slow.history(peer_id, "round")] == [2]
    invariants.completed(slow)

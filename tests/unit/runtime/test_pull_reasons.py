"""A pull that fails says why, also when only the time was over."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from coordinator_free_bootstrap import Graph, Manifest, Node
from peer.core import events as ev
from peer.runtime.world import AsyncioWorld
from peer.wire.pacing import Pacing


def test_a_pull_that_is_not_complete_in_time_says_so(caplog):
    async def never(request, size_bytes):
        await asyncio.Event().wait()

    posted = []
    state = SimpleNamespace(incarnation=1)
    world = SimpleNamespace(
        peer_id=0,
        host=SimpleNamespace(algorithm=SimpleNamespace(slots=1), state=state, format=SimpleNamespace(whole_bytes=8)),
        post=posted.append,
        _links={1: SimpleNamespace(pull=never)},
        _pull_limit_s=lambda neighbor: 0.0,
    )
    with caplog.at_level(logging.WARNING):
        asyncio.run(AsyncioWorld._pull(world, 1))
    reason = "not complete within 0.0 s"
    assert posted == [ev.PullDone(1, False, reason=reason)]
    assert caplog.messages == [f"pull from peer 1 failed: {reason}"]


@pytest.mark.parametrize(("frame_s", "limit_s"), [(1.0, 600.0), (0.0001, 5 + 2 * 4 * 3.0)])
def test_pull_over_a_link_that_is_not_known_as_fast_may_last_until_the_round_deadline(frame_s, limit_s):
    """3 MB at 64 kbit/s take 375 s; on a fast link four times what the speed of arrivals needs are enough."""
    pacing = Pacing.of(Graph((Node(0, "a:1"), Node(1, "a:2")), ((0, 1),), Manifest()), 0)
    for _ in range(4):
        pacing.arrived(1, pacing.frame_bytes(1, 1 << 20), frame_s)
    host = SimpleNamespace(algorithm=SimpleNamespace(slots=2), format=SimpleNamespace(whole_bytes=3_000_000))
    requests = SimpleNamespace(bytes_per_second=1e6)
    world = SimpleNamespace(manifest=Manifest(), host=host, requests=requests, _pacing=pacing)
    assert AsyncioWorld._pull_limit_s(world, 1) == limit_s

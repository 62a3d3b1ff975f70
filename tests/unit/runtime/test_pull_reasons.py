"""A pull that fails says why, also when only the time was over."""

import asyncio
import logging
from types import SimpleNamespace

from peer.core import events as ev
from peer.runtime.world import AsyncioWorld


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

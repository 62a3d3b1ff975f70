"""A push whose sender cancels just as the engine answers it leaves nothing behind in the runtime."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peer.core import events as ev
from peer.core.messages import ModelHeader, Outcome
from peer.runtime.requests import Requests
from peer.wire.round_ring import RoundRing

HEADER = ModelHeader(1, 7, 0, 0, 0, 0, 1, 10, 1.0, 8, "float32")


class Calls(Requests):
    """The requests of a host that accepts every offer."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        host: Any = SimpleNamespace(
            rejects_offer=lambda _header: None,
            receiving=SimpleNamespace(reserve=lambda arrival: setattr(arrival, "buffer", np.zeros(8, np.uint8))),
        )
        super().__init__(host, self.events.append, None, lambda _neighbor: None, RoundRing(), dict)  # type: ignore[arg-type]

    def read_now(self) -> None:
        (arrival,) = self._open
        self.read(arrival)

    async def waiting(self) -> asyncio.Task[Any]:
        """Offer a model; return the task that waits for the engine."""
        task = asyncio.ensure_future(self.offered(1, HEADER))
        while not self._open:
            await asyncio.sleep(0)
        return task


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_cancelled_sender_leaves_nothing(cancelled_first: bool) -> None:
    async def test() -> None:
        calls = Calls()
        task = await calls.waiting()
        for act in (task.cancel, calls.read_now) if cancelled_first else (calls.read_now, task.cancel):
            act()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert calls._open == {}
        assert [type(event) for event in calls.events] == [ev.ArrivalOffered, ev.ArrivalLost]

    asyncio.run(test())


def test_arrival_answered_with_its_last_frame_is_not_screened() -> None:
    async def test() -> None:
        calls = Calls()
        task = await calls.waiting()
        calls.read_now()
        arrival = await task
        verdict = Outcome.STALE
        calls.answer(arrival, verdict)
        assert arrival.verdict == await calls.complete(arrival) == verdict != Outcome.UNUSED and not arrival.buffer.size
        assert calls._open == {}
        assert [type(event) for event in calls.events] == [ev.ArrivalOffered]

    asyncio.run(test())

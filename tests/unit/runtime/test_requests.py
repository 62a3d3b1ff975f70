"""A push whose sender cancels just as the engine answers it leaves nothing behind in the runtime."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import events as ev
from peer.core.messages import ModelHeader, Outcome
from peer.runtime.requests import Requests
from peer.wire.round_ring import RoundRing

HEADER = ModelHeader(1, 7, 0, 0, 0, 0, 1, 10, 1.0, 8, "float32")


class Calls(Requests):
    """The requests of a host that accepts every offer."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.rejection: Refusal | None = None
        host: Any = SimpleNamespace(
            rejects_offer=lambda _header: None,
            receiving=SimpleNamespace(
                reserve=lambda arrival: vars(arrival).update(buffer=np.zeros(8, np.uint8), norm_squared=0.0),
                screens_by_norm=lambda: True,
                screen=lambda _arrival: self.rejection,
            ),
            arrived=lambda arrival, _rejection: self.events.append(ev.ArrivalComplete(arrival)),
        )
        super().__init__(host, self.events.append, None, lambda _neighbor: None, RoundRing(), dict)  # type: ignore[arg-type]

    def read_now(self) -> None:
        (arrival,) = self._open
        self.read(arrival)

    async def waiting(self) -> asyncio.Task[Any]:
        """Offer a model; return the task that waits for the engine."""
        task = asyncio.ensure_future(self.offered(HEADER))
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


@pytest.mark.parametrize("end", ["cancelled", "answered unread", "not of use", "refused by the screen"])
def test_a_model_that_is_not_folded_leaves_memory_at_once(end: str) -> None:
    """Not at the next collection of reference cycles: models are large, and collections rare."""

    async def ended(calls: Calls) -> weakref.ref[Any]:
        task = await calls.waiting()
        (arrival,) = calls._open
        calls.read(arrival)
        buffer = weakref.ref(arrival.buffer)
        if end == "cancelled":
            task.cancel()
        elif end == "answered unread":
            calls.answer(arrival, Outcome.STALE)
        with suppress(asyncio.CancelledError):
            await task
        if end == "not of use":
            replied = calls.complete(arrival)
            calls.answer(arrival, Outcome.UNUSED)
            assert await replied is Outcome.UNUSED
        elif end == "refused by the screen":
            calls.rejection = Refusal(RefusalCode.NORM_BOUND, "too large")
            assert await calls.complete(arrival) == calls.rejection
        return buffer

    async def test() -> None:
        calls = Calls()
        gc.disable()
        try:
            buffer = await ended(calls)
            await asyncio.sleep(0)  # the event loop lets go of the task
            calls.events.clear()  # the engine has handled them
            assert calls._open == {} and buffer() is None
        finally:
            gc.enable()

    asyncio.run(test())

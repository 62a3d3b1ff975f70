"""A push whose sender goes away just as the engine answers it: nothing of it stays behind in the shell."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peer.core import events as ev
from peer.core.messages import ModelHeader, Outcome, PushReply
from peer.shell.inbound import UNUSED, InboundCalls
from peer.wire.inbound import Admission

HEADER = ModelHeader(1, 7, 0, 0, 0, 0, 1, 10, 1, 1.0, (), 8, "float32")


class Calls(InboundCalls):
    """Inbound calls of an engine that admits what it is told to admit."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        engine: Any = SimpleNamespace(
            stage=None, model_bytes=8, manifest=SimpleNamespace(encoding="float32"), admits=lambda *_: None
        )
        super().__init__(engine, self.events.append, None, self.screened, lambda *_: None)  # type: ignore[arg-type]

    async def screened(self, _admission: Admission) -> None:
        return None

    def admit_now(self) -> None:
        (number,) = self.streams
        self.admit(number, np.zeros(8, np.uint8), None)

    async def waiting(self) -> asyncio.Task[Any]:
        """Offer a model; return the task that waits for the engine."""
        task = asyncio.ensure_future(self.offered(1, HEADER))
        while not self.streams:
            await asyncio.sleep(0)
        return task


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_a_sender_that_goes_away_while_it_is_admitted_leaves_nothing(cancelled_first: bool) -> None:
    async def test() -> None:
        calls = Calls()
        task = await calls.waiting()
        for act in (task.cancel, calls.admit_now) if cancelled_first else (calls.admit_now, task.cancel):
            act()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert calls.streams == calls._stream_of == {}
        assert [type(event) for event in calls.events] == [ev.Offered, ev.Cut]

    asyncio.run(test())


def test_a_model_that_is_answered_with_its_last_frame_is_not_screened() -> None:
    async def test() -> None:
        calls = Calls()
        task = await calls.waiting()
        calls.admit_now()
        admission = await task
        verdict = PushReply(Outcome.STALE)
        calls.answer(1, verdict)
        assert admission.verdict == await calls.arrived(admission) == verdict != UNUSED
        assert calls.streams == calls._stream_of == {}
        assert [type(event) for event in calls.events] == [ev.Offered]

    asyncio.run(test())

"""SIGTERM at each moment of a peer with windows of work: it ends, and no signal is lost between two windows."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from peer.runtime import windows
from peer.runtime.signals import Signals
from peer.runtime.windows import run_in_windows


class Scripted:
    """A schedule whose window opens once and closes at once; the next window never comes."""

    quota = None

    def __init__(self) -> None:
        self.asked = 0
        self.waiting = asyncio.Event()

    async def closed(self) -> str:
        self.asked += 1
        return "" if self.asked == 1 else "the window is over"

    async def until_open(self) -> None:
        self.waiting.set()
        await asyncio.Event().wait()

    async def until_closed(self) -> str:
        return "the window is over"


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def ended(monkeypatch: pytest.MonkeyPatch, moment: str) -> tuple[str, list[str]]:
    """Run a peer in windows with SIGTERM at a moment; return how it ended, and what its world was told."""
    told: list[str] = []

    async def run_to_end(world: Any) -> str:
        await world.left.wait()
        if moment == "its results are written":  # the loop does not run meanwhile
            terminate()
        return "left"

    async def test() -> str:
        schedule, left = Scripted(), asyncio.Event()

        def leave() -> None:
            told.append("leave")
            left.set()
            if moment == "it leaves":
                terminate()

        async def ready() -> Any:
            if moment == "it is made ready":
                terminate()
            return SimpleNamespace(left=left, leave=leave, on_signal=lambda: told.append("signal"))

        async def outside() -> None:
            await schedule.waiting.wait()
            terminate()

        signals = Signals().install()
        waiter = asyncio.ensure_future(outside()) if moment == "it waits" else None
        status = await run_in_windows(ready, schedule, signals)  # type: ignore[arg-type]
        if waiter:
            await waiter
        assert signals.came
        return status

    monkeypatch.setattr(windows, "run_to_end", run_to_end)
    return asyncio.run(test()), told


@pytest.mark.parametrize("moment", ["it is made ready", "it leaves", "its results are written", "it waits"])
def test_a_signal_ends_a_peer_at_each_moment(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    status, told = ended(monkeypatch, moment)
    assert status == "left"
    assert ("signal" in told) == (moment in ("it is made ready", "it leaves"))
    assert "leave" in told

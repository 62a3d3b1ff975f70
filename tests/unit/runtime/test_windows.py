"""SIGTERM at each moment of a peer with windows of work: it ends, and no signal is lost between two windows."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from peer.runtime.signals import Signals
from peer.runtime.windows import run_in_windows


class Scripted:
    """A schedule whose window opens once; the next window never comes.

    Args:
        closes: whether the window closes, and does so at once.
    """

    quota = None

    def __init__(self, closes: bool) -> None:
        self.asked, self.closes = 0, closes
        self.waiting = asyncio.Event()

    async def closed(self) -> str:
        self.asked += 1
        return "" if self.asked == 1 else "the window is over"

    async def until_open(self) -> None:
        self.waiting.set()
        await asyncio.Event().wait()

    async def until_closed(self) -> str:
        if not self.closes:
            await asyncio.Event().wait()
        return "the window is over"


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def ended(signals: Signals, moment: str) -> tuple[str, list[str]]:
    """Run a peer in windows with SIGTERM at a moment; return how it ended, and what its world was told."""
    told: list[str] = []

    async def run(world: Any) -> str:
        await world.left.wait()
        if moment == "its results are written":  # the loop does not run meanwhile
            terminate()
        return "left"

    async def test() -> str:
        schedule, left = Scripted(closes=moment != "it is made ready"), asyncio.Event()

        def leave() -> None:
            told.append("leave")
            left.set()
            if moment == "it leaves":
                terminate()

        def on_signal() -> None:
            told.append("signal")
            left.set()

        async def ready() -> Any:
            if moment == "it is made ready":
                terminate()
            return SimpleNamespace(left=left, leave=leave, on_signal=on_signal)

        async def outside() -> None:
            await schedule.waiting.wait()
            terminate()

        waiter = asyncio.ensure_future(outside()) if moment == "it waits" else None
        with signals.in_loop():
            status = await run_in_windows(ready, schedule, signals, run=run)  # type: ignore[arg-type]
        if waiter:
            await waiter
        return status

    return asyncio.run(test()), told


@pytest.mark.parametrize(
    ("moment", "first"),
    [
        ("it is made ready", "signal"),
        ("it leaves", "leave"),
        ("its results are written", "leave"),
        ("it waits", "leave"),
    ],
)
def test_a_signal_ends_a_peer_at_each_moment(signals: Signals, moment: str, first: str) -> None:
    status, told = ended(signals, moment)  # returns, though the next window never comes
    assert (status, told[0]) == ("left", first)

"""An event loop on a virtual clock: tests of pauses and rates take none of their time."""

from __future__ import annotations

import asyncio


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual: waiting for a timer takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        select = self._selector.select

        def jump(timeout: float | None = None) -> list:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = jump

    def time(self) -> float:
        return self.now


def seconds_of(work) -> float:
    """Return how long a coroutine takes on the virtual clock."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        loop = runner.get_loop()
        before = loop.time()
        runner.run(work())
        return loop.time() - before

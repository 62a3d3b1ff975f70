"""Run one peer while its schedule allows it: leave with a goodbye at the end of a window, come back in the next one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from peer.runtime.process import run_to_end
from peer.runtime.schedule import Schedule
from peer.runtime.signals import Signals
from peer.runtime.world import AsyncioWorld

if TYPE_CHECKING:
    from peer.observe.metrics_page import MetricsPage

log = logging.getLogger("peer")


async def run_in_windows(
    ready: Callable[[], Awaitable[AsyncioWorld]],
    schedule: Schedule,
    signals: Signals | None = None,
    metrics: MetricsPage | None = None,
    run: Callable[[AsyncioWorld], Awaitable[str]] | None = None,
) -> str:
    """Run one peer to its end and return how it ended; each window resumes from the last one.

    Args:
        ready: returns the peer, ready to run, with the state that the last window left.
        schedule: when the peer may work.
        signals: those that make the peer leave; after one, no further window is waited for.
        metrics: shows when the peer waits for a window.
        run: runs a peer that is ready, by default `run_to_end`; after ``changed`` it is made ready again.

    Raises:
        PeerError: as `peer.runtime.process.opened` and `run_to_end`.
    """
    signals = signals or Signals()
    status, again = "left", True
    while again and await _until_open(schedule, signals, metrics):
        status, again = await _one_window(await ready(), schedule, signals, run or run_to_end)
    return status


async def _until_open(schedule: Schedule, signals: Signals, metrics: MetricsPage | None) -> bool:
    """Wait for the next window; return False where a signal came first."""
    if metrics:
        metrics.set_state("waiting")
    waiting = asyncio.ensure_future(_opened(schedule))
    signals.tell = waiting.cancel
    try:
        await waiting
    except asyncio.CancelledError:
        if not signals.came:
            raise
        log.info("asked to stop outside the windows of work")
    if signals.came and metrics:
        metrics.set_state("left")
    return not signals.came


async def _opened(schedule: Schedule) -> None:
    if not await schedule.is_open():
        log.info("outside the windows of work: waiting")
        await schedule.until(True)


async def _one_window(
    world: AsyncioWorld, schedule: Schedule, signals: Signals, run: Callable[[AsyncioWorld], Awaitable[str]]
) -> tuple[str, bool]:
    """Return how the peer ended, and whether it works again: the schedule or a new graph file made it leave, and no signal."""
    closed = False

    async def close() -> None:
        nonlocal closed
        await schedule.until(False)
        closed = True
        log.info("the window of work is over: leaving until the next one")
        world.leave()

    signals.tell = world.on_signal
    closing = asyncio.ensure_future(close())
    try:
        status = await run(world)
    finally:
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
    return status, (status == "changed" or (closed and status == "left")) and not signals.came

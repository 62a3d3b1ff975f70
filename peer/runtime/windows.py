"""Run one peer while its schedule allows it: leave with a goodbye when it does not, come back when it does again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from peer.core.counters import COUNTING
from peer.runtime.admission import bytes_of_round
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
    if schedule.quota is not None:
        schedule.quota.require_a_round()
    if why := await schedule.closed():
        log.info("%s: waiting", why)
        await schedule.until_open()


async def _one_window(
    world: AsyncioWorld, schedule: Schedule, signals: Signals, run: Callable[[AsyncioWorld], Awaitable[str]]
) -> tuple[str, bool]:
    """Return how the peer ended, and whether it works again: the schedule or a new graph file made it leave, and no signal."""
    closed = False

    def close(why: str) -> None:
        nonlocal closed
        if not closed:
            closed = True
            log.info("%s: leaving until it may work again", why)
            world.leave()

    async def watch() -> None:
        close(await schedule.until_closed())

    def on_record(kind: str, fields: dict[str, Any]) -> None:
        why = schedule.count(fields) if kind in COUNTING else ""
        if why and kind == "round" and fields["round_index"] + 1 < world.manifest.rounds:
            asyncio.get_running_loop().call_soon(close, why)  # not inside the step of the engine that wrote the record

    signals.tell = world.on_signal
    if schedule.quota is not None:
        schedule.quota.expect(bytes_of_round(world.host))
        world.observers.append(on_record)
    watching = asyncio.ensure_future(watch())
    try:
        status = await run(world)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return status, (status == "changed" or (closed and status == "left")) and not signals.came

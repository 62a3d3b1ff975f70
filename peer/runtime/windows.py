"""Run one peer while its schedule allows it: leave with a goodbye at the end of a window, come back in the next one."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import PeerError
from peer.runtime.assembly import LocalSettings
from peer.runtime.process import opened, run_to_end
from peer.runtime.results import exit_code_of
from peer.runtime.schedule import Schedule
from peer.runtime.world import AsyncioWorld

log = logging.getLogger("peer")


def run_peer_in_windows(
    peer_id: int, graph: Graph, settings: LocalSettings, schedule: Schedule, between: Callable[[], None]
) -> int:
    """Run one peer as a process to its end, in the windows of its schedule, and return its exit code.

    Args:
        peer_id: which node of the graph this process is.
        graph: the run's graph file.
        settings: local choices.
        schedule: when the peer may work.
        between: called after each window; installs the handlers of signals that hold until the next one.
    """

    async def ready() -> AsyncioWorld:
        return opened(peer_id, graph, settings)

    try:
        return exit_code_of(asyncio.run(run_in_windows(ready, schedule, between)))
    except PeerError as error:
        log.error("%s", error, exc_info=settings.traceback)
        return error.exit_code


async def run_in_windows(
    ready: Callable[[], Awaitable[AsyncioWorld]], schedule: Schedule, between: Callable[[], None] = lambda: None
) -> str:
    """Run one peer to its end and return how it ended; each window resumes from the last one.

    Args:
        ready: returns the peer, ready to run, with the state that the last window left.
        schedule: when the peer may work.
        between: called after each window.

    Raises:
        PeerError: as `peer.runtime.process.opened` and `run_to_end`.
    """
    while True:
        await _until_open(schedule)
        status, again = await _one_window(await ready(), schedule, between)
        if not again:
            return status


async def _until_open(schedule: Schedule) -> None:
    if not await schedule.is_open():
        log.info("outside the windows of work: waiting")
        await schedule.until(True)


async def _one_window(world: AsyncioWorld, schedule: Schedule, between: Callable[[], None]) -> tuple[str, bool]:
    """Return how the peer ended, and whether it works again in the next window: the schedule, and no signal, made it leave."""
    closed = False

    async def close() -> None:
        nonlocal closed
        await schedule.until(False)
        closed = True
        log.info("the window of work is over: leaving until the next one")
        world.leave()

    closing = asyncio.ensure_future(close())
    try:
        status = await run_to_end(world)
    finally:
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
        ):  # not by the end of the loop, which would lose a signal before it
            asyncio.get_running_loop().remove_signal_handler(number)
        between()
    return status, closed and status == "left" and not world.signaled

"""Run one peer while its schedule allows it: leave with a goodbye when it does not, come back when it does again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from coordinator_free_bootstrap import Graph
from peer.core.counters import COUNTING
from peer.runtime.admission import bytes_of_round
from peer.runtime.assembly import LocalSettings
from peer.runtime.process import logged, opened, run_to_end
from peer.runtime.results import exit_code_of
from peer.runtime.schedule import Schedule
from peer.runtime.signals import Signals
from peer.runtime.world import AsyncioWorld

if TYPE_CHECKING:
    from peer.observe.metrics_page import MetricsPage

log = logging.getLogger("peer")


def run_peer_in_windows(peer_id: int, graph: Graph, settings: LocalSettings, schedule: Schedule) -> int:
    """Run one peer as a process to its end, in the windows of its schedule, and return its exit code.

    Args:
        peer_id: which node of the graph this process is.
        graph: the run's graph file.
        settings: local choices.
        schedule: when the peer may work.
    """

    async def ready() -> AsyncioWorld:
        return opened(peer_id, graph, settings)

    async def to_end() -> str:
        return await run_in_windows(ready, schedule, Signals().install(), settings.metrics)

    try:
        return exit_code_of(asyncio.run(to_end()))
    except Exception as error:
        return logged(error, trace=settings.traceback)


async def run_in_windows(
    ready: Callable[[], Awaitable[AsyncioWorld]],
    schedule: Schedule,
    signals: Signals | None = None,
    metrics: MetricsPage | None = None,
) -> str:
    """Run one peer to its end and return how it ended; each window resumes from the last one.

    Args:
        ready: returns the peer, ready to run, with the state that the last window left.
        schedule: when the peer may work.
        signals: those that make the peer leave; after one, no further window is waited for.
        metrics: shows when the peer waits for a window.

    Raises:
        PeerError: as `peer.runtime.process.opened` and `run_to_end`.
    """
    signals = signals or Signals()
    status, again = "left", True
    while again and await _until_open(schedule, signals, metrics):
        status, again = await _one_window(await ready(), schedule, signals)
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


async def _one_window(world: AsyncioWorld, schedule: Schedule, signals: Signals) -> tuple[str, bool]:
    """Return how the peer ended, and whether it works again in the next window: the schedule, and no signal, made it leave."""
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
        status = await run_to_end(world)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return status, closed and status == "left" and not signals.came

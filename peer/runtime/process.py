"""One peer as one process, from its graph file to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import DivergedError, PeerError, StorageError
from peer import failpoints
from peer.identity.files import KeyFiles
from peer.runtime.assembly import Assembled, LocalSettings, assemble
from peer.runtime.results import exit_code_of, write_results
from peer.runtime.signals import Signals
from peer.runtime.world import AsyncioWorld
from peer.store.system import require_unix
from peer.wire.address import require_own_address
from peer.wire.security import MutualTls, load_tls, require_loopback_or

log = logging.getLogger("peer")


def run_peer(
    peer_id: int, graph: Graph, settings: LocalSettings, on_listening: Callable[[int], None] | None = None
) -> int:
    """Run one peer to its end and return its exit code; errors are logged as one sentence each.

    Args:
        peer_id: which node of the graph this process is.
        graph: the run's graph file.
        settings: local choices.
        on_listening: told the bound port once the server is up.
    """

    async def to_end(world: AsyncioWorld) -> str:
        Signals().install().tell = world.on_signal
        return await run_to_end(world, on_listening)

    try:
        status = asyncio.run(to_end(opened(peer_id, graph, settings)))
    except PeerError as error:
        log.error("%s", error, exc_info=settings.traceback)
        return error.exit_code
    return exit_code_of(status)


def opened(peer_id: int, graph: Graph, settings: LocalSettings) -> AsyncioWorld:
    """Return one peer, ready to run: its keys, data and state directory are loaded, which may take seconds.

    Raises:
        PeerError: the peer cannot start.
    """
    require_unix("peer run")
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    own = graph.node(peer_id).address
    tls = transport_security(peer_id, graph, settings)
    if settings.require_own_address and own:
        require_own_address(peer_id, own, settings.listen or own)
    return AsyncioWorld(assemble(peer_id, graph, settings), tls)


async def run_to_end(world: AsyncioWorld, on_listening: Callable[[int], None] | None = None) -> str:
    """Run one peer to its end and write its results; return ``completed``, ``left``, ``refused`` or ``alone``.

    A cancelled call asks the peer to leave: it tells its neighbors, writes a checkpoint, and ends.

    Raises:
        PeerError: the address cannot be bound, the models diverged, or the results cannot be written.
    """
    parts, began = world.parts, time.monotonic()
    try:
        with measured(world):
            status = await _until_left(world, on_listening)
        _write(parts, status, began)
    except DivergedError:
        _write(parts, "diverged", began)
        raise
    finally:
        parts.lock.release()
    log.info("%s after %d rounds", status, parts.host.engine.round_index)
    return status


async def _until_left(world: AsyncioWorld, on_listening: Callable[[int], None] | None) -> str:
    """Run a world; where the caller is cancelled, leave first."""
    running = asyncio.ensure_future(world.run(on_listening))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        world.leave()
        await running
        raise


def _write(parts: Assembled, status: str, began: float) -> None:
    seconds = time.monotonic() - began
    try:
        write_results(parts.host, parts.state_dir, status, seconds, models=status != "diverged")
    except StorageError as error:
        raise StorageError(f"the run ended, but its results could not be written: {error}") from error


@contextmanager
def measured(world: AsyncioWorld) -> Iterator[None]:
    """Answer ``/metrics`` while the block runs, where the settings name a port.

    Raises:
        ConfigError: the port cannot be bound.
    """
    settings, manifest = world.parts.settings, world.manifest
    if settings.metrics_port is None:
        yield
        return
    from peer.observe.metrics import PeerMetrics
    from peer.observe.metrics_feed import MetricsFeed, served

    labels = {"algorithm": manifest.algorithm, "task": manifest.task, "federation": manifest.federation}
    task = world.parts.task
    metrics = PeerMetrics(world.peer_id, labels, task.reported(), task.more_metrics)
    run = world.host.state
    world.observers.append(MetricsFeed(metrics, tuple(run.neighbors), lambda: run.incarnation))
    with served(metrics, settings.metrics_port, settings.metrics_host):
        yield


def transport_security(peer_id: int, graph: Graph, settings: LocalSettings) -> MutualTls | None:
    """Return the TLS of a peer; None only where its user has asked for plaintext.

    Raises:
        IdentityError: keys or certificates are missing, expired, unreadable, too open, or not the pinned ones.
        ConfigError: plaintext on an address that other machines can reach.
    """
    if settings.insecure or settings.insecure_anywhere:
        if listen := settings.listen or graph.node(peer_id).address:
            require_loopback_or(settings.insecure_anywhere, listen)
        log.warning("plaintext: whoever reaches this port can read and forge models")
        return None
    usual = KeyFiles.of(settings.certs or settings.state_dir / "identity", peer_id)
    beside = settings.cert.with_suffix(".key") if settings.cert else usual.key
    files = KeyFiles(settings.cert or usual.certificate, settings.key or beside)
    return load_tls(graph, peer_id, files, certs=settings.certs, ca=settings.ca)

"""One peer as one process, from its graph file to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigError, DivergedError, PeerError, StorageError
from peer import failpoints
from peer.identity.files import KeyFiles
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.results import write_results
from peer.runtime.world import AsyncioWorld
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
    try:
        failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
        own = graph.node(peer_id).address
        tls = transport_security(peer_id, graph, settings)
        if settings.require_own_address and own:
            require_own_address(peer_id, own, settings.listen or own)
        began = time.monotonic()
        parts = assemble(peer_id, graph, settings)
    except PeerError as error:
        log.error("%s", error, exc_info=settings.traceback)
        return error.exit_code
    world = AsyncioWorld(parts, tls)
    try:
        with measured(world):
            status = asyncio.run(world.run(on_listening))
        write_results(parts.host, parts.state_dir, status, time.monotonic() - began)
    except DivergedError as error:
        log.error("%s", error)
        write_results(parts.host, parts.state_dir, "diverged", time.monotonic() - began, models=False)
        return error.exit_code
    except StorageError as error:
        log.error("the run ended, but its results could not be written: %s", error, exc_info=settings.traceback)
        return error.exit_code
    except PeerError as error:
        log.error("%s", error, exc_info=settings.traceback)
        return error.exit_code
    finally:
        parts.lock.release()
    log.info("%s after %d rounds", status, parts.host.engine.round_index)
    return ConfigError.exit_code if status == "refused" else 0


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
    metrics = PeerMetrics(world.peer_id, labels, world.parts.task.reported())
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
    files = KeyFiles(settings.cert or usual.certificate, settings.key or usual.key)
    return load_tls(graph, peer_id, files, certs=settings.certs, ca=settings.ca)

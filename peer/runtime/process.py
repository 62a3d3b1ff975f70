"""One peer as one process, from its graph file to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import (
    ConfigError,
    ConfigProblem,
    DivergedError,
    Option,
    PeerError,
    PolicyError,
    StorageError,
)
from coordinator_free_bootstrap.extras import missing_package, named_packages
from peer import failpoints
from peer.identity.expiry import ending_soon
from peer.identity.files import KeyFiles
from peer.runtime.admission import of_graph
from peer.runtime.assembly import Assembled, LocalSettings, assemble
from peer.runtime.auditing import note_refused
from peer.runtime.ending import is_completed
from peer.runtime.resources import memory_errors, require_threads
from peer.runtime.results import exit_code_of, outcome_of, write_results
from peer.runtime.signals import Signals
from peer.runtime.slow_start import log_while
from peer.runtime.world import AsyncioWorld
from peer.secure_sum.sums import SecureSums
from peer.store.state_dir import StateDir
from peer.store.system import require_unix
from peer.wire.address import require_own_address
from peer.wire.open_files import require_peer_files
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
        on_listening: called with the bound port once the server is up.
    """
    signals = Signals().take()

    async def to_end(world: AsyncioWorld) -> str:
        signals.tell = world.on_signal
        with signals.in_loop():
            return await run_to_end(world, on_listening)

    try:
        status = asyncio.run(to_end(opened(peer_id, graph, settings)))
    except Exception as error:
        return logged(error, trace=settings.traceback)
    return exit_code_of(status)


def logged(error: Exception, *, trace: bool) -> int:
    """Log why a peer ended, and return its exit code.

    What is no `PeerError`, and no missing package of an extra, is a bug of this program, logged with its trace.
    """
    error = missing_package(error) or error
    if isinstance(error, PeerError):
        log.error("%s", error, exc_info=error if trace else None)
    else:
        text = "%s in this program: %s. This is a bug: please report it with the lines below."
        log.error(text, type(error).__name__, error, exc_info=error)
    return exit_code_of(error)


def opened(peer_id: int, graph: Graph, settings: LocalSettings) -> AsyncioWorld:
    """Return one peer, ready to run: its keys, data and state directory are loaded, which may take seconds.

    Raises:
        PeerError: the peer cannot start.
    """
    require_unix("peer run")
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    require_peer_files(graph.degree(peer_id))
    require_threads()
    own = graph.node(peer_id).address
    _tell_state(settings, "starting")
    try:
        with refusals_audited(settings):
            require_allowed(peer_id, graph, settings)
        tls = transport_security(peer_id, graph, settings)
        if settings.options["require_own_address"] and own:
            require_own_address(peer_id, own, settings.options["listen"] or own)
        loading = log_while("loading the task, its data and the state directory")
        with memory_errors(), named_packages(), loading, refusals_audited(settings):
            world = AsyncioWorld(assemble(peer_id, graph, settings, secure_sums(peer_id, graph, tls)), tls)
    except PeerError:
        _tell_state(settings, "failed")
        raise
    if settings.policy is not None:
        own = "" if settings.task is None else "; its task is an object of this program, which the owner has started"
        log.info("the policy %s allows this run%s", settings.policy.path, own)
    concerned = (peer_id, *graph.neighbors(peer_id))
    for sentence in ending_soon({subject: end for subject, end in world.ends.items() if subject in concerned}):
        log.warning(sentence)
    return world


async def opened_aside(open_it: Callable[[], AsyncioWorld]) -> AsyncioWorld:
    """Return a peer that is opened on another thread; where the caller is cancelled, its state directory is free again.

    Raises:
        PeerError: the peer cannot start.
    """
    made, cancelled = list[AsyncioWorld](), threading.Event()

    def made_ready() -> AsyncioWorld:
        made.append(open_it())
        if cancelled.is_set():  # the thread has gone on
            made[0].parts.lock.release()
        return made[0]

    try:
        return await asyncio.to_thread(made_ready)
    except asyncio.CancelledError:
        cancelled.set()
        for world in made:
            world.parts.lock.release()
        raise


async def run_to_end(world: AsyncioWorld, on_listening: Callable[[int], None] | None = None) -> str:
    """Run one peer to its end and write its results; return a `peer.core.effects.Status`. A ``changed`` one writes none.

    A cancelled call asks the peer to leave: it tells its neighbors, writes a checkpoint, and ends.

    Raises:
        PeerError: the address cannot be bound, the models diverged, or the results cannot be written.
    """
    parts, began = world.parts, time.monotonic()
    try:
        with measured(world), alerted(world):
            status, cancelled = await _until_left(world, on_listening)
            if status != "changed":
                _write(parts, status, began)
                world.tell("exit", {"outcome": status, "exit_code": exit_code_of(status)})
        if cancelled is not None:
            raise cancelled
        if status == "changed":
            return status
        if is_completed(parts.state_dir):
            world.partials.clear()
        _tell_state(parts.settings, status)
    except DivergedError:
        _write(parts, "diverged", began)
        raise
    finally:
        parts.lock.release()
    log.info("%s after %d rounds", status, parts.host.engine.round_index)
    return status


def require_allowed(peer_id: int, graph: Graph, settings: LocalSettings) -> None:
    """Check a graph file against the policy of this device's owner, where there is one.

    Raises:
        PolicyError: the policy refuses it.
    """
    if (owners := settings.policy) is not None:
        plaintext = settings.options["insecure"] or settings.options["insecure_anywhere"]
        owners.admit(of_graph(owners, graph, peer_id, plaintext=plaintext, own_task=settings.task is not None))


@contextmanager
def refusals_audited(settings: LocalSettings) -> Iterator[None]:
    """Write to the audit log where the policy refuses what the block does; the peer does not run yet."""
    try:
        yield
    except PolicyError as error:
        try:
            note_refused(StateDir(settings.state_dir), str(error))
        except StorageError as problem:
            log.warning("the audit log does not have this refusal: %s", problem)
        raise


def _tell_state(settings: LocalSettings, state: str) -> None:
    if settings.metrics:
        settings.metrics.set_state(state)


async def _until_left(
    world: AsyncioWorld, on_listening: Callable[[int], None] | None
) -> tuple[str, asyncio.CancelledError | None]:
    """Run a world, and return how it ended; where the caller is cancelled, leave first, and return that, too."""
    running = asyncio.ensure_future(world.run(on_listening))
    try:
        return await asyncio.shield(running), None
    except asyncio.CancelledError as cancelled:
        world.leave()
        return await running, cancelled


def _write(parts: Assembled, status: str, began: float) -> None:
    seconds = time.monotonic() - began
    try:
        write_results(parts.host, parts.state_dir, status, seconds, models=status != "diverged")
    except StorageError as error:
        raise StorageError(f"the run ended, but its results could not be written: {error}") from error


@contextmanager
def measured(world: AsyncioWorld) -> Iterator[None]:
    """Update the metrics while the block runs, where they are served."""
    page, manifest = world.parts.settings.metrics, world.manifest
    if page is None:
        yield
        return
    from peer.observe.metrics import PeerMetrics  # here: a peer without metrics need not import their library
    from peer.observe.metrics_feed import MetricsFeed

    labels = {"algorithm": manifest.algorithm, "task": manifest.task, "federation": manifest.federation}
    task, run = world.parts.task, world.host.state
    metrics = page.show(lambda: PeerMetrics(world.peer_id, labels, task.reported(), task.more_metrics))
    ends = {subject: end.timestamp() for subject, end in world.ends.items()}
    others = [end for subject, end in ends.items() if subject in run.neighbors]
    revision = len(run.graph.continues)
    metrics.plan(manifest.rounds, ends.get(world.peer_id, 0.0), min(others, default=0.0), revision)
    world.observers.append(MetricsFeed(metrics, tuple(run.neighbors), lambda: run.incarnation))
    page.set_state("running")
    try:
        yield
    except Exception as error:
        page.set_state(outcome_of(error))
        raise


@contextmanager
def alerted(world: AsyncioWorld) -> Iterator[None]:
    """Tell of events while the block runs, where the options say whom."""
    options, manifest = world.parts.settings.options, world.manifest
    if (make := world.parts.settings.alerts) is None or not (options["on_event"] or options["webhook"]):
        yield
        return
    about = {"federation": manifest.federation, "peer_id": world.peer_id, "rounds": manifest.rounds}
    alerts = make(about, options["on_event"], options["webhook"])
    world.observers.append(alerts)
    alerts.start()
    try:
        yield
    except Exception as error:
        world.tell("exit", {"outcome": outcome_of(error), "exit_code": exit_code_of(error)})
        raise
    finally:
        alerts.close()


def transport_security(peer_id: int, graph: Graph, settings: LocalSettings) -> MutualTls | None:
    """Return the TLS of a peer; None only where its user has asked for plaintext.

    Raises:
        IdentityError: keys or certificates are missing, expired, unreadable, too open, or not the pinned ones.
        ConfigError: plaintext on an address that other machines can reach.
    """
    if settings.options["insecure"] or settings.options["insecure_anywhere"]:
        if listen := settings.options["listen"] or graph.node(peer_id).address:
            require_loopback_or(settings.options["insecure_anywhere"], listen)
        log.warning("plaintext: anyone with access to this port can read and forge models")
        return None
    return load_tls(graph, peer_id, key_files(peer_id, settings), certs=settings.path("certs"), ca=settings.path("ca"))


def secure_sums(peer_id: int, graph: Graph, tls: MutualTls | None) -> SecureSums | None:
    """Return the secrets of a peer for secure sums, new at each start; None in a run without.

    Raises:
        ConfigError: plaintext.
        IdentityError: the graph file lacks a certificate.
    """
    if graph.manifest.secure_sum is None:
        return None
    if tls is None:
        expected = f"null with {Option('insecure')}, as the masks are agreed on with pinned keys"
        raise ConfigError(ConfigProblem("run.secure_sum", expected, f"{graph.manifest.secure_sum:g}", "Run with keys."))
    return SecureSums(peer_id, graph, tls.signer(), os.urandom)


def key_files(peer_id: int, settings: LocalSettings) -> KeyFiles:
    """Return the paths of a peer's own certificate and key."""
    folder = settings.path("certs") or settings.state_dir / "identity"
    usual, plain = KeyFiles.of(folder, peer_id), KeyFiles(folder / "peer.pem", folder / "peer.key")
    return plain if plain.exist() and not usual.exist() else usual  # plain: of a device with one peer

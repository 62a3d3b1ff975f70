"""`peer.run` and `peer.run_async`: one peer in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args, get_origin, get_type_hints

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import AloneError, ConfigError, PeerError, UsageError
from coordinator_free_bootstrap.rates import parse_rate
from coordinator_free_bootstrap.validation import refuse_without
from peer.api.arguments import named_in_python
from peer.api.choices import AlgorithmChoice, TaskChoice, chosen
from peer.rings import name_of_api, part

if TYPE_CHECKING:
    from peer import Run
    from peer.observe.metrics_page import MetricsPage
    from peer.runtime.assembly import LocalSettings
    from peer.runtime.schedule import Schedule
    from peer.runtime.world import AsyncioWorld
    from peer.tasks.task import Task

log = logging.getLogger("peer")


class LocalOptions(TypedDict, total=False):
    """What each device decides for itself: the options of `peer run`, with the same names, defaults and meanings."""

    state_dir: str | Path
    listen: str
    data_root: str | Path
    shard: str | Path
    device: str
    amp: str
    threads: int
    download: bool
    cert: str | Path
    key: str | Path
    certs: str | Path
    ca: str | Path
    insecure: bool
    insecure_anywhere: bool
    upload_limit: str
    download_limit: str
    metrics_port: int
    metrics_host: str
    tell_clusters: bool
    require_own_address: bool
    discard_state: bool
    proxy: bool
    when: str | Sequence[str]
    when_command: str
    stay: Literal["never", "completed", "error"]
    export: str | Sequence[str]
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["text", "json"]


_PATHS = frozenset({"state_dir", "data_root", "shard", "cert", "key", "certs", "ca"})


def run(
    peer_id: int,
    graph: Graph,
    task: TaskChoice = None,
    *,
    algorithm: AlgorithmChoice = None,
    **options: Unpack[LocalOptions],
) -> Run:
    """Run one peer in this process until the run is completed, as `peer run` does, and return what it left.

    Ctrl-C asks the peer to leave; with the same ``state_dir`` it resumes later. Other signals stay with the program.

    Args:
        peer_id: id of this peer in the graph.
        graph: the graph that all peers share.
        task: a `Task` object, or a value of ``run.task``; every peer must give the same. Default: the graph's.
        algorithm: a subclass of `Algorithm`, or a value of ``run.algorithm``; every peer must give the same.
        options: those of `peer run`: ``state_dir`` (default ``state/peer-<id>``), ``listen``, ``device``, ``certs``, ...
            ``when`` and ``when_command``: work only then. ``stay``: after a completed run, or after an error, do not return
            or raise until Ctrl-C. ``log_level`` and ``log_format``: write log lines to stderr; without them, logging is as
            the program has set it up.

    Raises:
        PeerError: as `peer run` says, by class: `ConfigError`, `TaskError`, `IdentityError`, `AloneError`, `DivergedError`, ...
        UsageError: this thread has a running event loop, as in Jupyter; use ``await peer.run_async(...)``.

    A peer that trained alone in most rounds logs an error, and ``state`` among the metrics of what it left is ``alone``.

    >>> import peer, tempfile
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> graph = peer.Graph.make("line", peers=2, run={"rounds": 2})
    >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:  # usually on two machines
    ...     both = [threads.submit(run, i, graph, state_dir=f"{folder}/{i}", insecure=True) for i in (0, 1)]
    ...     [done.result().metrics["rounds"] for done in both]
    [2, 2]
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(peer_id, graph, task, algorithm=algorithm, **options))
    raise UsageError("peer.run: found a running event loop; use: await peer.run_async(...)")


async def run_async(
    peer_id: int,
    graph: Graph,
    task: TaskChoice = None,
    *,
    algorithm: AlgorithmChoice = None,
    **options: Unpack[LocalOptions],
) -> Run:
    """Run one peer on the running event loop; see `run`. A cancelled call leaves the run first.

    Data are loaded on another thread, and the peer trains on threads of its own, so the loop stays responsive.

    >>> import peer, tempfile
    >>> graph = peer.Graph.make("line", peers=2, run={"rounds": 2})
    >>> async def both(folder):
    ...     peers = (run_async(i, graph, state_dir=f"{folder}/{i}", insecure=True) for i in (0, 1))
    ...     return [done.metrics["rounds"] for done in await asyncio.gather(*peers)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(both(folder))
    [2, 2]
    """
    from peer.tasks.loading import absolute_task

    with named_in_python():
        graph, task_object = chosen(graph, task, algorithm)
        task_file = absolute_task(graph.manifest.task)
        _check(options)
        _set_up_logging(peer_id, options)
        stay = options.pop("stay", "never")
        refuse_without("with --metrics-port", "metrics_port" in options, metrics_host=options.get("metrics_host"))
        with _metrics(options) as metrics:
            try:
                status, place = await _to_end(peer_id, graph, task_object, options, metrics)
            except PeerError as error:
                if stay == "error":
                    await _until_cancelled(f"stopped by an error: {error}")
                raise
            if stay == status or (stay == "completed" and status == "alone"):
                await _until_cancelled("run completed")
            made: Run = name_of_api("Run")(place, task=task_object or task_file)
            return made


async def _to_end(
    peer_id: int, graph: Graph, task: Task | None, options: LocalOptions, metrics: MetricsPage | None
) -> tuple[str, Path]:
    """Run a peer to its end, in the windows of its schedule if it has one; return how it ended, and its state directory."""
    from peer.runtime.ending import is_completed
    from peer.runtime.process import opened, run_to_end
    from peer.runtime.windows import run_in_windows
    from peer.store.state_dir import StateDir

    schedule = _schedule(options)
    exports = options.pop("export", ())
    settings = replace(_settings(peer_id, options, task), metrics=metrics)
    live = part("LiveExport")(settings.state_dir, [exports] if isinstance(exports, str) else exports)

    async def ready() -> AsyncioWorld:
        return await asyncio.to_thread(opened, peer_id, graph, settings)

    # without a schedule, an error of the start comes before the trackers
    running = run_in_windows(ready, schedule, metrics=metrics) if schedule else run_to_end(await ready())
    live.start()
    try:
        status = await running
    finally:
        await asyncio.to_thread(live.finish)
    if live.problem:
        log.warning(live.problem)
    if status == "refused":
        raise ConfigError(
            f"peer {peer_id}: refused by every neighbor, because its manifest, graph, schema or version is another; "
            f"{settings.state_dir / 'history.jsonl'} and the log have each neighbor's reason"
        )
    if status == "alone" and not is_completed(StateDir(settings.state_dir)):
        raise AloneError(
            f"peer {peer_id}: no neighbor was live for run.start.deadline_s, and run.start.rule is never_alone; call peer.run "
            "again when its neighbors are back: it resumes"
        )
    return status, settings.state_dir


async def _until_cancelled(reason: str) -> None:
    """Wait for Ctrl-C, or for the end of the task; the caller then goes on."""
    log.info("%s; waiting for Ctrl-C", reason)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None:
            task.uncancel()


def _metrics(options: LocalOptions) -> AbstractContextManager[MetricsPage | None]:
    """Serve the metrics, where the options name a port; take their options away."""
    port, host = options.pop("metrics_port", None), options.pop("metrics_host", None)
    if port is None:
        return nullcontext()
    from peer.observe.metrics_page import metrics_page

    return metrics_page(port, host or "127.0.0.1")


def _check(options: LocalOptions) -> None:
    """Refuse unknown options, and unknown values of those with a few values.

    Raises:
        UsageError: an option or a value is unknown.
    """
    hints = get_type_hints(LocalOptions)
    if unknown := sorted(options.keys() - hints.keys()):
        raise UsageError(f"peer.run: found the option {unknown[0]!r}; allowed: {', '.join(sorted(hints))}")
    for key, value in options.items():
        if (allowed := get_args(hints[key])) and get_origin(hints[key]) is Literal and value not in allowed:
            raise UsageError(f"{key}: found {value!r}; allowed: {', '.join(allowed)}")


def _set_up_logging(peer_id: int, options: LocalOptions) -> None:
    """Write log lines to stderr as `peer run` does, if the caller asks for it."""
    from peer.observe.logs import setup_logging

    level, style = options.pop("log_level", None), options.pop("log_format", None)
    if level or style:
        setup_logging(peer_id, level=level or "info", style=style or "text")


def _schedule(options: LocalOptions) -> Schedule | None:
    """Return when the peer may work; None: always."""
    from peer.runtime.schedule import Schedule, parse_window

    when, command = options.pop("when", ()), options.pop("when_command", "")
    windows = [when] if isinstance(when, str) else when
    return Schedule([parse_window(text) for text in windows], command) if windows or command else None


def _settings(peer_id: int, options: LocalOptions, task: Any) -> LocalSettings:
    from peer.runtime.assembly import LocalSettings
    from peer.wire.proxy import HttpProxy

    given: dict[str, Any] = {
        key: Path(str(value)) if key in _PATHS else value for key, value in options.items() if value is not None
    }
    plaintext = bool(given.get("insecure") or given.get("insecure_anywhere"))
    refuse_without(
        "without plaintext", not plaintext, **{key: given.get(key) for key in ("cert", "key", "certs", "ca")}
    )
    for key in ("upload_limit", "download_limit"):
        if key in given:
            given[key] = parse_rate(str(given[key]), f"--{key.replace('_', '-')}")
    given["proxy"] = HttpProxy.chosen(bool(given.get("proxy")))
    given.setdefault("state_dir", Path("state") / f"peer-{peer_id}")
    return LocalSettings(**given, task=task, check_task=True)

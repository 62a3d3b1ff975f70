"""`peer.run` and `peer.run_async`: one peer in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import (
    AloneError,
    BehindError,
    ConfigError,
    ConfigProblem,
    Option,
    PeerError,
    RemovedError,
    UsageError,
)
from peer.api.arguments import named_in_python
from peer.api.choices import AlgorithmChoice, TaskChoice, chosen, graph_of, require_named
from peer.rings import name_of_api, part
from peer.runtime.local_options import LocalOptions, complete_options, log_form, metrics_of

if TYPE_CHECKING:
    from peer import Run
    from peer.observe.metrics_page import MetricsPage
    from peer.runtime.graph_changes import SharedFile
    from peer.runtime.world import AsyncioWorld
    from peer.tasks.task import Task

log = logging.getLogger("peer")

_WATCH = Option("watch_graph")


def run(
    peer_id: int,
    graph: Graph | str | Path,
    task: TaskChoice = None,
    *,
    algorithm: AlgorithmChoice = None,
    watch_graph: bool = False,
    **options: Unpack[LocalOptions],
) -> Run:
    """Run one peer in this process until the run is completed, as `peer run` does, and return what it left.

    Ctrl-C asks the peer to leave; with the same ``state_dir`` it resumes later. Other signals stay with the program.

    Args:
        peer_id: id of this peer in the graph.
        graph: the graph that all peers share, or its file.
        task: a `Task` object, or a value of ``run.task``; every peer must give the same. Default: the graph's.
        algorithm: a subclass of `Algorithm`, or a value of ``run.algorithm``; every peer must give the same.
        watch_graph: take the next graph file as soon as it is there; the files then name task and algorithm.
        options: those of `peer run`: ``state_dir`` (default ``state/peer-<id>``), ``listen``, ``device``, ``certs``, ...
            ``when``: work only then. ``stay``: after a completed run, or after an error, do not return
            or raise until Ctrl-C. ``log``: write log lines to stderr; without it, logging is as
            the program has set it up.

    Raises:
        PeerError: as `peer run` says, by class: `ConfigError`, `TaskError`, `IdentityError`, `AloneError`, `DivergedError`, ...
        UsageError: this thread has a running event loop, as in Jupyter; use ``await peer.run_async(...)``. Or ``watch_graph``
            with a graph that is no file, with a task or an algorithm that the file does not name, or with dealt samples.

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
        return asyncio.run(run_async(peer_id, graph, task, algorithm=algorithm, watch_graph=watch_graph, **options))
    raise UsageError("peer.run: expected no running event loop, got one. Use: await peer.run_async(...)")


async def run_async(
    peer_id: int,
    graph: Graph | str | Path,
    task: TaskChoice = None,
    *,
    algorithm: AlgorithmChoice = None,
    watch_graph: bool = False,
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
    from peer.observe.logs import setup_logging
    from peer.tasks.loading import absolute_task

    with named_in_python():
        asked = complete_options(peer_id, options)
        file = _watched(graph) if watch_graph else None
        now, task_object = chosen(graph_of(graph) if file is None else file.graph, task, algorithm)
        if file is not None:
            _require_followed(file, now, task_object)
        task_file = absolute_task(now.manifest.task)
        if "log" in options:  # otherwise logging is as the program has set it up
            level, style = log_form(asked["log"])
            setup_logging(peer_id, level=level, style=style)
        stay = asked["stay"]
        with metrics_of(asked) as metrics:
            try:
                status, place = await to_end(peer_id, now, task_object, asked, metrics, file=file)
            except PeerError as error:
                if stay == "error":
                    await _until_cancelled(f"stopped by an error: {error}")
                raise
            if stay == status or (stay == "completed" and status == "alone"):
                await _until_cancelled("run completed")
            made: Run = name_of_api("Run")(place, task=task_object or task_file)
            return made


async def to_end(
    peer_id: int,
    graph: Graph,
    task: Task | None,
    options: LocalOptions,
    metrics: MetricsPage | None,
    on_ready: Callable[[AsyncioWorld], object] = lambda world: None,
    file: SharedFile | None = None,
) -> tuple[str, Path]:
    """Run a peer to its end, in the windows of its schedule if it has one; return how it ended, and its state directory.

    ``on_ready`` gets the peer before it runs, in each of its windows. ``file``: it follows this one.
    """
    from peer.runtime.assembly import LocalSettings
    from peer.runtime.ending import is_completed
    from peer.runtime.graph_changes import Revisions
    from peer.runtime.process import opened, opened_aside, run_to_end
    from peer.runtime.schedule import schedule_of
    from peer.runtime.windows import run_in_windows
    from peer.store.records import STATES
    from peer.store.state_dir import StateDir

    settings = LocalSettings(options, metrics, part("Alerts"), check_task=task is None or task.can_try, task=task)
    schedule = schedule_of(options, settings.policy)
    live = part("LiveExport")(settings.state_dir, options["export"])
    revisions = Revisions(peer_id, file, settings) if file else None
    run_one = revisions.run if revisions else run_to_end

    async def ready() -> AsyncioWorld:
        alone = partial(opened, peer_id, graph, settings)
        world = await (revisions.ready_aside() if revisions else opened_aside(alone))
        on_ready(world)
        return world

    async def through_all_files(world: AsyncioWorld) -> str:
        while (status := await run_one(world)) == "changed":
            world = await ready()
        return status

    async with revisions.watching() if revisions else nullcontext():
        # without a schedule, an error of the start comes before the trackers
        running = (
            run_in_windows(ready, schedule, metrics=metrics, run=run_one)
            if schedule
            else through_all_files(await ready())
        )
        live.start()
        try:
            status = await running
        finally:
            await asyncio.to_thread(live.finish)
    if live.problem:
        log.warning(live.problem)
    if status == "refused":
        expected = "manifest, graph, schema and version of the neighbors"
        fix = f"{settings.state_dir / 'history.jsonl'} and the log have each neighbor's reason."
        raise ConfigError(ConfigProblem(f"peer {peer_id}", expected, "others: every neighbor refuses it", fix))
    if status in ("removed", "behind"):
        kind = RemovedError if status == "removed" else BehindError
        raise kind(f"peer {peer_id}: {STATES[status].help}; its log has what its neighbors say, and what to do")
    if status == "alone" and not is_completed(StateDir(settings.state_dir)):
        raise AloneError(
            f"peer {peer_id}: its wait for neighbors lasted run.start.deadline_s, and run.start.wait_for is "
            f"{graph.manifest.start.wait_for}; its log names them. Call peer.run again when its neighbors are back: it resumes."
        )
    return status, settings.state_dir


def _watched(given: Graph | str | Path) -> SharedFile:
    """Return the graph file that a peer follows.

    Raises:
        UsageError: it is none.
        GraphError, ConfigError: the file cannot be used.
    """
    from peer.runtime.graph_changes import SharedFile

    if not isinstance(given, str | Path):
        graph_of(given)  # what is no graph at all is refused as such
        raise UsageError(ConfigProblem(_WATCH, "a graph file", "a peer.Graph", "Give its path as graph."))
    return SharedFile(Path(given), watch=True)


def _require_followed(file: SharedFile, graph: Graph, task: Task | None) -> None:
    """Check that a program runs what the graph file says, as it will run what the next one says.

    Raises:
        UsageError: the program gives what the file does not name, or its samples are dealt to the peers.
    """
    from peer.tasks.dealt import DealtTask

    if isinstance(task, DealtTask):
        raise UsageError(
            ConfigProblem(_WATCH, "a task that loads the data of one peer", "samples that are dealt to all")
        )
    require_named(file.graph, graph)


async def _until_cancelled(reason: str) -> None:
    """Wait for Ctrl-C, or for the end of the task; the caller then continues."""
    log.info("%s; waiting for Ctrl-C", reason)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None:
            task.uncancel()

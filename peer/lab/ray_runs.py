"""The runs of an experiment as Ray tasks, one for each case and seed. This process writes the results, as without Ray.

A task calls what a run on this machine calls (`results_of`), so both give the same result. A lost worker or node costs the runs
that were on it: they start again elsewhere. A run whose result exists is not in the list of runs, so a stopped command continues.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, PeerError, RunFailed, UsageError
from coordinator_free_bootstrap.validation import counted
from peer.lab.demand import Demand, demand_of
from peer.lab.fingerprint import differences, fingerprint
from peer.lab.jobs import Job
from peer.lab.node_data import DataFile, DataFiles, root_on_this_node, scratch
from peer.lab.progress import TableProgress
from peer.lab.ray_board import Board, Rounds
from peer.lab.ray_cluster import connected, living_nodes, refuse_impossible, survey
from peer.lab.runner import results_of, write_results
from peer.tasks.effect import used_data_root
from peer.zoo.tasks.data_files import data_files

STARTS_MAX = 4  # of one run: the first, and after a loss of its worker
PAUSE_S = 1.0  # between two reads of the progress
REPORT_S = 0.5  # between two messages of a task about its rounds
NODES_S = 10.0  # between two checks that some node can start what waits


@dataclass(frozen=True)
class Order:
    """What a task gets: a run, and what it must do with it."""

    job: Job
    start: int
    command: str
    keep: bool
    data: DataFiles | None
    fingerprint: dict[str, str]


@dataclass(frozen=True)
class Done:
    """What a task gives: the results, its run directory as a tar file if it is kept, and where it ran.

    ``results`` is None if the node has no copy of the data set, and the task got none.
    """

    results: list[dict[str, Any]] | None
    kept: bytes | None = None
    node: str = ""
    fetched: int = 0


def run_on_node(order: Order, contents: dict[DataFile, Any] | None, board: Any) -> Done:
    """Do one run on the node that this task is on.

    Args:
        order: the run.
        contents: Ray's references to the content of the data set's files; None: not given yet.
        board: Ray's handle of a `Board`.
    """
    import ray

    if wrong := differences(fingerprint(), order.fingerprint):
        expected, fix = "the versions of the node with the command", "Install the same versions on every node."
        raise ConfigError(ConfigProblem(f"node {socket.gethostname()}", expected, ", ".join(wrong), fix))
    job, fetched = order.job, 0
    if order.data is not None:
        fetch = None if contents is None else lambda file: bytes(ray.get(contents[file]))
        found = root_on_this_node(order.data, fetch)
        if found is None:
            return Done(None)
        root, fetched = found
        job = replace(job, settings=replace(job.settings, data_root=root))
    last = float("-inf")

    def on_round(completed: int, metric: float | None) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_S:
            last = time.monotonic()
            board.set.remote(job.label, Rounds(order.start, completed, metric))

    with TemporaryDirectory(prefix=unfinished_prefix(), dir=scratch()) as folder:
        directory = Path(folder) / "run"
        directory.mkdir()
        results = results_of(job, directory, order.command, on_round)
        kept = packed(directory) if order.keep else None
    return Done(results, kept, f"{ray.util.get_node_ip_address()} ({socket.gethostname()})", fetched)


def unfinished_prefix() -> str:
    """Return how the folders of this process's unfinished runs begin; those of killed processes on this machine are removed."""
    host = socket.gethostname()
    for old in scratch().glob(f"run-{host}-*"):
        process = old.name.removeprefix(f"run-{host}-").partition("-")[0]
        if not Path(f"/proc/{process}").exists():
            shutil.rmtree(old, ignore_errors=True)  # two tasks may remove it at the same time
    return f"run-{host}-{os.getpid()}-"


def packed(directory: Path) -> bytes:
    """Return a directory as a tar file in memory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(directory, arcname=".")
    return buffer.getvalue()


def unpack(content: bytes, directory: Path) -> None:
    """Write a packed directory in place of an earlier one."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        # of Python 3.11.4; Debian 12 has 3.11.2
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(directory)


def device_on_ray(wanted: str | None, backend: str) -> str:
    """Return the device of runs on a cluster.

    Raises:
        UsageError: ``--device`` names one that a cluster does not have, or the backend starts processes.
    """
    if backend != "simulated":
        raise UsageError(
            f"--backend: expected simulated with a Ray cluster, got {backend}. A testbed of processes is for one machine."
        )
    if wanted not in {None, "cpu", "cuda"}:
        raise UsageError(
            f"--device: expected cpu or cuda with a Ray cluster, got {wanted!r}. The cluster chooses which GPU."
        )
    return wanted or "cpu"


def run_on_ray(
    address: str, jobs: Sequence[Job], out: Path, *, keep: bool, command: str, progress: TableProgress
) -> None:
    """Run jobs on a cluster and write their results.

    Args:
        address: see `connected`.
        jobs: all that have no result yet, in the order in which they should start.
        out: folder of all results.
        keep: whether run directories are kept.
        command: the user's command line, stored in the results.
        progress: shows rounds, results and losses; starts when the runs start.

    Raises:
        UsageError: the cluster cannot be used, or no node can ever start one of the runs.
        PeerError: of a run that failed, after all others have ended.
    """
    plans = planned(jobs)
    with connected(address) as ray:
        nodes = living_nodes(ray)
        smallest = survey(ray, nodes)
        for plan in plans:
            refuse_impossible(plan.job.label, plan.demand, plan.demand.gpus(smallest), nodes)
        progress.say(
            f"{counted(len(jobs), 'run')} on {counted(len(nodes), 'node')}: {', '.join(n.name for n in nodes)}"
        )
        with progress:
            _Table(ray, plans, smallest, out, keep, command, progress).run()


@dataclass
class Plan:
    """A run, what it needs, and how often it was started."""

    job: Job
    demand: Demand
    data: DataFiles | None
    starts: int = 0


def planned(jobs: Sequence[Job]) -> list[Plan]:
    """Return a plan for each run; seeds of a case need the same, so the first one is looked at.

    Raises:
        ConfigError, TaskError, ShardError: a case cannot be run, such as for lack of data.
    """
    by_case: dict[str, Plan] = {}
    files: dict[tuple[Path, ...], DataFiles] = {}
    plans = []
    for job in jobs:
        if job.case.name not in by_case:
            manifest = job.graph().manifest
            root = used_data_root(manifest, job.settings.data_root)
            paths = tuple(data_files(manifest, root))
            if root is not None and paths and paths not in files:
                files[paths] = DataFiles.of(root, paths)
            by_case[job.case.name] = Plan(job, demand_of(job), files.get(paths))
        plans.append(replace(by_case[job.case.name], job=job))
    return plans


class _Table:
    """The runs that are under way on a cluster."""

    def __init__(
        self,
        ray: Any,
        plans: Sequence[Plan],
        smallest: int | None,
        out: Path,
        keep: bool,
        command: str,
        progress: TableProgress,
    ) -> None:
        self._ray, self._plans, self._smallest = ray, plans, smallest
        self._out, self._keep, self._command, self._progress = out, keep, command, progress
        self._task = ray.remote(max_retries=0)(run_on_node)
        self._board = ray.remote(Board).options(num_cpus=0, resources={"node:__internal_head__": 0.001}).remote()
        self._reading = self._board.read.remote()
        self._contents: dict[str, dict[DataFile, Any]] = {}  # by the digest of `DataFiles`: put when a node needs them
        self._running: dict[Any, Plan] = {}
        self._failed: list[PeerError] = []
        self._fingerprint = fingerprint()

    def run(self) -> None:
        """Start all runs and wait for their ends."""
        for plan in self._plans:
            self._start(plan)
        checked = time.monotonic()
        while self._running:
            ended, _ = self._ray.wait(list(self._running), timeout=PAUSE_S)
            for ref in ended:
                self._end(ref, self._running.pop(ref))
            self._show_rounds()
            if time.monotonic() - checked > NODES_S:
                checked = time.monotonic()
                self._refuse_what_lost_its_node()
        if self._failed:
            raise self._failed[0]

    def _start(self, plan: Plan) -> None:
        plan.starts += 1
        order = Order(plan.job, plan.starts, self._command, self._keep, plan.data, self._fingerprint)
        contents = None if plan.data is None else self._contents.get(plan.data.digest)
        options = {
            "name": plan.job.label,
            "num_cpus": plan.demand.cpus,
            "memory": plan.demand.memory,
            "num_gpus": plan.demand.gpus(self._smallest),
        }
        self._running[self._task.options(**options).remote(order, contents, self._board)] = plan

    def _end(self, ref: Any, plan: Plan) -> None:
        """Write the result of a task that ended, or start it again."""
        errors = self._ray.exceptions
        try:
            done: Done = self._ray.get(ref)
        except errors.RayTaskError as error:
            self._fail(plan, error.cause)
        except errors.RayError as error:
            self._lost(plan, error)
        else:
            if done.results is None:
                self._send_data(plan)
            else:
                self._write(plan.job, done, done.results)

    def _write(self, job: Job, done: Done, results: list[dict[str, Any]]) -> None:
        if done.fetched:
            self._progress.say(f"{done.node}: got {done.fetched / 1e6:.1f} MB of data")
        if done.kept is not None:
            unpack(done.kept, job.directory(self._out))
        write_results(job, self._out, results)
        self._progress.done(job, results)

    def _send_data(self, plan: Plan) -> None:
        """Put the files of a data set into Ray's object store, once, and start the run that lacks them again."""
        assert plan.data is not None
        if plan.data.digest not in self._contents:
            self._contents[plan.data.digest] = {
                file: self._ray.put((plan.data.folder / file.path).read_bytes()) for file in plan.data.files
            }
        plan.starts -= 1
        self._start(plan)

    def _lost(self, plan: Plan, error: Exception) -> None:
        """Start a run again whose worker or node is gone."""
        job, reason = plan.job, " ".join(str(error).split()).partition(". ")[0]
        self._progress.on_round(job, 0, None)
        if isinstance(error, self._ray.exceptions.OutOfMemoryError):
            plan.demand = plan.demand.grown()
        if plan.starts == STARTS_MAX:
            self._fail(plan, RunFailed(f"{job.label}: lost its worker {STARTS_MAX} times; the last time: {reason}"))
            return
        self._progress.say(f"{job.label}: its worker is lost ({type(error).__name__}: {reason}); starting it again")
        self._start(plan)

    def _fail(self, plan: Plan, cause: object) -> None:
        label = plan.job.label
        error = cause if isinstance(cause, PeerError) else RunFailed(f"{label}: {type(cause).__name__}: {cause}")
        self._failed.append(error)
        self._progress.say(f"{label}: failed: {error}")

    def _show_rounds(self) -> None:
        """Show what the tasks have reported since the last call."""
        ready, _ = self._ray.wait([self._reading], timeout=0)
        if not ready:
            return
        running = {plan.job.label: plan for plan in self._running.values()}
        for label, rounds in self._ray.get(self._reading).items():
            plan = running.get(label)
            if plan is not None and rounds.start == plan.starts:
                self._progress.on_round(plan.job, rounds.completed, rounds.metric)
        self._reading = self._board.read.remote()

    def _refuse_what_lost_its_node(self) -> None:
        nodes = living_nodes(self._ray)
        for plan in self._running.values():
            refuse_impossible(plan.job.label, plan.demand, plan.demand.gpus(self._smallest), nodes)

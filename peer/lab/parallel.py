"""The runs of an experiment on this machine: one after the other here, or several at a time in processes.

Each process calls what a run here calls, `run_job`, so the result files are the same. There, a run that fails, or whose worker
is killed, does not stop the others.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

from coordinator_free_bootstrap.errors import PeerError, RunFailed
from peer.lab.jobs import Job
from peer.lab.progress import TableProgress
from peer.lab.runner import run_job
from peer.store.system import end_with_parent

REPORT_S = 0.5  # between two messages of a worker about its rounds
STOP_S = 10.0  # for an idle worker to end


class Orders(NamedTuple):
    """What all runs have in common, see `run_job`."""

    out: Path
    keep: bool
    command: str


class WorkerMessage(NamedTuple):
    """What a worker tells: rounds and mean metric, a sentence, the results of a run, or why there are none."""

    kind: Literal["rounds", "say", "done", "failed", "stopped"]
    content: Any = None


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Job | None = None


def run_jobs(at_once: int, jobs: Sequence[Job], orders: Orders, progress: TableProgress) -> None:
    """Run jobs and write their results.

    Args:
        at_once: that many at a time; more than one: each in a process of its own.
        jobs: all that have no result yet, in the order in which they should start.
        orders: what they have in common.
        progress: shows rounds, results and failures.

    Raises:
        PeerError: of the first run that failed; with processes, after all others have ended.
        KeyboardInterrupt: after Ctrl-C, when the runs have stopped.
    """
    if at_once == 1:
        out, keep, command = orders
        for job in jobs:
            on_round = partial(progress.on_round, job)
            progress.done(job, run_job(job, out, keep=keep, command=command, on_round=on_round, tell=progress.say))
        return
    pool = _Pool(deque(jobs), orders, progress)
    try:
        pool.run(min(at_once, len(jobs)))
    finally:
        pool.end()


class _Pool:
    """The workers, and what is left for them."""

    def __init__(self, left: deque[Job], orders: Orders, progress: TableProgress) -> None:
        self._left, self._orders, self._progress = left, orders, progress
        self._context = multiprocessing.get_context("spawn")  # this process has threads
        self._workers: list[_Worker] = []
        self._failed: list[PeerError] = []

    def run(self, count: int) -> None:
        """Give the runs to that many workers, and wait for their ends."""
        for _ in range(count):
            self._workers.append(self._new())
        try:
            self._serve()
        except KeyboardInterrupt:
            self._left.clear()
            self._interrupt()
            raise
        if self._failed:
            raise self._failed[0]

    def end(self) -> None:
        """End the workers, which are idle."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.join(STOP_S)
            worker.process.kill()
            worker.process.join()

    def _new(self) -> _Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there, self._orders), daemon=False)
        process.start()
        there.close()
        worker = _Worker(process, here)
        self._give(worker)
        return worker

    def _give(self, worker: _Worker) -> None:
        worker.job = self._left.popleft() if self._left else None
        if worker.job is not None:
            worker.pipe.send(worker.job)

    def _serve(self) -> None:
        """Take messages until no worker has a run."""
        while busy := {worker.pipe: worker for worker in self._workers if worker.job is not None}:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                self._take(busy[pipe])

    def _take(self, worker: _Worker) -> None:
        job = worker.job
        assert job is not None
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, OSError):
            self._lost(worker, job)
            return
        if kind == "rounds":
            self._progress.on_round(job, *content)
        elif kind == "say":
            self._progress.say(content)
        else:
            if kind == "done":
                self._progress.done(job, content)
            elif kind == "failed":
                self._fail(job, content)
            self._give(worker)

    def _lost(self, worker: _Worker, job: Job) -> None:
        """Say that a run has lost its worker, and start another for the runs that are left."""
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._fail(job, RunFailed(f"{job.label}: its process ended by {how}. With too little memory, lower --jobs."))
        worker.pipe.close()
        self._workers.remove(worker)
        if self._left:
            self._workers.append(self._new())

    def _fail(self, job: Job, error: PeerError) -> None:
        self._failed.append(error)
        self._progress.say(f"{job.label}: failed: {error}")

    def _interrupt(self) -> None:
        """Pass Ctrl-C on, each time, and wait until all runs have stopped."""
        while True:
            for worker in self._workers:
                if worker.process.pid is not None and worker.job is not None:
                    os.kill(worker.process.pid, signal.SIGINT)
            try:
                self._serve()
            except KeyboardInterrupt:
                continue
            return


def _work(pipe: Connection, orders: Orders) -> None:
    """Do the runs that come through a pipe until it is closed."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # while it is idle
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(_done(job, pipe, orders))


def _done(job: Job, pipe: Connection, orders: Orders) -> WorkerMessage:
    """Do a run; return what came of it."""
    last = float("-inf")

    def on_round(completed: int, metric: float | None) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_S:
            last = time.monotonic()
            pipe.send(WorkerMessage("rounds", (completed, metric)))

    def tell(sentence: str) -> None:
        pipe.send(WorkerMessage("say", sentence))

    out, keep, command = orders
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return WorkerMessage("done", run_job(job, out, keep=keep, command=command, on_round=on_round, tell=tell))
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        return WorkerMessage("stopped")
    except Exception as error:
        return WorkerMessage("failed", _portable(job, error))


def _portable(job: Job, error: Exception) -> PeerError:
    """Return an error that can be sent to another process."""
    if not isinstance(error, PeerError):
        traceback.print_exc()
        return RunFailed(f"{job.label}: {type(error).__name__}: {error}")
    try:
        pickle.loads(pickle.dumps(error))
    except (pickle.PickleError, TypeError, AttributeError):
        return RunFailed(str(error))
    return error

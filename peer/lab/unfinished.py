"""What an interrupted run has left in its run directory: the next command continues from it. A completed run is replaced."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import CheckpointCorrupt, UsageError
from peer.bed.testbed.directory import earlier_graph, is_simulated
from peer.lab.jobs import Job
from peer.lab.saved_peers import has_checkpoints
from peer.store.origin import differences_of_graphs, listed
from peer.view.state.peer_state import run_state
from peer.view.state.run_files import PeerRun, RunFiles


@dataclass(frozen=True)
class Unfinished:
    """A run that continues.

    Attributes:
        rounds: that every peer has completed.
        seconds: that it has taken.
    """

    rounds: int
    seconds: float


def unfinished(job: Job, directory: Path) -> Unfinished | None:
    """Return what an interrupted run of a job has left in its run directory; None where it begins anew.

    Raises:
        CheckpointCorrupt: it is of another run; the message names the keys.
        UsageError: it is of the other backend.
        GraphError, StorageError: its files cannot be read.
    """
    if job.case.method != "peers" or not has_checkpoints(directory):
        return None
    before, run = earlier_graph(directory), RunFiles.read(directory)
    found = "simulated" if is_simulated(directory) else "processes"
    if before is None or (
        found == "processes" and _is_over(run, before)
    ):  # a simulation that is over leaves no checkpoint
        return None
    remedy = f"To start again, delete {directory}, or name another folder with --out."
    if changed := differences_of_graphs(before, job.graph()):
        raise CheckpointCorrupt(
            f"{directory}: expected the state of this run, got another: {listed(changed)}. {remedy}"
        )
    if found != job.backend:
        raise UsageError(
            f"{directory}: expected a run of --backend {job.backend}, got an interrupted one of --backend {found}, which it "
            f"cannot resume. {remedy}"
        )
    return Unfinished(min(peer.rounds_completed for peer in run.peers), max(map(_seconds, run.peers)))


def refuse_other_runs(jobs: Sequence[Job], out: Path) -> None:
    """Raise what `unfinished` raises for one of the jobs, before the first of them runs."""
    for job in jobs:
        unfinished(job, job.directory(out))


def begin_anew(directory: Path) -> None:
    """Make an empty run directory in place of an earlier one."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def _is_over(run: RunFiles, graph: Graph) -> bool:
    """Return whether all peers have ended by themselves."""
    return run_state((peer.state for peer in run.peers), graph.manifest.rounds) in ("complete", "alone", "diverged")


def _seconds(peer: PeerRun) -> float:
    """Return how long the processes of a peer have run: the last time of each incarnation."""
    last = {line["incarnation"]: line["t"] or 0.0 for line in peer.history}
    return sum(last.values())

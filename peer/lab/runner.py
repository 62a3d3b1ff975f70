"""Run the cases of an experiment, seed by seed: one JSON file per case and seed. A run with a result is not repeated."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import RunFailed
from peer.algorithms.registry import algorithm_named
from peer.lab.algorithm_server import run_algorithm_server
from peer.lab.ifca_server import run_ifca_server
from peer.lab.jobs import DATA_KEYS, Job, device_of
from peer.lab.saved_peers import GOES_ON, LEFT, RESUMING
from peer.lab.simulated import OnRound, simulate
from peer.lab.spec import Case
from peer.lab.unfinished import Unfinished, begin_anew, unfinished
from peer.store.files import write_json
from peer.tasks.effect import used_data_root
from peer.view.report.report import build_report
from peer.view.report.soft_clusters import best_center
from peer.view.report.tables import state_text
from peer.view.state.run_files import NumberField, PeerRun, RunFiles, metric_curve

KEPT = (
    *("metric_mean", "metric_std", "metric_worst", "metric_p10", "metric_peers"),
    *("cluster_ari", "cluster_accuracy", "rounds"),
    *("models_sent", "payload_bytes_sent", "wire_bytes_sent", "seconds"),
    *("metric_final_phase", "mix_err", "sample_cluster_accuracy", "models_others_would_send"),
    *("class_explains", "truth_explains", "clusters_used", "warnings"),
)
AT_BEST = "metric_at_best"
LINKS = ("links_to_renamed_first", "links_to_renamed")  # of the collaboration graph


def run_job(
    job: Job,
    out: Path,
    *,
    keep: bool,
    command: str,
    on_round: OnRound,
    tell: Callable[[str], None] = lambda sentence: None,
) -> list[dict[str, Any]]:
    """Run one job on this machine and write the result of each case that measures it.

    A run that was interrupted continues where it stopped, if its run directory has checkpoints: with ``keep``, or of processes.

    Args:
        job: the run.
        out: folder of all results.
        keep: whether to keep the run directory, for `peer report`.
        command: the user's command line, stored in the results.
        on_round: called with the progress.
        tell: called with a sentence on the round at which a run resumes or stopped.

    Raises:
        PeerError: the run cannot start, or a peer of it failed; or its run directory has the state of another run.
    """
    directory = job.directory(out)
    before = unfinished(job, directory)
    if before is None:
        begin_anew(directory)
    if keep or before is not None:
        job = replace(job, settings=replace(job.settings, tell=tell))
    if before is not None and job.backend == "processes":  # a simulation reports it itself
        tell(RESUMING.format(directory=directory, rounds=before.rounds, total=job.graph().manifest.rounds))
    try:
        results = results_of(job, directory, command, on_round, before)
    except KeyboardInterrupt:
        if job.backend == "processes" and (left := unfinished(job, directory)) is not None:
            total = job.graph().manifest.rounds
            tell(LEFT.format(directory=directory, ended="stopped", rounds=left.rounds, total=total, next=GOES_ON))
        raise
    write_results(job, out, results)
    if not keep:
        shutil.rmtree(directory)
    return results


def write_results(job: Job, out: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write what `results_of` returned: a file for each case."""
    for case, result in zip(job.measured_by, results, strict=True):
        place = job.place(out, case)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, result)


def results_of(
    job: Job, directory: Path, command: str, on_round: OnRound, before: Unfinished | None = None
) -> list[dict[str, Any]]:
    """Run one job in an empty run directory, or in that of ``before``, an interrupted run of it, which continues.

    Return the results of `Job.measured_by`. The same here and as a Ray task.

    Raises:
        PeerError: the run cannot start, or a peer of it failed.
    """
    graph = job.graph()
    began, cpu_began = time.monotonic(), time.process_time()
    _RUN[job.backend if job.case.method == "peers" else job.case.method](job, graph, directory, on_round)
    report = build_report(directory)
    if report.values["state"] not in ("complete", "diverged"):
        raise RunFailed(
            f"{directory}: the run is {state_text(report.values)}; a result needs a complete one. Run it again."
        )
    if problems := report.run.log.problems:
        raise RunFailed(f"{problems[0]}; a result needs all of them. Run it again.")
    curve = metric_curve(report.run)
    shared = {
        "experiment": job.experiment.file,
        "metric": report.run.metric.as_json(),
        "seed": job.seed,
        "algorithm": graph.manifest.algorithm if job.case.method == "peers" else job.case.method,
        "digest": job.digest(),
        "backend": job.backend if job.case.method == "peers" else job.case.method,
        "device": device_of(job.backend, job.settings.device),
        "amp": job.settings.amp,
        "scale": job.scale.sentence(job.experiment),
        "scaling": asdict(job.scale),
        "peers": len(graph.nodes),
        "mean_degree": 2 * len(graph.edges) / len(graph.nodes),
        **{key: report.values[key] for key in KEPT},
        **{key: (report.values["collaboration"] or {}).get(key) for key in LINKS},
        "curve": [[int(r) + 1, round(float(a), 5)] for r, a in zip(curve.round_index, curve.mean, strict=True)],
        "curve_train": training_curve(report.run.peers),
        "settled_round": settled_round(report.run.peers),
        "run_seconds": time.monotonic() - began + (before.seconds if before else 0.0),
        "cpu_seconds": None if job.backend == "processes" or before else time.process_time() - cpu_began,
        "held_bytes": held_bytes(graph, report.run) if job.case.method == "peers" else None,
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
    }
    data = {"peers": len(graph.nodes)} | graph.manifest.model_dump(include=DATA_KEYS)
    results = [shared | _of_case(job, case, report.run, data) for case in job.measured_by]
    gc.collect()  # peers and network refer to each other; their models would stay in memory until the next collection
    return results


def _of_case(job: Job, case: Case, run: RunFiles, data: dict[str, Any]) -> dict[str, Any]:
    """Return what only the result of this case has: its position in the table, and what it measures."""
    own = {} if case is job.case else {"run_of": job.case.name, "run_seconds": 0.0}
    return {
        **own,
        **job.labels(case),
        "measures": case.metric,
        **_measured(case, run),
        "sweep": case.swept and case.swept.model_dump(),
        "setting": case.placed and case.placed.model_dump(),
        "data": data | _tested_on(case),
    }


def training_curve(peers: Sequence[PeerRun]) -> list[list[float]]:
    """Return [round, mean training metric of the peers that trained in it]; empty where the task has none."""
    found = defaultdict(list)
    for peer in peers:
        for round_index, value in peer.series("metric_train"):
            found[round_index].append(value)
    return [[round_index + 1, round(float(np.mean(values)), 5)] for round_index, values in sorted(found.items())]


def settled_round(peers: Sequence[PeerRun]) -> int | None:
    """Return the number of rounds until the last change of a peer's cluster; None without clusters."""
    series = [[int(value) for _, value in peer.series("cluster_index")] for peer in peers]
    if not series or not all(series):
        return None
    last = [max((r for r in range(1, len(row)) if row[r] != row[r - 1]), default=0) for row in series]
    return max(last) + 1


def held_bytes(graph: Graph, run: RunFiles) -> int:
    """Return the memory for models of the peer that needs most: models that it holds, and arrivals that it keeps, in bytes."""
    peers = [algorithm_named(graph.manifest.algorithm)(graph.manifest, peer_id, graph) for peer_id in graph.ids]
    (parameters,) = {line["parameters"] or 0 for peer in run.peers for line in peer.history if line["kind"] == "start"}
    return 4 * parameters * max(peer.held + peer.kept_models() for peer in peers)


def machine() -> str:
    """Return a line that describes the machine."""
    memory = ""
    if hasattr(os, "sysconf"):  # not on Windows
        memory = f"{round(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / (1 << 30))} GB, "
    return f"{os.cpu_count()} cores, {memory}{platform.machine()}, Python {platform.python_version()}"


def _tested_on(case: Case) -> dict[str, int]:
    """Return the true distribution of the test samples; nothing where each peer has its own. Others cannot be compared."""
    name, _, center = case.metric.rpartition("_")
    return {"test_distribution": int(center)} if name == "best_center" else {}


def _measured(case: Case, run: RunFiles) -> dict[str, float | None]:
    """Return the number to compare with the published one: the mean over peers; a share in percent.

    With `AT_BEST` it comes with the worst peers of these rounds, in place of those of the last.
    """
    factor = run.metric.factor
    if case.metric.startswith("best_center_"):
        best = best_center(run, int(case.metric.rpartition("_")[2]))
        return {"measured": None if best is None else factor * best}
    if case.metric == AT_BEST:
        found = [_at_best(peer) for peer in run.peers]
        worst, tenth = run.metric.worst(np.array(found)), run.metric.worst_tenth(np.array(found))
        return {"measured": factor * float(np.mean(found)), "metric_worst": worst, "metric_p10": tenth}
    latest = run.latest(cast(NumberField, case.metric))
    return {"measured": factor * sum(latest) / len(latest) if latest else None}


def _at_best(peer: PeerRun) -> float:
    """Return a peer's test metric in the round of its best validation metric, or after the final phase.

    Raises:
        RunFailed: the peer has no such round.
    """
    chosen = peer.last.get("best_round")
    value = None if chosen is None else peer.rounds.get(chosen, peer.last).get("metric_value")
    if value is None:
        raise RunFailed(
            f"peer {peer.peer_id}: metric = {AT_BEST!r} expects a round evaluated on validation and test samples, got none. "
            "Set run.split_options.validation, and run.evaluate_every to 1."
        )
    return value


def _run_simulated(job: Job, graph: Graph, directory: Path, on_round: OnRound) -> None:
    simulate(graph, directory, job.settings, on_round)


def _run_ifca(job: Job, graph: Graph, directory: Path, on_round: OnRound) -> None:
    run_ifca_server(graph, directory, job.case.server, job.settings, on_round)


def _run_server(job: Job, graph: Graph, directory: Path, on_round: OnRound) -> None:
    run_algorithm_server(graph, directory, job.server, job.settings, on_round)


def _run_processes(job: Job, graph: Graph, directory: Path, on_round: OnRound) -> None:
    from peer.bed.testbed.ports import on_free_ports
    from peer.bed.testbed.testbed import Supervisor
    from peer.bed.testbed.warm_up import warm_up
    from peer.view.live.watch import TestbedWatcher

    graph = on_free_ports(graph)
    data_root = used_data_root(graph.manifest, job.settings.data_root)
    warm_up(graph, data_root)
    bed = Supervisor(graph, directory, data_root=data_root, insecure=True)
    watcher = TestbedWatcher(directory, graph)

    def report_progress() -> None:
        watcher.refresh()
        on_round(watcher.rounds_of_all(), watcher.mean_metric())

    bed.start()
    failed = {peer_id: code for peer_id, code in bed.run(report_progress).items() if code != 0}
    if failed:
        raise RunFailed("\n".join(bed.failure(peer_id, code) for peer_id, code in sorted(failed.items())))


_RUN: dict[str, Callable[[Job, Graph, Path, OnRound], None]] = {
    "simulated": _run_simulated,
    "processes": _run_processes,
    "ifca-server": _run_ifca,
    "server": _run_server,
}

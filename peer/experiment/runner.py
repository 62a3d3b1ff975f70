"""Run the cases of an experiment, seed by seed: one JSON file per case and seed. A run with a result is not repeated."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coordinator_free_bootstrap import Graph, canonical_json
from coordinator_free_bootstrap.errors import ConfigError, RunFailed, UsageError
from peer.algorithms.registry import algorithm_named, algorithms
from peer.core.metric import plain_keys
from peer.experiment.algorithm_server import run_algorithm_server
from peer.experiment.ifca_server import run_ifca_server
from peer.experiment.scaling import Scale, scaled_graph
from peer.experiment.simulated import OnRound, SimulatedSettings, simulate
from peer.experiment.spec import Case, Experiment, ServerOptions, check_algorithm
from peer.learning.device import device_named
from peer.observe.report import build_report
from peer.observe.run_files import PeerRun, Run, metric_curve
from peer.observe.soft_clusters import best_center
from peer.store.files import write_json
from peer.tasks.effect import used_data_root

Backend = Literal["simulated", "processes"]
KEPT = (
    *("accuracy_mean", "accuracy_std", "accuracy_worst", "accuracy_p10", "cluster_ari", "cluster_accuracy", "rounds"),
    *("models_sent", "payload_bytes_sent", "wire_bytes_sent", "seconds"),
    *("accuracy_final_phase", "mix_err", "sample_cluster_accuracy", "models_others_would_send"),
    *("class_explains", "truth_explains", "clusters_used"),
)
DATA_KEYS = {"task", "task_options", "split", "split_options"}


@dataclass(frozen=True)
class Job:
    """One run: a case with a seed at a scale."""

    experiment: Experiment
    case: Case
    seed: int
    scale: Scale
    backend: Backend
    settings: SimulatedSettings = field(default_factory=SimulatedSettings)

    @property
    def label(self) -> str:
        """Name of the run within its experiment."""
        return f"{self.case.name}, seed {self.seed}"

    def graph(self) -> Graph:
        """Return the graph, with its manifest."""
        return scaled_graph(self.experiment, self.case, self.seed, self.scale)

    @property
    def server(self) -> ServerOptions:
        """The server's options at this scale: it draws the same share of the clients."""
        options, full = self.case.server, self.experiment.peers
        if options.selected is None:
            return options
        selected = max(1, round(options.selected * self.scale.peers(self.experiment) / full))
        return options.model_copy(update={"selected": selected})

    def place(self, out: Path) -> Path:
        """Return the path of the result."""
        return out / self.experiment.file / slug(self.case.name) / f"seed-{self.seed}.json"

    def digest(self) -> str:
        """Return a digest of everything that determines the result, except the machine."""
        graph = self.graph()
        parts = [canonical_json(graph.manifest), graph.digest, self.case.method, self.server.model_dump_json()]
        named, own = (
            self.settings.device.partition(":")[0],
            self.backend == "processes" or self.settings.device == "auto",
        )
        device = device_of(self.backend, self.settings.device).partition(":")[0] if own else named
        parts += [
            self.backend,
            *([] if device == "cpu" else [device]),
            *([] if self.settings.amp is None else [self.settings.amp]),
        ]  # old results name no device: all are of CPUs
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def rounds(self) -> int:
        """Return the number of rounds, for the progress display."""
        restarts = self.case.server.restarts if self.case.method == "ifca-server" else 1
        return self.graph().manifest.rounds * restarts


def device_of(backend: Backend, wanted: str | None) -> str:
    """Return the device of a backend: cpu, cuda or cuda:N.

    Args:
        backend: simulated, or processes, whose peers choose their device themselves.
        wanted: the user's choice; None: the backend's default.

    Raises:
        ConfigError: the device does not exist, or the peers of the backend would choose another one.
    """
    if backend == "simulated":
        return device_named(wanted or "cpu")
    own = device_named("auto")
    if wanted is not None and device_named(wanted) != own:
        raise ConfigError(
            f"--device: found {wanted} with --backend processes, whose peers choose their device themselves, here {own}; "
            "leave --device out, or use --backend simulated"
        )
    return own


def slug(name: str) -> str:
    """Return a name as part of a path: ``DFCA-GI`` -> ``dfca-gi``."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def skipped(case: Case) -> str | None:
    """Return the reason why a case is not run, or None."""
    if case.method == "published":
        return "published number, without a run"
    if case.method in ("peers", "server") and case.run.get("algorithm") not in (None, *algorithms()):
        return f"no algorithm {case.run['algorithm']!r} in this version"
    return None


def names_of(case: Case) -> tuple[str, ...]:
    """Return what ``--case`` may call a case: its name, and where the file has settings the name of its row or its column."""
    return (case.name,) if case.placed is None else (case.name, case.placed.case, case.placed.setting)


def jobs_of(
    experiment: Experiment, scale: Scale, seeds: int, backend: Backend, settings: SimulatedSettings, only: list[str]
) -> list[Job]:
    """Return all runs of an experiment, seed by seed: after an interruption, all cases have the same seeds.

    Raises:
        ConfigError: ``only`` names an unknown case, or a setting of the scale does not fit a case.
    """
    names = {slug(name): name for case in experiment.case for name in names_of(case)}
    for name in only:
        if slug(name) not in names:
            raise ConfigError(f"--case: found {name!r}; allowed: {', '.join(names.values())}")
    wanted = [
        case for case in experiment.case if not only or any(slug(name) in map(slug, only) for name in names_of(case))
    ]
    jobs = [
        Job(experiment, case, seed, scale, backend, settings)
        for seed in range(1, seeds + 1)
        for case in wanted
        if skipped(case) is None
    ]
    for job in jobs[: len(wanted)]:
        check_algorithm(job.graph().manifest, job.case, f"case {job.case.name!r}")
    manifests = [job.graph().manifest for job in jobs[: len(wanted)]]
    if (
        manifests
        and settings.data_root is not None
        and all(used_data_root(m, settings.data_root) is None for m in manifests)
    ):
        raise UsageError(f"--data-root: found an option that no task of {experiment.file} uses; remove --data-root")
    return jobs


def done_already(job: Job, out: Path) -> bool:
    """Return whether a result with the same settings exists."""
    found = read_result(job.place(out))
    return found is not None and found.get("digest") == job.digest()


def read_result(path: Path) -> dict[str, Any] | None:
    """Return a result, or None if the file is missing or incomplete."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return plain_keys(value) if isinstance(value, dict) else None


def run_job(job: Job, out: Path, *, keep: bool, command: str, on_round: OnRound) -> dict[str, Any]:
    """Run one job on this machine and write its result.

    Args:
        job: the run.
        out: folder of all results.
        keep: whether to keep the run directory, for `peer report`.
        command: the user's command line, stored in the result.
        on_round: called with the progress.

    Raises:
        PeerError: the run cannot start, or a peer of it failed.
    """
    place = job.place(out)
    directory = place.with_suffix("")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    result = result_of(job, directory, command, on_round)
    write_json(place, result)
    if not keep:
        shutil.rmtree(directory)
    return result


def result_of(job: Job, directory: Path, command: str, on_round: OnRound) -> dict[str, Any]:
    """Run one job in an empty run directory and return its result: the same on this machine and as a Ray task.

    Raises:
        PeerError: the run cannot start, or a peer of it failed.
    """
    graph = job.graph()
    began, cpu_began = time.monotonic(), time.process_time()
    _RUN[job.backend if job.case.method == "peers" else job.case.method](job, graph, directory, on_round)
    report = build_report(directory)
    curve = metric_curve(report.run)
    result = {
        "experiment": job.experiment.file,
        "title": job.experiment.title,
        "source": job.experiment.source,
        "case": job.case.name,
        "place": [case.name for case in job.experiment.case].index(job.case.name),
        "published": job.case.published,
        "published_std": job.case.published_std,
        "metric": report.run.metric.as_json(),
        "measured": _measured(job.case, report.run),
        "sweep": job.case.swept and job.case.swept.model_dump(),
        "setting": job.case.placed and job.case.placed.model_dump(),
        "seed": job.seed,
        "algorithm": graph.manifest.algorithm if job.case.method == "peers" else job.case.method,
        "data": {"peers": len(graph.nodes), **_tested_on(job.case)} | graph.manifest.model_dump(include=DATA_KEYS),
        "digest": job.digest(),
        "backend": job.backend if job.case.method == "peers" else job.case.method,
        "device": device_of(job.backend, job.settings.device),
        "amp": job.settings.amp,
        "scale": job.scale.sentence(job.experiment),
        "scaling": asdict(job.scale),
        "peers": len(graph.nodes),
        "mean_degree": 2 * len(graph.edges) / len(graph.nodes),
        **report.run.metric.named({key: report.values[key] for key in KEPT}),
        "curve": [[int(r) + 1, round(float(a), 5)] for r, a in zip(curve.round_index, curve.mean, strict=True)],
        "curve_train": training_curve(report.run.peers),
        "settled_round": settled_round(report.run.peers),
        "run_seconds": time.monotonic() - began,
        "cpu_seconds": None if job.backend == "processes" else time.process_time() - cpu_began,
        "held_bytes": held_bytes(graph, report.run) if job.case.method == "peers" else None,
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
    }
    gc.collect()  # peers and network refer to each other; their models would stay in memory until the next collection
    return result


def training_curve(peers: Sequence[PeerRun]) -> list[list[float]]:
    """Return [round, mean training metric of the peers that trained in it]; empty where the task has none."""
    found = defaultdict(list)
    for peer in peers:
        for round_index, value in peer.series("accuracy_train"):
            found[round_index].append(value)
    return [[round_index + 1, round(float(np.mean(values)), 5)] for round_index, values in sorted(found.items())]


def settled_round(peers: Sequence[PeerRun]) -> int | None:
    """Return the number of rounds until the last change of a peer's cluster; None without clusters."""
    series = [[int(value) for _, value in peer.series("cluster_index")] for peer in peers]
    if not series or not all(series):
        return None
    last = [max((r for r in range(1, len(row)) if row[r] != row[r - 1]), default=0) for row in series]
    return max(last) + 1


def held_bytes(graph: Graph, run: Run) -> int:
    """Return the memory for models of the peer that needs most: models that it holds, and arrivals that it keeps, in bytes."""
    peers = [algorithm_named(graph.manifest.algorithm)(graph.manifest, peer_id, graph) for peer_id in graph.ids]
    (parameters,) = {line["parameters"] for peer in run.peers for line in peer.history if "parameters" in line}
    return 4 * int(parameters) * max(peer.held + peer.kept_models() for peer in peers)


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


def _measured(case: Case, run: Run) -> float | None:
    """Return the number to compare with the published one: the mean over peers; a share in percent."""
    if case.metric.startswith("best_center_"):
        best = best_center(run, int(case.metric.rpartition("_")[2]))
        return None if best is None else run.metric.factor * best
    found = run.latest(case.metric)
    return run.metric.factor * sum(map(float, found)) / len(found) if found else None


def _run_simulated(job: Job, graph: Graph, directory: Path, on_round: OnRound) -> None:
    simulate(graph, directory, job.settings, on_round)


def _run_ifca(job: Job, graph: Graph, directory: Path, on_round: OnRound) -> None:
    run_ifca_server(graph, directory, job.case.server, job.settings, on_round)


def _run_server(job: Job, graph: Graph, directory: Path, on_round: OnRound) -> None:
    run_algorithm_server(graph, directory, job.server, job.settings, on_round)


def _run_processes(job: Job, graph: Graph, directory: Path, on_round: OnRound) -> None:
    from peer.observe.watch import TestbedWatcher
    from peer.testbed.ports import on_free_ports
    from peer.testbed.testbed import Testbed
    from peer.testbed.warm_up import warm_up

    graph = on_free_ports(graph)
    data_root = used_data_root(graph.manifest, job.settings.data_root)
    warm_up(graph, data_root)
    bed = Testbed(graph, directory, data_root=data_root, insecure=True)
    watcher = TestbedWatcher(directory, graph)

    def report_progress() -> None:
        watcher.refresh()
        on_round(watcher.rounds_of_all(), watcher.mean_metric())

    bed.start()
    failed = {peer_id: code for peer_id, code in bed.run(report_progress).items() if code != 0}
    if failed:
        raise RunFailed(f"peers {sorted(failed)} of {directory} failed with exit codes {failed}; see their peer.log")


_RUN: dict[str, Callable[[Job, Graph, Path, OnRound], None]] = {
    "simulated": _run_simulated,
    "processes": _run_processes,
    "ifca-server": _run_ifca,
    "server": _run_server,
}

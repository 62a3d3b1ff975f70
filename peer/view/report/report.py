"""The report of a run: one JSON object with stable keys, computed from the peers' files.

To add a number, add a function of `RunFiles` to `METRICS`; its name is the key. A value that is not known (no true clusters, no
evaluation yet) is null, never zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import Option, RefusalCode, UsageError
from coordinator_free_bootstrap.strict_json import finite, printable
from coordinator_free_bootstrap.validation import counted
from peer.core.assignment import assignment
from peer.core.counters import COUNTERS
from peer.core.metric import Metric
from peer.store.records import PHASES, STATES
from peer.view.report import soft_clusters
from peer.view.report.collaboration import collaboration
from peer.view.report.consensus import consensus_distances
from peer.view.report.matrix import matrix
from peer.view.report.waiting import waiting
from peer.view.state.agreement import agreement
from peer.view.state.attendance import WITHOUT_EXCHANGE, hardly_there
from peer.view.state.durations import duration
from peer.view.state.graph_files import graph_files
from peer.view.state.leaks import last_leak
from peer.view.state.more_metrics import latest_values, more_metrics_of
from peer.view.state.peer_state import run_state, states
from peer.view.state.places import listed
from peer.view.state.run_files import PeerRun, RunFiles, metric_curve

KNOWN_REFUSALS = frozenset(RefusalCode)
NUMBER_MAX = 1e300  # of an algorithm's state; JSON has integers that float64 has not
STEADY_EVALUATIONS = 3  # consecutive evaluations at a target that count as reaching it


@dataclass(frozen=True)
class Report:
    """The numbers of a run (`values`) and the run."""

    run: RunFiles
    values: dict[str, Any]


def build_report(directory: Path, target: float | None = None) -> Report:
    """Read what a run left and compute its report, also of a running or interrupted run.

    Args:
        directory: a testbed's directory, one state directory, or a folder with state directories; see `RunFiles.read`.
        target: a value of the metric; the report then says when the mean reached it.

    Raises:
        UsageError: the directory has no files of a run, or the target is no value of the metric.
        GraphError: the graph file is not valid.
        StorageError: a file exists and cannot be read.
    """
    run = RunFiles.read(directory)
    with np.errstate(over="ignore", invalid="ignore"):  # a diverged run has numbers near the limit of float64
        return _report(run, target)


def _report(run: RunFiles, target: float | None) -> Report:
    notes = [*run.found, *_state_notes(run)]
    values: dict[str, Any] = {"warnings": warnings(run)}
    values |= {name: metric(run) for name, metric in METRICS.items()}
    values["metric"] = run.metric.as_json()
    values["more_metrics"] = more_metrics(run)
    values["consensus_distance"], values["consensus_distance_relative"] = consensus_distances(run, notes)
    if target is not None:
        if run.metric.share and not 0 <= target <= 1:
            name = printable(run.metric.name, 64)
            raise UsageError(f"{Option('target')}: expected a value of the metric, {name}, from 0 to 1, got {target:g}")
        values["reached"] = reached(run, target)
    values["peers"] = [peer_row(peer) | {"alone": was_alone(run, peer)} for peer in run.peers]
    values["notes"] = notes
    return Report(run, finite(values))


def more_metrics(run: RunFiles) -> dict[str, dict[str, Any]]:
    """Return the task's other metrics by name: direction, and mean and worst of the peers' latest values."""
    metrics = more_metrics_of(peer.state for peer in run.peers)
    rows = [latest_values(peer.state, metrics) for peer in run.peers]
    found = {}
    for at, metric in enumerate(metrics):
        values = np.array([row[at] for row in rows if row[at] is not None], dtype=float)
        mean, worst = (float(values.mean()), metric.worst(values)) if values.size else (None, None)
        found[metric.name] = metric.as_json() | {"mean": mean, "worst": worst, "peers": int(values.size)}
    return found


def _over_peers(statistic: Callable[[Metric, np.ndarray], Any]) -> Callable[[RunFiles], float | None]:
    def metric(run: RunFiles) -> float | None:
        found = np.array(run.latest("metric_value"), dtype=float)
        return float(statistic(run.metric, found)) if found.size else None

    return metric


def total(key: str, run: RunFiles) -> int:
    """Return the sum of a counter over peers."""
    return sum(peer.state.totals[key] for peer in run.peers)


def state(run: RunFiles) -> str:
    """Return `run_state` of the run."""
    return run_state((peer.state for peer in run.peers), run.manifest.rounds if run.manifest else None)


def without_value(run: RunFiles) -> list[int]:
    """Return the peers that have completed rounds and have no value of the metric, although others have one."""
    known = {peer.peer_id for peer in run.peers if peer.last.get("metric_value") is not None}
    return [peer.peer_id for peer in run.peers if known and peer.rounds_completed and peer.peer_id not in known]


def leak(run: RunFiles) -> dict[str, object] | None:
    """Return what `peer privacy leak` has found on the last sent models: mean and worst AUC of the peers; None if nothing."""
    found = {peer.peer_id: each for peer in run.peers if (each := last_leak(peer.state_dir))}
    if not found:
        return None
    worst = max(found, key=lambda peer_id: found[peer_id]["auc"])
    mean = float(np.mean([each["auc"] for each in found.values()]))
    return {"auc_mean": mean, "peers": len(found), "worst_peer": worst, "worst": found[worst]}


def refusals(run: RunFiles) -> dict[str, int]:
    """Return how many messages of each refusal code the peers refused, most frequent first."""
    counts: Counter[str] = Counter()
    for peer in run.peers:
        counts.update(peer.state.refusals)
    return dict(counts.most_common())


def was_alone(run: RunFiles, peer: PeerRun) -> bool:
    """Return whether a peer ended as alone, or completed rounds of an exchange without folding any model."""
    if peer.status == "alone":
        return True
    exchanges = run.algorithm not in (None, WITHOUT_EXCHANGE)
    return exchanges and bool(peer.state.rounds) and peer.state.totals.models_folded == 0


def warnings(run: RunFiles) -> list[str]:
    """Return what makes the numbers of a run doubtful, as sentences: unread lines, diverged peers, refusals, peers alone."""
    found = [*run.log.problems]
    if diverged := [peer.peer_id for peer in run.peers if peer.status == "diverged"]:
        found.append(f"peer {listed(diverged)}: diverged: models that are not finite cannot be used")
    for peer in run.peers:
        if restores := max((line.get("restores") or 0 for line in peer.round_lines), default=0):
            often = f"{restores} time{'s' if restores != 1 else ''}"
            found.append(f"peer {peer.peer_id}: diverged and went back to its last finite models {often}")
    if refused := [peer.peer_id for peer in run.peers if peer.status == "refused"]:
        found.append(f"peer {listed(refused)}: refused by every neighbor, and ended; their logs name the difference")
    for code, count in refusals(run).items():
        by = [peer for peer in run.peers if code in peer.state.refusals]
        cause = f"{RefusalCode(code).cause} ({code})" if code in KNOWN_REFUSALS else code
        often = f"{counted(count, 'message')} refused by peer {listed([peer.peer_id for peer in by])}: {cause}"
        last = max(peer.state.refused_at.get(code, 0.0) for peer in by)
        found.append(f"{often}; the last after {duration(max(0.0, last - run.log.began))}" if last else often)
    if without := without_value(run):
        with_value = f"{len(run.latest('metric_value'))} of {len(run.peers)} peers"
        found.append(
            f"peer {listed(without)}: no value of {printable(run.metric.name, 64)}, which was not measured or is not defined on "
            f"its test samples; mean, deviation and worst are over {with_value}"
        )
    alone = [peer for peer in run.peers if was_alone(run, peer) and not peer.state.totals.models_folded]
    for peer in run.peers:
        if (rounds_alone := peer.state.totals.rounds_alone) and peer not in alone:
            found.append(f"peer {peer.peer_id}: {rounds_alone} of {peer.state.rounds} rounds without any neighbor")
    found += hardly_there(run.log, run.graph)
    if len(files := graph_files(run.log.peers.values())) > 1:
        found.append(f"peers have different graph files: {'; '.join(files)}")
    if never := [peer.peer_id for peer in alone if not peer.state.met_neighbor]:
        found.append(f"peer {listed(never)}: alone: no neighbor was ever alive, so all rounds were without exchange")
    if unheard := [peer.peer_id for peer in alone if peer.state.met_neighbor]:
        found.append(
            f"peer {listed(unheard)}: alone: folded no model of a neighbor, so all rounds were without exchange"
        )
    return found


def rounds(run: RunFiles) -> int:
    """Return the largest number of completed rounds of a peer."""
    return max((peer.rounds_completed for peer in run.peers), default=0)


def seconds(run: RunFiles) -> dict[str, float]:
    """Return seconds by phase over all rounds, mean over the peers with rounds."""
    rows = [peer.state.phase_seconds() for peer in run.peers if peer.round_lines]
    return {phase: float(np.mean([row[phase] for row in rows])) if rows else 0.0 for phase in PHASES}


def cluster_labels(run: RunFiles) -> tuple[list[int], list[int]]:
    """Return the true and the assigned clusters of the peers that have both."""
    rows = [(peer.last.get("true_cluster"), peer.last.get("cluster_index")) for peer in run.peers]
    known = [(int(true), int(found)) for true, found in rows if true is not None and found is not None]
    return [true for true, _ in known], [found for _, found in known]


def clusters_used(run: RunFiles) -> int | None:
    """Return the number of clusters that some peer evaluates; None: no peer names one."""
    found = {peer.last.get("cluster_index") for peer in run.peers} - {None}
    return len(found) or None


def cluster_ari(run: RunFiles) -> float | None:
    """Return the adjusted Rand index of assigned against true clusters over peers: 1 if equal, about 0 by chance."""
    true, found = cluster_labels(run)
    return agreement(true, found)


def cluster_accuracy(run: RunFiles) -> float | None:
    """Return the share of peers in their true cluster, under the best one-to-one matching of labels (Hungarian)."""
    true, found = cluster_labels(run)
    if not true:
        return None
    true_index, found_index = (np.unique(labels, return_inverse=True)[1] for labels in (true, found))
    confusion = np.zeros((true_index.max() + 1, found_index.max() + 1), dtype=int)  # [true, assigned]
    np.add.at(confusion, (true_index, found_index), 1)
    return float(confusion[assignment(-confusion)].sum() / len(true))


def algorithm_state(run: RunFiles) -> dict[str, float]:
    """Return the mean over peers of each number in the algorithm's state after the peer's last round."""
    found: dict[str, list[float]] = {}
    for peer in run.peers:
        for name, value in peer.algorithm_state.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < NUMBER_MAX:
                found.setdefault(name, []).append(float(value))
    return {name: float(np.mean(numbers)) for name, numbers in sorted(found.items())}


def reached(run: RunFiles, target: float) -> dict[str, float | None]:
    """Return the first round whose mean metric is at `target` for `STEADY_EVALUATIONS` evaluations."""
    curve = metric_curve(run)
    there = run.metric.reaches(curve.mean, target)
    for first in range(len(there) - STEADY_EVALUATIONS + 1):
        if there[first : first + STEADY_EVALUATIONS].all():
            return {
                "target": target,
                "rounds": int(curve.round_index[first]) + 1,
                "seconds": float(curve.seconds[first]),
                "payload_bytes_per_peer": float(curve.payload_bytes[first]),
            }
    return {"target": target, "rounds": None, "seconds": None, "payload_bytes_per_peer": None}


def peer_row(peer: PeerRun) -> dict[str, object]:
    """Return one peer's row of the report."""
    known = {
        key: peer.last.get(key)
        for key in (
            *("metric_value", "best_round", "metric_best", "loss", "epsilon", "learning_rate"),
            *("cluster_index", "true_cluster", "incarnation"),
        )
    }
    return {
        "peer_id": peer.peer_id,
        **known,
        "metrics": peer.last.get("metrics") or {},
        "leak": last_leak(peer.state_dir),
        "rounds_completed": peer.rounds_completed,
        "status": peer.status,
        "exit_code": peer.state.exit_code,
        "starts": len(peer.state.incarnations),
        "neighbors_alive": peer.last.get("neighbors_alive"),
        "rounds_with_missing": len(peer.state.missing),
        **{key: peer.state.totals[key] for key in COUNTERS},
        "refusals": peer.state.refusals,
        "seconds": peer.state.phase_seconds(),
    }


def _state_notes(run: RunFiles) -> list[str]:
    notes = []
    for status, each in STATES.items():
        ids = [peer.peer_id for peer in run.peers if peer.status == status]
        if ids and each.note:
            notes.append(f"peer {listed(ids)}: {each.note}")
    for peer in run.peers:
        notes += [
            f"peer {peer.peer_id}: the observer missed rounds {first} to {last}" for first, last in peer.state.gaps
        ]
    total = run.manifest.rounds if run.manifest else 0
    for peer in run.peers:
        if peer.status == "completed" and peer.rounds_completed < total:
            notes.append(f"peer {peer.peer_id}: completed {peer.rounds_completed} rounds, and graph.json has {total}")
    for peer in run.peers:
        if peer.status in ("completed", "left") and peer.history and peer.state.phase == "start":
            last = peer.state.round["round_index"] + 1 if peer.state.round else 0
            notes.append(
                f"peer {peer.peer_id}: {peer.state_dir.history} ends after {last} rounds, without an end line: it was cut; "
                f"the summary has {peer.rounds_completed} rounds"
            )
    if ids := [peer.peer_id for peer in run.peers if peer.summary and not peer.history]:
        notes.append(f"peer {listed(ids)}: no history; only the summary is known")
    return notes


METRICS: dict[str, Callable[[RunFiles], object]] = {
    "state": state,
    "states": lambda run: dict(sorted(states({peer.peer_id: peer.state for peer in run.peers}).items())),
    "refusals": refusals,
    "algorithm": lambda run: run.algorithm,
    "task": lambda run: run.manifest.task if run.manifest else None,
    "clusters": lambda run: run.clusters,
    "metric_mean": _over_peers(lambda metric, values: values.mean()),
    "metric_std": _over_peers(lambda metric, values: values.std()),
    "metric_worst": _over_peers(Metric.worst),
    "metric_p10": _over_peers(Metric.worst_tenth),
    "metric_peers": lambda run: len(run.latest("metric_value")),
    "clusters_used": clusters_used,
    "cluster_ari": cluster_ari,
    "cluster_accuracy": cluster_accuracy,
    "rounds": rounds,
    "rounds_total": lambda run: run.manifest.rounds if run.manifest else None,
    **{key: partial(total, key) for key in COUNTERS},
    "seconds": seconds,
    "waiting": waiting,
    "algorithm_state": algorithm_state,
    "collaboration": collaboration,
    "matrix": matrix,
    "leak": leak,
    **soft_clusters.METRICS,
}

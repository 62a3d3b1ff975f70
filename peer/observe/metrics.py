"""Prometheus metrics of a peer, updated from the records of its history. docs/metrics.md lists them."""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.identity import restart_count
from peer.core.liveness import NeighborState
from peer.core.metric import Metric
from peer.observe.metrics_http import serve
from peer.view.state.peer_state import PHASES

ROUND_SECONDS_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_COUNTED = {
    "models_sent": "Models sent to neighbors and acknowledged by them",
    "models_folded": "Arrivals folded into a running average",
    "payload_bytes_sent": "Bytes of model payload sent",
    "wire_bytes_sent": "Bytes sent, including framing and control messages",
    "control_messages_sent": "Messages sent, without models",
    "duplicates_dropped": "Arrivals dropped because they were folded before",
    "stale_dropped": "Arrivals dropped because they were too old",
    "rounds_alone": "Rounds of an exchange in which no neighbor took part",
}
_READ = {
    "loss": ("peer_loss", "Loss of the evaluation model on the peer's test set"),
    "train_loss": ("peer_train_loss", "Mean training loss of the last round"),
    "cluster_index": ("peer_cluster_index", "Cluster of the peer's evaluation model"),
}


# starting: the process loads task and data; waiting: outside its windows of work; then how the run ended, as in summaries.
STATES = ("starting", "waiting", "running", "completed", "alone", "left", "refused", "diverged", "failed")


class RunState:
    """The gauge ``peer_run_state``: 1 for the present state of `STATES`, 0 for the others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauge = Gauge("peer_run_state", "1 for the state of the run", ["state"], registry=registry)
        self.set("starting")

    def set(self, present: str) -> None:
        """Set the present state.

        Raises:
            ValueError: it is not one of `STATES`.
        """
        if present not in STATES:
            raise ValueError(f"state: found {present!r}; allowed: {', '.join(STATES)}")
        for state in STATES:
            self._gauge.labels(state).set(state == present)


class PeerMetrics:
    """The metrics of one peer, in their own registry.

    Args:
        peer_id: the peer.
        labels: further labels of ``peer_info``, such as algorithm and task.
        metric: of the task; `more`: its others.
    """

    def __init__(
        self,
        peer_id: int,
        labels: Mapping[str, str] | None = None,
        metric: Metric | None = None,
        more: Sequence[Metric] = (),
    ) -> None:
        self.registry = registry = CollectorRegistry()
        Info("peer", "Peer id and settings of the run, as labels", registry=registry).info(
            {"peer_id": str(peer_id), **(labels or {})}
        )
        self._counted = {key: Counter(f"peer_{key}", text, registry=registry) for key, text in _COUNTED.items()}
        self._read = {key: Gauge(name, text, registry=registry) for key, (name, text) in _READ.items()}
        metric = metric or Metric()
        if metric.is_accuracy:
            text = "Accuracy of the evaluation model on the peer's test set, 0 to 1"
            self._read["accuracy"] = Gauge("peer_accuracy_ratio", text, registry=registry)
        self._more: dict[str, Gauge] = {}
        if more or not metric.is_accuracy:
            text = (
                "A metric of the task, which has the name in the label, of the evaluation model on the peer's test set"
            )
            named = Gauge("peer_metric", text, ["name"], registry=registry)
            self._more = {each.name: named.labels(each.name) for each in more}
            if not metric.is_accuracy:
                self._read["accuracy"] = named.labels(metric.name)
        self.run_state = RunState(registry)
        self._planned = Gauge("peer_rounds_planned", "Rounds of the whole run", registry=registry)
        self._certificates = Gauge(
            "peer_certificate_end_timestamp_seconds",
            "Unix time after which the certificate of this peer, or the first one of its neighbors, is not valid; 0: none",
            ["of"],
            registry=registry,
        )
        for of in ("own", "neighbors"):
            self._certificates.labels(of)
        self._round_index = Gauge("peer_round_index", "Current round, 0-based", registry=registry)
        self._restarts = Gauge("peer_restart_count", "Restart count: 1 after the first start", registry=registry)
        self._completed = Counter("peer_rounds_completed", "Rounds completed by this process", registry=registry)
        self._round_seconds = Histogram(
            "peer_round_seconds", "Seconds of a round", buckets=ROUND_SECONDS_BUCKETS, registry=registry
        )
        self._missing = Counter(
            "peer_missing_deliveries", "Neighbors whose models were missing when a round closed", registry=registry
        )
        self._phases = Counter(
            "peer_phase_seconds", "Seconds spent in each phase of a round", ["phase"], registry=registry
        )
        self._neighbors = Gauge("peer_neighbors", "Neighbors by state", ["state"], registry=registry)
        self._refusals = Counter("peer_refusals", "Messages refused, by code", ["code"], registry=registry)
        self._checkpoints = Counter("peer_checkpoints", "Checkpoints written", registry=registry)
        self._failures = Counter("peer_checkpoint_failures", "Checkpoints that could not be written", registry=registry)
        for phase in PHASES:  # export all series from the start: an alert needs the 0 before the first event
            self._phases.labels(phase)
        for state in NeighborState:
            self._neighbors.labels(state.value)
        for code in Refusal:
            self._refusals.labels(code.value)

    def plan(self, rounds: int, own_end: float = 0.0, neighbors_end: float = 0.0) -> None:
        """Set what is known before the first round.

        Args:
            rounds: of the whole run.
            own_end: Unix time at which the own certificate ends; 0: plaintext.
            neighbors_end: the first of its neighbors'.
        """
        self._planned.set(rounds)
        self._certificates.labels("own").set(own_end)
        self._certificates.labels("neighbors").set(neighbors_end)

    def observe_round(self, record: Mapping[str, Any]) -> None:
        """Count one ``round`` line of the history."""
        self._completed.inc()
        self._round_index.set(record["round_index"] + 1)
        self._restarts.set(restart_count(record.get("incarnation") or 0))
        self._missing.inc(len(record.get("missing") or ()))
        for key, counter in self._counted.items():
            counter.inc(record.get(key) or 0)
        for key, gauge in self._read.items():
            if record.get(key) is not None:
                gauge.set(record[key])
        measured = record.get("metrics") or {}
        for name, gauge in self._more.items():
            if measured.get(name) is not None:
                gauge.set(measured[name])
        seconds = record.get("seconds") or {}
        for phase in PHASES:
            self._phases.labels(phase).inc(seconds.get(phase) or 0)
        self._round_seconds.observe(sum(seconds.values()))

    def observe_neighbor_states(self, states: Mapping[int, str]) -> None:
        """Set the present states of all neighbors."""
        tally = Tally(str(state) for state in states.values())
        for state in NeighborState:
            self._neighbors.labels(state.value).set(tally[state.value])

    def observe_refusal(self, code: Refusal | str) -> None:
        """Count one refused message.

        Raises:
            ValueError: the code is unknown.
        """
        self._refusals.labels(Refusal(code).value).inc()

    def observe_checkpoint(self, *, written: bool) -> None:
        """Count one checkpoint, written or failed."""
        (self._checkpoints if written else self._failures).inc()

    def serve(self, port: int, host: str = "127.0.0.1") -> tuple[WSGIServer, threading.Thread]:
        """Serve these metrics alone in a thread; see `metrics_http.serve`."""
        return serve(self.registry, port, host)

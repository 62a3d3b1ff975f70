"""Prometheus metrics of a peer, updated from the records of its history. docs/metrics.md lists them."""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.identity import restart_count
from peer.core.liveness import NeighborState
from peer.core.metric import Metric
from peer.observe.peer_state import PHASES

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
        """Serve ``/metrics`` in a thread; `WSGIServer.shutdown` of the first result ends it.

        Raises:
            OSError: the port cannot be bound.
        """
        return start_http_server(port, host, self.registry)

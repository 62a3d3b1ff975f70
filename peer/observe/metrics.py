"""Prometheus metrics of a peer, updated from the records of its history. docs/metrics.md lists them."""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core.counters import Entry, Series, Totals, entries
from peer.core.liveness import NeighborState
from peer.core.metric import Metric
from peer.observe.metrics_http import serve
from peer.store.records import STATES, RoundLine

ROUND_SECONDS_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TYPES = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
_TAKES = {"counter": "inc", "gauge": "set", "histogram": "observe"}
_NO_MARKS = str.maketrans("", "", "`*")
STATES_SAID = tuple(state for state, each in STATES.items() if each.said)


class StateGauge:
    """The gauge ``peer_run_state``: 1 for the present state of `STATES_SAID`, 0 for the others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        states = ", ".join(f"{state} ({STATES[state].help})" for state in STATES_SAID)
        self._gauge = Gauge("peer_run_state", f"1 for the state of the run: {states}", ["state"], registry=registry)
        self.set("starting")

    def set(self, present: str) -> None:
        """Set the present state.

        Raises:
            ValueError: it is not one of `STATES_SAID`.
        """
        if present not in STATES_SAID:
            raise ValueError(f"state: expected one of {', '.join(STATES_SAID)}, got {present!r}")
        for state in STATES_SAID:
            self._gauge.labels(state).set(state == present)


def help_of(entry: Entry | Series) -> str:
    """Return what the vocabulary says of a name as the help of its metric: a sentence without Markdown."""
    return entry.help[0].upper() + entry.help[1:].translate(_NO_MARKS)


def _of_type(prometheus: str, table: type) -> list[tuple[str, Entry]]:
    return [(name, each) for name, each in entries(table).items() if each.prometheus == prometheus]


class ComputedMetric:
    """A metric that the vocabulary computes from a field of a ``round`` line; its series are exported from the start."""

    def __init__(self, about: Series, registry: CollectorRegistry) -> None:
        self._about = about
        more = {"buckets": ROUND_SECONDS_BUCKETS} if about.kind == "histogram" else {}
        label = [about.label] if about.label else []
        metric: Any = _TYPES[about.kind](f"peer_{about.name}", help_of(about), label, registry=registry, **more)
        self._series = {each: metric.labels(each) for each in about.labels} if about.label else {"": metric}

    def observe(self, value: object) -> None:
        """Take the value of the field in one line."""
        found = self._about.value(value)
        for label, number in found.items() if self._about.label else [("", found)]:
            if label in self._series:
                getattr(self._series[label], _TAKES[self._about.kind])(number or 0)


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
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        settings = {"peer_id": str(peer_id), **(labels or {})}
        Info(
            "peer",
            "Peer id and settings of the run, as labels: peer_id, algorithm, task, federation",
            registry=self.registry,
        ).info(settings)
        self._counted = {name: counter(f"peer_{name}", help_of(each)) for name, each in _of_type("counter", Totals)}
        self._read = {name: gauge(f"peer_{name}", help_of(each)) for name, each in _of_type("gauge", RoundLine)}
        self._computed = [
            (name, ComputedMetric(series, self.registry))
            for name, each in entries(RoundLine).items()
            for series in each.series
        ]
        self._more: dict[str, Gauge] = {}
        self._export(metric or Metric(), more)
        self.run_state = StateGauge(self.registry)
        self._planned = gauge("peer_rounds_planned", "Rounds of the whole run")
        self._revision = gauge("peer_revision", "Graph files of the federation before the present one of this peer")
        self._certificates = gauge(
            "peer_certificate_end_timestamp_seconds",
            "Unix time at which the peer's own certificate ends, or the first one of its neighbors; 0 with plaintext",
            ["of"],
        )
        self._completed = counter("peer_rounds_completed", "Rounds completed by this process")
        self._neighbors = gauge("peer_neighbors", f"Neighbors by state: {', '.join(NeighborState)}", ["state"])
        self._refusals = counter("peer_refusals", "Messages refused, by code (docs/refusals-and-events.md)", ["code"])
        self._checkpoints = counter("peer_checkpoints", "Checkpoints written")
        self._export_labels()

    def _export(self, metric: Metric, more: Sequence[Metric]) -> None:
        """Export the task's metrics by name."""
        text = "Metrics of the task by name, shares in [0, 1], of the evaluation model on the peer's test set"
        named = Gauge("peer_metric", text, ["name"], registry=self.registry)
        self._more = {each.name: named.labels(each.name) for each in more}
        self._read["metric_value"] = named.labels(metric.name)

    def _export_labels(self) -> None:
        """Export all series from the start: an alert needs the 0 before the first event."""
        for of in ("own", "neighbors"):
            self._certificates.labels(of)
        for state in NeighborState:
            self._neighbors.labels(state.value)
        for code in RefusalCode:
            self._refusals.labels(code.value)

    def plan(self, rounds: int, own_end: float = 0.0, neighbors_end: float = 0.0, revision: int = 0) -> None:
        """Set what is known before the first round.

        Args:
            rounds: of the whole run.
            own_end: Unix time at which the own certificate ends; 0: plaintext.
            neighbors_end: the first of its neighbors'.
            revision: graph files before the present one.
        """
        self._planned.set(rounds)
        self._revision.set(revision)
        self._certificates.labels("own").set(own_end)
        self._certificates.labels("neighbors").set(neighbors_end)

    def observe_round(self, record: Mapping[str, Any]) -> None:
        """Count one ``round`` line of the history."""
        self._completed.inc()
        for key, metric in self._computed:
            if record.get(key) is not None:
                metric.observe(record[key])
        for key, counter in self._counted.items():
            counter.inc(record.get(key) or 0)
        for key, gauge in self._read.items():
            if record.get(key) is not None:
                gauge.set(record[key])
        measured = record.get("metrics") or {}
        for name, gauge in self._more.items():
            if measured.get(name) is not None:
                gauge.set(measured[name])

    def observe_neighbor_states(self, states: Mapping[int, str]) -> None:
        """Set the present states of all neighbors."""
        tally = Tally(str(state) for state in states.values())
        for state in NeighborState:
            self._neighbors.labels(state.value).set(tally[state.value])

    def observe_refusal(self, code: RefusalCode | str) -> None:
        """Count one refused message.

        Raises:
            ValueError: the code is unknown.
        """
        self._refusals.labels(RefusalCode(code).value).inc()

    def observe_checkpoint(self, *, written: bool) -> None:
        """Count one checkpoint, written or failed."""
        (self._checkpoints if written else self._counted["checkpoint_failures"]).inc()

    def serve(self, port: int, host: str = "127.0.0.1") -> tuple[WSGIServer, threading.Thread]:
        """Serve these metrics alone in a thread; see `metrics_http.serve`."""
        return serve(self.registry, port, host)

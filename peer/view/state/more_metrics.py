"""The further metrics of a task: which there are, and a peer's values."""

from __future__ import annotations

from collections.abc import Iterable

from peer.core.metric import Metric
from peer.view.state.peer_state import PeerState
from peer.view.state.records import JsonRecord


def more_metrics_of(peers: Iterable[PeerState]) -> list[Metric]:
    """Return the further metrics that the first peer with some names, in the task's order."""
    for peer in peers:
        if found := peer.start.get("more_metrics"):
            return [Metric.from_json(metric) for metric in found]
        if peer.answer is not None and peer.answer.more_metrics:
            return [metric.plain for metric in peer.answer.more_metrics]
    return []


def values_of(record: JsonRecord, metrics: list[Metric]) -> list[float | None]:
    """Return the values of further metrics in a line or a summary, in their order; None where one is not known."""
    values = record.get("metrics") or {}
    return [values.get(metric.name) for metric in metrics]


def latest_values(peer: PeerState, metrics: list[Metric]) -> list[float | None]:
    """Return a peer's latest values of further metrics, in their order."""
    return values_of({"metrics": peer.latest("metrics")}, metrics) if metrics else []

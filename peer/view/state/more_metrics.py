"""The further metrics of a task: which there are, and a peer's values."""

from __future__ import annotations

from collections.abc import Iterable

from peer.core.metric import Metric
from peer.store.records import ResultFields
from peer.view.state.peer_state import PeerState


def more_metrics_of(peers: Iterable[PeerState]) -> list[Metric]:
    """Return the further metrics that the first peer with some names, in the task's order."""
    for peer in peers:
        found = peer.start.get("more_metrics") if peer.start else None
        if found or (found := peer.answer.get("more_metrics") if peer.answer else None):
            return [Metric.from_json(metric) for metric in found]
    return []


def values_of(record: ResultFields, metrics: list[Metric]) -> list[float | None]:
    """Return the values of further metrics in a line or a summary, in their order; None where one is not known."""
    values = record.get("metrics") or {}
    return [values.get(metric.name) for metric in metrics]


def latest_values(peer: PeerState, metrics: list[Metric]) -> list[float | None]:
    """Return a peer's latest values of further metrics, in their order."""
    return values_of(peer.last, metrics) if metrics else []

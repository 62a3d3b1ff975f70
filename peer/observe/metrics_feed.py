"""An observer of a peer's history records that updates its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from peer.core.liveness import NeighborState
from peer.observe.metrics import PeerMetrics


class MetricsFeed:
    """Update metrics from the records of one peer.

    Args:
        metrics: of the peer.
        neighbors: ids of all neighbors; their state is unknown at first.
        incarnation: returns the incarnation of the peer.
    """

    def __init__(self, metrics: PeerMetrics, neighbors: Iterable[int], incarnation: Callable[[], int]) -> None:
        self._metrics = metrics
        self._states = dict.fromkeys(neighbors, str(NeighborState.UNKNOWN))
        self._incarnation = incarnation
        metrics.observe_neighbor_states(self._states)

    def __call__(self, kind: str, fields: dict[str, Any]) -> None:
        """Update the metrics from one record; other kinds are ignored."""
        if kind == "round":
            self._metrics.observe_round({**fields, "incarnation": self._incarnation()})
        elif kind == "neighbor":
            self._states[int(fields["neighbor"])] = str(fields["state"])
            self._metrics.observe_neighbor_states(self._states)
        elif kind == "refused":
            self._metrics.observe_refusal(fields["code"])
        elif kind == "checkpoint":
            self._metrics.observe_checkpoint(written=not fields.get("error"))

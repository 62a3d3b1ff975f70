"""What trackers draw: the names of curves, the curves of each peer, and those of all peers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from peer.core.counters import COUNTERS
from peer.core.metric import Metric
from peer.view.state.agreement import agreement
from peer.view.trackers.tracker import HistoryRow

FIXED = frozenset({"peer_id", "round_index", "t", "incarnation", "true_cluster"})  # they say which row it is
LATE_ROUNDS_MAX = 20  # a round is drawn without the peers that are further behind
_GROUPS = {"seconds": "seconds", "metrics": "quality", "state": "state"}  # of names with a dot
_CLUSTERS = ("cluster_index", "cluster_ari")
_PEERS = ("neighbors_alive", "active", "rounds_alone")


def curve_name(name: str) -> str:
    """Return a column's name with its group and a slash, by which trackers sort: ``quality/metric_value``, ``seconds/train``."""
    group, _, rest = name.partition(".")
    if rest:
        return f"{_GROUPS.get(group, group)}/{rest}"
    if name in _CLUSTERS:
        return f"clusters/{name}"
    if name in _PEERS:
        return f"peers/{name}"
    return f"traffic/{name}" if name in COUNTERS or name == "payload_bytes" else f"quality/{name}"


def numbers(row: HistoryRow) -> dict[str, float]:
    """Return the columns of a row that are numbers, without those that say which row it is."""
    return {name: float(value) for name, value in row.items() if isinstance(value, int | float) and name not in FIXED}


class PeerCurves:
    """The points of one peer: of a counter none before its first number above 0, so that no curve is 0 all along."""

    def __init__(self) -> None:
        self._zeros: dict[str, list[HistoryRow]] = {}
        self._drawn: set[str] = set()

    def points(self, row: HistoryRow) -> Iterator[tuple[str, float, HistoryRow]]:
        """Yield (column, value, row of the point) that a new row adds."""
        for name, value in numbers(row).items():
            if name in COUNTERS and name not in self._drawn:
                if not value:
                    self._zeros.setdefault(name, []).append(row)
                    continue
                self._drawn.add(name)
                yield from ((name, 0.0, before) for before in self._zeros.pop(name, ()))
            yield name, value, row


class AllPeers:
    """Rounds of all peers: a row per round once each peer has completed it, or is far behind.

    Its columns: mean, worst and best of the metric, mean loss, ARI, and `payload_bytes`, sent until then by a peer (mean).
    """

    def __init__(self) -> None:
        self.peers = 0
        self.metric = Metric()
        self._rounds: dict[int, dict[int, HistoryRow]] = {}
        self._sent: dict[int, int] = {}

    def take(self, rows: Iterable[HistoryRow]) -> None:
        """Take new rows of peers."""
        for row in rows:
            self._rounds.setdefault(row["round_index"], {})[row["peer_id"]] = row

    def completed(self, *, ended: bool = False) -> Iterator[HistoryRow]:
        """Yield the rows of rounds that are complete, ascending, each once; at the end those of all rounds."""
        newest = max(self._rounds, default=0)
        for index in sorted(self._rounds):
            rows = self._rounds[index]
            if len(rows) < self.peers and newest - index <= LATE_ROUNDS_MAX and not ended:
                return
            yield self._row(index, self._rounds.pop(index))

    def _row(self, index: int, rows: dict[int, HistoryRow]) -> HistoryRow:
        for peer_id, row in rows.items():
            self._sent[peer_id] = self._sent.get(peer_id, 0) + (row.get("payload_bytes_sent") or 0)
        found: dict[str, Any] = {"round_index": index, "time": max(row["time"] for row in rows.values())}
        if (values := _present(row.get("metric_value") for row in rows.values())).size:
            found["metric_mean"] = float(values.mean())
            found["metric_worst"], found["metric_best"] = self.metric.worst(values), self.metric.best(values)
        if (losses := _present(row.get("loss") for row in rows.values())).size:
            found["loss_mean"] = float(losses.mean())
        labels = [(row.get("true_cluster"), row.get("cluster_index")) for row in rows.values()]
        if (ari := agreement([true for true, _ in labels], [mine for _, mine in labels])) is not None:
            found["cluster_ari"] = ari
        return found | {"payload_bytes": float(np.mean([self._sent[peer_id] for peer_id in rows]))}


def _present(values: Iterable[Any]) -> np.ndarray:
    return np.array([value for value in values if value is not None], dtype=float)

"""The growing rows of a run in a directory, as trackers take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import load_graph
from coordinator_free_bootstrap.graph import Graph
from peer.core.metric import Metric
from peer.view.report.history_table import flat, row_of
from peer.view.state.places import state_directories
from peer.view.state.tail import PeerTail
from peer.view.trackers.curves import AllPeers
from peer.view.trackers.tracker import About, HistoryRow


class Feed:
    """The rows of a run in a directory, which may appear later; `read` returns those that are new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._graph: Graph | None = None
        self._tails: dict[int, PeerTail] = {}
        self._true: dict[int, int | None] = {}
        self.everyone = AllPeers()

    def read(self) -> list[HistoryRow]:
        """Return the new rows, by peer and round; of a repeated round the last one.

        Raises:
            GraphError: the graph file is not valid.
            StorageError: a file exists and cannot be read.
        """
        file = self._directory / "graph.json"
        if self._graph is None and file.is_file():
            self._graph = load_graph(file)
        for peer_id, place in state_directories(self._directory).items():
            self._tails.setdefault(peer_id, PeerTail(peer_id, place))
        found = {(row["peer_id"], row["round_index"]): row for peer_id in self._tails for row in self._rows(peer_id)}
        rows = [row for _, row in sorted(found.items())]
        self.everyone.peers = len(self._graph.ids) if self._graph else len(self._tails)
        self.everyone.take(rows)
        return rows

    @property
    def problems(self) -> list[str]:
        """What could not be read so far, so that it is in no row, as sentences."""
        return [problem for tail in self._tails.values() for problem in tail.problems]

    def about(self, rows: list[HistoryRow]) -> About:
        """Return the name and the settings of the run with these first rows: algorithm, task and time of the start."""
        manifest: Mapping[str, Any] = self._graph.manifest.model_dump(mode="json") if self._graph else {}
        words = [str(manifest[key]) for key in ("algorithm", "task") if key in manifest] or ["run"]
        began = datetime.fromisoformat(min(row["time"] for row in rows)) if rows else datetime.now().astimezone()
        name = "-".join([*words, began.astimezone().strftime("%Y%m%d-%H%M%S")])
        peers = {"peers": self.everyone.peers}
        plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        return About(plain, peers | dict(flat(manifest, "run.")))

    def _rows(self, peer_id: int) -> Iterator[HistoryRow]:
        for event in self._tails[peer_id].read_history():
            data = event.data
            if data["kind"] == "start":
                self._true[peer_id] = data.get("true_cluster")
                if metric := data.get("metric"):
                    self.everyone.metric = Metric.from_json(metric)
            elif data["kind"] == "round":
                yield row_of(peer_id, data, self._true.get(peer_id))

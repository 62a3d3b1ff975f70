"""Runs on disk that grow as a test says, written with the writer of peers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.store.history import HistoryWriter
from peer.store.identity_files import StateLock
from peer.store.state_dir import StateDir

HOSTILE = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script>"


class Recorded:
    """A run of peers in a ring of two true clusters, which completes rounds when it is told to."""

    def __init__(self, directory: Path, *, peers: int = 6, rounds: int = 12, **start: Any) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self.graph: Graph = make_graph(
            "ring", peers, manifest=parse_manifest({"rounds": rounds, "clusters": 2}, "test")
        )
        save_graph(self.graph, directory / "graph.json")
        self.done = 0
        self._writers, self._locks = {}, []
        for peer_id in self.graph.ids:
            place = StateDir.of_peer(directory, peer_id)
            place.create()
            self._locks.append(StateLock(place.root))
            self._locks[-1].acquire()
            self._writers[peer_id] = HistoryWriter(place.history, incarnation=(1 << 32) + peer_id)
            self.write(peer_id, "start", peer_id=peer_id, true_cluster=peer_id % 2, resumed_from=None, **start)

    def write(self, peer_id: int, kind: str, /, **fields: Any) -> None:
        """Append one line to a peer's history."""
        self._writers[peer_id].write(kind, **fields)

    def complete(self, rounds: int) -> None:
        """Let all peers complete more rounds."""
        for index in range(self.done, self.done + rounds):
            for peer_id in self.graph.ids:
                self.write(peer_id, "round", **self.line(peer_id, index))
        self.done += rounds

    def line(self, peer_id: int, index: int) -> dict[str, Any]:
        """Return the fields of one round."""
        neighbors = self.graph.neighbors(peer_id)
        return {
            "round_index": index,
            "metric_value": round(0.9 - 0.5 * math.exp(-index / 4) - 0.01 * peer_id, 6),
            "cluster_index": peer_id % 2 if index > 2 else (peer_id + index) % 2,
            "seconds": {"train": 0.2 + 0.1 * peer_id, "wait": 0.1, "fold": 0.02, "evaluate": 0.03, "other": 0.01},
            "folded": [[neighbor, 1 << 32, index, 0, 0] for neighbor in neighbors],
            "missing": [],
            "models_sent": len(neighbors),
            "models_folded": len(neighbors),
            "payload_bytes_sent": 64_000 * len(neighbors),
            "wire_bytes_sent": 65_000 * len(neighbors),
            "neighbors_alive": len(neighbors),
        }

    def end(self) -> None:
        """Let all peers end."""
        for peer_id in self.graph.ids:
            last = self.line(peer_id, self.done - 1)
            self.write(
                peer_id, "end", rounds_completed=self.done, metric_value=last["metric_value"], cluster_index=peer_id % 2
            )
        self.close()

    def close(self) -> None:
        """Close the files, as if all processes had ended."""
        for lock in self._locks:
            lock.release()
        for writer in self._writers.values():
            writer.close()

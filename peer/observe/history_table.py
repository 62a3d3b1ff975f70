"""The history of a run as a table: one row per peer and round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peer.observe.run_files import PeerRun, Run


def rows(run: Run) -> list[dict[str, Any]]:
    """Return one row per peer and round, by peer id and round; ``true_cluster`` is repeated in each row of a peer."""
    return [run.metric.named(row) for peer in run.peers for row in _rows_of(peer)]


def flat(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields with dotted names: ``seconds.train``, ``state.cluster_index``."""
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _rows_of(peer: PeerRun) -> Iterator[dict[str, Any]]:
    true = peer.last.get("true_cluster")
    for round_index, line in sorted(peer.rounds.items()):
        fields = {key: value for key, value in line.items() if key != "kind"}
        yield {"peer_id": peer.peer_id, "round_index": round_index, **dict(flat(fields)), "true_cluster": true}

"""The history of a run as a table: one row per peer and round. `Run.frame`, trackers and pictures have these columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peer.view.state.run_files import RunFiles


def rows(run: RunFiles) -> list[dict[str, Any]]:
    """Return one row per peer and round, by peer id and round; of a repeated round the last line counts."""
    return [
        row_of(peer.peer_id, line, peer.last.get("true_cluster"))
        for peer in run.peers
        for _, line in sorted(peer.rounds.items())
    ]


def row_of(peer_id: int, line: Mapping[str, Any], true_cluster: int | None) -> dict[str, object]:
    """Return one row: the fields of a round line, nested ones with dotted names, with the peer and its true cluster."""
    fields = {key: value for key, value in line.items() if key != "kind"}
    return {"peer_id": peer_id, "round_index": line["round_index"], **dict(flat(fields)), "true_cluster": true_cluster}


def flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields with dotted names: ``seconds.train``."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

"""Which graph file of its federation each peer has, as the peers answer: during a change they differ."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator_free_bootstrap.strict_json import printable
from peer.view.state.peer_state import PeerState
from peer.view.state.places import listed


def graph_files(peers: Iterable[PeerState]) -> list[str]:
    """Return a phrase for each graph file and its peers, the last file first; [] while all have the first file."""
    holders: dict[tuple[int, str], list[int]] = {}
    for peer in peers:
        if (
            (said := peer.answer) is not None and not peer.silent and "revision" in said
        ):  # an older release says nothing
            holders.setdefault((said["revision"], said.get("graph_file", "")), []).append(peer.peer_id)
    if not any(number for number, _ in holders):
        return []
    return [
        f"graph file {number + 1} ({printable(digest, 16)}): peer {listed(ids)}"
        for (number, digest), ids in sorted(holders.items(), reverse=True)
    ]

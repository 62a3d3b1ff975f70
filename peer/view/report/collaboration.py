"""The collaboration graph of a run (DPFL): a link i -> j where peer i averages the model of peer j.

The ``state`` of an evaluated round line has ``candidates`` (Omega_i) and ``collaborators`` (C_i).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from peer.store.records import NO_STATE
from peer.view.state.run_files import RunFiles

RENAMED = 1  # the true cluster of the peers whose labels the split `label_flip` renames


Links = dict[int, list[int]]  # peer -> its collaborators


def links(run: RunFiles) -> Links:
    """Return the collaborators of each peer after its last evaluated round, for peers that have chosen some or none."""
    chosen = {peer.peer_id: peer.algorithm_state.get("collaborators") for peer in run.peers}
    return {i: others for i, others in chosen.items() if others is not None}


def first_links(run: RunFiles) -> Links:
    """Return the collaborators that each peer chose first, for peers that have chosen some or none."""
    found: Links = {}
    for peer in run.peers:
        for _, line in sorted(peer.rounds.items(), reverse=True):
            others = (line.get("state") or NO_STATE).get("collaborators")
            if others is not None:
                found[peer.peer_id] = others
    return found


def collaboration(run: RunFiles) -> dict[str, Any] | None:
    """Return the collaboration graph and what describes it; None for an algorithm without one.

    ``collaborators``: of each peer. ``candidates_mean``, ``collaborators_mean``: mean |Omega_i|, |C_i|. ``sparsity``: share
    of the ordered pairs of peers without a link. ``symmetry``: share of the links i -> j with a link j -> i.
    ``links_to_other_clusters``: share of the links between peers of different true clusters. ``links_to_renamed``: share of
    the links of peers with true labels that go to peers with renamed labels (split `label_flip`), and
    ``links_to_renamed_first`` that of their first choice. Without links: null.
    """
    chosen = links(run)
    if not chosen:
        return None
    pairs = [(i, j) for i, others in chosen.items() for j in others]
    known = {peer.peer_id: peer.last.get("true_cluster") for peer in run.peers}
    true = {i: cluster for i, cluster in known.items() if cluster is not None}
    renames = run.manifest is not None and run.manifest.split == "label_flip"
    peers = len(run.peers)
    known_candidates = (peer.algorithm_state.get("candidates") for peer in run.peers)
    candidates = [len(peers) for peers in known_candidates if peers is not None]
    return {
        "collaborators": {str(i): others for i, others in sorted(chosen.items())},
        "candidates_mean": float(np.mean(candidates)) if candidates else None,
        "collaborators_mean": len(pairs) / len(chosen),
        "sparsity": 1.0 - len(pairs) / (peers * (peers - 1)) if peers > 1 else None,
        "symmetry": _share([(j, i) in set(pairs) for i, j in pairs]),
        "links_to_other_clusters": _share([here != there for here, there in _ends(chosen, true)]),
        "links_to_renamed": _share_to_renamed(chosen, true) if renames else None,
        "links_to_renamed_first": _share_to_renamed(first_links(run), true) if renames else None,
    }


def _ends(chosen: Links, true: dict[int, int]) -> list[tuple[int, int]]:
    """Return the true clusters of both ends of each link whose ends have one."""
    return [(true[i], true[j]) for i, others in chosen.items() for j in others if i in true and j in true]


def _share_to_renamed(chosen: Links, true: dict[int, int]) -> float | None:
    return _share([there == RENAMED for here, there in _ends(chosen, true) if here != RENAMED])


def _share(of: list[bool]) -> float | None:
    return float(np.mean(of)) if of else None

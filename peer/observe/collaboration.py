"""The collaboration graph of a run (DPFL): a link i -> j where peer i averages the model of peer j.

The ``state`` of an evaluated round line has ``candidates`` (Omega_i) and ``collaborators`` (C_i).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from peer.observe.run_files import Run

RENAMED = 1  # the true cluster of the peers whose labels the split `label_flip` renames


def links(run: Run) -> dict[int, list[int]]:
    """Return the collaborators of each peer after its last evaluated round, for peers that have chosen some or none."""
    states = {peer.peer_id: peer.last.get("state") or {} for peer in run.peers}
    return {i: list(state["collaborators"]) for i, state in states.items() if state.get("collaborators") is not None}


def collaboration(run: Run) -> dict[str, Any] | None:
    """Return the collaboration graph and what describes it; None for an algorithm without one.

    ``collaborators``: of each peer. ``candidates_mean``, ``collaborators_mean``: mean |Omega_i|, |C_i|. ``sparsity``: share
    of the ordered pairs of peers without a link. ``symmetry``: share of the links i -> j with a link j -> i.
    ``links_to_other_clusters``: share of the links between peers of different true clusters. ``links_to_renamed``: share of
    the links of peers with true labels that go to peers with renamed labels (split `label_flip`). Without links: null.
    """
    chosen = links(run)
    if not chosen:
        return None
    pairs = [(i, j) for i, others in chosen.items() for j in others]
    known = {peer.peer_id: peer.last.get("true_cluster") for peer in run.peers}
    true = {i: cluster for i, cluster in known.items() if cluster is not None}
    both = [(true[i], true[j]) for i, j in pairs if i in true and j in true]
    renames = run.manifest is not None and run.manifest.split == "label_flip"
    honest = [there for here, there in both if here != RENAMED] if renames else []
    peers = len(run.peers)
    found = [peer.last.get("state") or {} for peer in run.peers]
    candidates = [len(state["candidates"]) for state in found if state.get("candidates") is not None]
    return {
        "collaborators": {str(i): others for i, others in sorted(chosen.items())},
        "candidates_mean": float(np.mean(candidates)) if candidates else None,
        "collaborators_mean": len(pairs) / len(chosen),
        "sparsity": 1.0 - len(pairs) / (peers * (peers - 1)) if peers > 1 else None,
        "symmetry": _share([(j, i) in set(pairs) for i, j in pairs]),
        "links_to_other_clusters": _share([here != there for here, there in both]),
        "links_to_renamed": _share([there == RENAMED for there in honest]),
    }


def _share(of: list[bool]) -> float | None:
    return float(np.mean(of)) if of else None

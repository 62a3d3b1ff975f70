"""Label switching: cluster s of one peer can mean cluster s' of another. Two defenses, without a coordinator.

1. The receiver checks each model of cluster s (`conflict`): the model is refused if it points clearly more along another own
   center than along center s.
2. Every A rounds, labels are aligned: selections carry sketches of all centers, and the labels of the peer with the smallest id
   spread over the graph, one edge per alignment (`choose_parent`, `matching`).

Models are compared as theta - reference. The reference is the mean of the S first models if these are equal on all peers, else 0.

Source: FedSPD (arXiv 2410.18862), Section 6, "Client communications", names the cosine similarity of received models and gives no
procedure; both defenses are additions of this project.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.algorithms.sketches import BLOCK_ELEMENTS, Sketches
from peer.core.assignment import assignment
from peer.core.averaging import Vector
from peer.core.messages import Select


class Anchor(NamedTuple):
    """The peer from which a peer's labels descend, and the number of edges to it; the smaller anchor wins."""

    peer_id: int
    hops: int


def cosines(model: Vector, centers: list[Vector], reference: Vector | None) -> list[float]:
    """Return cos(model - reference, center - reference) for each center, in float64 over blocks; 0 for a zero vector."""
    dots, norms, own = np.zeros(len(centers)), np.zeros(len(centers)), 0.0
    for start in range(0, model.size, BLOCK_ELEMENTS):
        place = slice(start, start + BLOCK_ELEMENTS)
        origin = np.float32(0) if reference is None else reference[place]
        difference = model[place] - origin
        own += float(np.dot(difference, difference))
        for index, center in enumerate(centers):
            other = center[place] - origin
            dots[index] += float(np.dot(difference, other))
            norms[index] += float(np.dot(other, other))
    scale = np.sqrt(own * norms)
    return [float(dot / size) if size > 0 else 0.0 for dot, size in zip(dots, scale, strict=True)]


def conflict(
    model: Vector, cluster: int, centers: list[Vector], reference: Vector | None, margin: float
) -> Refusal | None:
    """Return the rejection of a model whose cosine with another center exceeds that with its ``cluster`` by ``margin``."""
    found = cosines(model, centers, reference)
    nearest = int(np.argmax(found))
    if nearest == cluster or found[nearest] - found[cluster] <= margin:
        return None
    return Refusal(
        RefusalCode.LABEL_CONFLICT,
        f"model of cluster {cluster}: expected its cosine with another center of the receiver at most {margin:g} above "
        f"{found[cluster]:.3f}, that with center {cluster}, got {found[nearest]:.3f} with center {nearest}",
    )


def matching(own: Sketches, parent: Sketches) -> list[int]:
    """Return p so that own center p[s] is the parent's center s: the largest total cosine (Hungarian method).

    Both sets are first centered on their own mean: what all S centers share says nothing about labels. If no permutation has a
    larger total than the present labels, these stay.
    """
    mine, theirs = (_directions(s) for s in (own, parent))
    return _assignment(theirs @ mine.T, 1e-6)


def nearest_matching(own: Sketches, parent: Sketches) -> list[int]:
    """Return p so that own center p[s] is the parent's center s: the smallest total squared distance (Hungarian method).

    If no permutation has a smaller total than the present labels, these stay.
    """
    difference = parent.astype(np.float64)[:, None] - own.astype(np.float64)[None]
    squared = (difference**2).sum(axis=2)  # [parent's label, own label]
    return _assignment(-squared, 1e-6 * float(squared.max(initial=0.0)))


def _assignment(similarity: npt.NDArray[np.float64], least_gain: float) -> list[int]:
    """Return for each row its column, of the largest total; the diagonal, if nothing exceeds it by ``least_gain``."""
    rows, columns = assignment(-similarity)
    if similarity[rows, columns].sum() <= np.trace(similarity) + least_gain:
        return list(range(len(similarity)))
    return [int(c) for c in columns]


def _directions(sketches: Sketches) -> npt.NDArray[np.float64]:
    centered = sketches.astype(np.float64)
    if len(centered) > 1:
        centered -= centered.mean(axis=0)
    norms = np.linalg.norm(centered, axis=1, keepdims=True)
    directions: npt.NDArray[np.float64] = centered / np.where(norms > 0, norms, 1.0)
    return directions


def anchor_of(select: Select) -> Anchor:
    """Return the anchor in a selection that carries sketches of centers."""
    return Anchor(int(select.numbers[0]), int(select.numbers[1]))


def anchors_of(selections: dict[int, Select]) -> dict[int, Anchor]:
    """Return the anchors in those selections that carry sketches, by neighbor."""
    return {n: anchor_of(select) for n, select in selections.items() if select.numbers}


def choose_parent(own: Anchor, anchors: dict[int, Anchor], hops_max: int) -> int | None:
    """Return the neighbor to take labels from: the one with the smallest anchor over the fewest edges; None: keep the own.

    A peer whose labels descend from an anchor keeps following it, so that later switches are corrected too. No peer is more than
    ``hops_max`` edges away; a neighbor that claims more is ignored, because other peers would refuse the distance that follows.
    """
    known = {n: anchor for n, anchor in anchors.items() if anchor.hops < hops_max}
    if not known:
        return None
    parent = min(known, key=lambda n: (*known[n], n))
    offered = Anchor(known[parent].peer_id, known[parent].hops + 1)
    return parent if offered <= own else None

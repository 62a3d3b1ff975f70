"""Label switching: cluster s of one peer may mean what cluster s' means at another. Two layers of defense, no coordinator.

1. The receiver's check of each model that is tagged s: if it points clearly more along another center of the receiver's
   own than along s, it is dropped (`conflict`).
2. Alignment every A rounds: announcements carry sketches of all centers, and labels spread from the peer with the smallest id
   over the graph, one edge at each alignment (`better_anchor`, `matching`).

Models are compared as theta - theta_ref, theta_ref the mean of the S common first models (0 where each peer drew its own).
Source: the paper names cosine similarity and no procedure; specification 2.6 and 0.7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.seeds import derive_seed
from peer.core.averaging import Vector
from peer.core.decisions import Rejection
from peer.core.messages import Announce

BLOCK_ELEMENTS = 1 << 13  # a block of the sign matrix: 256 x 8192 float32 = 8 MiB
Sketches = npt.NDArray[np.float32]  # [S, q]


class Anchor(NamedTuple):
    """Whose labels a peer's own descend from, and over how many edges; smaller is preferred."""

    peer_id: int
    hops: int


def cosines(model: Vector, centers: list[Vector], reference: Vector | None) -> list[float]:
    """Return cos(model - reference, center - reference) for each center; 0 where a vector is zero. float64 over blocks."""
    dots, norms, own = np.zeros(len(centers)), np.zeros(len(centers)), 0.0
    for start in range(0, model.size, BLOCK_ELEMENTS):
        place = slice(start, start + BLOCK_ELEMENTS)
        origin = np.float32(0) if reference is None else reference[place]
        arrow = model[place] - origin
        own += float(np.dot(arrow, arrow))
        for index, center in enumerate(centers):
            other = center[place] - origin
            dots[index] += float(np.dot(arrow, other))
            norms[index] += float(np.dot(other, other))
    scale = np.sqrt(own * norms)
    return [float(dot / size) if size > 0 else 0.0 for dot, size in zip(dots, scale, strict=True)]


def conflict(
    model: Vector, tag: int, centers: list[Vector], reference: Vector | None, margin: float
) -> Rejection | None:
    """Return why a model does not fit its tag: another center's cosine exceeds that of the tagged one by ``margin``."""
    found = cosines(model, centers, reference)
    nearest = int(np.argmax(found))
    if nearest == tag or found[nearest] - found[tag] <= margin:
        return None
    return Rejection(
        Refusal.LABEL_CONFLICT,
        f"a model of cluster {tag} has cosine {found[tag]:.3f} with the own center {tag} and {found[nearest]:.3f} with {nearest}",
    )


def sketch(models: list[Vector], reference: Vector | None, size: int, seed: int) -> Sketches:
    """Return R (theta - reference) of each model, float32 [S, q]: inner products are kept up to about 1 / sqrt(q).

    R is a q x d matrix of signs over sqrt(q), made block by block from the run's seed, never stored and never sent.

    Args:
        models: S vectors float32 [d].
        reference: float32 [d], or None for 0.
        size: q.
        seed: of the run; the same at every peer.
    """
    found = np.zeros((len(models), size), np.float32)
    for block, start in enumerate(range(0, models[0].size, BLOCK_ELEMENTS)):
        place = slice(start, start + BLOCK_ELEMENTS)
        origin = np.float32(0) if reference is None else reference[place]
        arrows = np.stack([model[place] - origin for model in models])  # [S, b]
        found += arrows @ _signs(seed, block, arrows.shape[1], size)
    return found / np.float32(np.sqrt(size))


def _signs(seed: int, block: int, rows: int, columns: int) -> npt.NDArray[np.float32]:
    philox = np.random.Philox(key=derive_seed(seed, "sketch", block))
    words = philox.random_raw((rows * columns + 63) // 64).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=rows * columns)
    return (bits.astype(np.float32) * 2 - 1).reshape(rows, columns)


def matching(own: Sketches, parent: Sketches) -> list[int]:
    """Return p so that the own center p[s] is what the parent calls s: the largest total cosine (Hungarian).

    Each set is centered on its own mean first (OURS; a sketch is linear, so nothing more is sent): what all S centers
    share says nothing about labels. Without a gain, labels stay.
    """
    from scipy.optimize import linear_sum_assignment  # here: it costs every process 45 MB

    mine, theirs = (_directions(s) for s in (own, parent))
    similarity = theirs @ mine.T  # [parent's label, own label]
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    if similarity[rows, columns].sum() <= np.trace(similarity) + 1e-6:
        return list(range(len(own)))
    return [int(c) for c in columns]


def _directions(sketches: Sketches) -> npt.NDArray[np.float64]:
    arrows = sketches.astype(np.float64)
    if len(arrows) > 1:
        arrows -= arrows.mean(axis=0)
    norms = np.linalg.norm(arrows, axis=1, keepdims=True)
    directions: npt.NDArray[np.float64] = arrows / np.where(norms > 0, norms, 1.0)
    return directions


def anchor_of(announce: Announce) -> Anchor:
    """Return the anchor that an announcement with a sketch names."""
    return Anchor(int(announce.scalars[0]), int(announce.scalars[1]))


def better_anchor(own: Anchor, announced: dict[int, Announce], hops_max: int) -> int | None:
    """Return the neighbor to take labels from: it knows the smallest anchor, over the fewest edges; None: keep the own.

    A peer whose labels descend from another goes on following it, so that later switches are undone too. Nobody is more
    than ``hops_max`` edges away: to follow who says so would make this peer say what all others refuse.
    """
    known = {n: anchor_of(a) for n, a in announced.items() if a.sketch and anchor_of(a).hops < hops_max}
    if not known:
        return None
    parent = min(known, key=lambda n: (*known[n], n))
    offered = Anchor(known[parent].peer_id, known[parent].hops + 1)
    return parent if offered <= own else None


def pack(sketches: Sketches) -> bytes:
    """Return sketches as an announcement carries them: float32 little-endian, row by row."""
    return sketches.astype("<f4").tobytes()


def unpack(data: bytes, slots: int) -> Sketches:
    """Return an announcement's sketches, float32 [S, q]; its size was checked on arrival."""
    return np.frombuffer(data, "<f4").reshape(slots, -1).astype(np.float32)

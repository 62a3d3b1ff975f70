"""FedSPD's samples: which cluster each belongs to, a peer's mixture weights, and which cluster it trains next. Pure.

Every sample d of peer i has a hard label z_i(d); D_is = {d : z_i(d) = s}; u_is = |D_is| / n_i. Source: specification, 2.1 to 2.4.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.seeds import generator, uniform

Labels = npt.NDArray[np.int64]
LOSS_MAX = 10.0  # nats; one hopeless sample must not decide over all others of its class


def first_labels(how: Literal["random", "index_split"], count: int, clusters: int, seed: int, peer_id: int) -> Labels:
    """Return labels, int64 [count], that break the symmetry between clusters before any model has learned.

    Args:
        how: ``random`` is uniform and independent (OURS). ``index_split`` gives the s-th part of the samples, in their
            order, label s with probability 2/3, as the authors' code does, in whose data set that order is the order of the
            true distributions: a leak, kept for comparison only.
        count: n_i.
        clusters: S.
        seed: of the run.
        peer_id: whose labels these are.
    """
    draw = generator(seed, "first_labels", peer_id)
    labels: Labels = draw.integers(0, clusters, count)
    if how == "index_split" and clusters > 1:
        part = np.arange(count) * clusters // max(count, 1)
        other = (part + draw.integers(1, clusters, count)) % clusters
        labels = np.where(draw.random(count) < 2 / 3, part, other)
    return labels


def nearest(losses: npt.NDArray[np.floating], least: int = 0) -> Labels:
    """Return each sample's cluster of lowest loss (ties to the lowest index), int64 [n], and no cluster below ``least`` samples.

    Source: Step 4.

    Args:
        losses: [S, n], loss of each sample under each center.
        least: smallest cluster size (`filled`), 0 for the paper's rule alone.
    """
    return filled(np.argmin(losses, axis=0).astype(np.int64), losses, least)


def filled(labels: Labels, losses: npt.NDArray[np.floating], least: int) -> Labels:
    """Return labels, int64 [n], with no cluster below ``least`` samples if n allows it.

    A cluster that is too small gets the samples that lose least by moving, out of the largest cluster, as long as that
    one keeps ``least`` itself. Source: the authors' code moves 10 samples, whichever (which: OURS).

    Args:
        labels: int64 [n], left alone.
        losses: [S, n], loss of each sample under each center; the first samples move where all are equal.
        least: smallest cluster size.
    """
    labels = labels.copy()
    counts = cluster_sizes(labels, len(losses))
    for cluster in range(len(losses)):
        while counts[cluster] < least:
            largest = int(np.argmax(counts))
            moving = min(least - counts[cluster], counts[largest] - least)
            if moving <= 0:
                break
            members = np.flatnonzero(labels == largest)
            cost = losses[cluster, members] - losses[largest, members]
            labels[members[np.argsort(cost, kind="stable")[:moving]]] = cluster
            counts = cluster_sizes(labels, len(losses))
    return labels


def beside_class(losses: npt.NDArray[np.floating], classes: Labels) -> npt.NDArray[np.float64]:
    """Return losses [S, n] minus each center's mean loss on the sample's class, so that a center's taste for classes cancels.

    A loss knows the class of its sample. So the cheapest way for S centers to divide samples is by class, which no test sample
    can follow. Beside the mean of its class, a sample shows only how it differs from others of it. OURS.
    """
    centered = np.minimum(losses.astype(np.float64), LOSS_MAX)
    for found in np.unique(classes):
        of_class = classes == found
        centered[:, of_class] -= centered[:, of_class].mean(axis=1, keepdims=True)
    return centered


def cluster_sizes(labels: Labels, clusters: int) -> list[int]:
    """Return |D_is| of each cluster s."""
    return [int(c) for c in np.bincount(labels, minlength=clusters)]


def mixture_weights(labels: Labels, clusters: int) -> list[float]:
    """Return u_is of each cluster s; they sum to 1."""
    return [size / len(labels) for size in cluster_sizes(labels, clusters)]


def select_cluster(mixture: list[float], u_min: float, seed: int, round_index: int, peer_id: int) -> int:
    """Return s_i ~ Categorical(max(u_i, u_min) / sum) of a round: the same again after a restart.

    Source: Step 1 of FedSPD, once per round. A cluster without a sample is selected only with ``u_min`` > 0 (OURS).
    """
    edges = np.cumsum(np.maximum(np.array(mixture, dtype=np.float64), u_min))
    drawn = uniform(seed, "select", round_index, peer_id) * edges[-1]
    return int(np.searchsorted(edges, drawn, side="right"))


def confusion(true: Labels, labels: Labels, clusters: int) -> list[list[int]]:
    """Return counts [true distribution][label], for reports: the matching of labels is done there, over all peers."""
    table = np.zeros((int(true.max(initial=0)) + 1, clusters), dtype=np.int64)
    np.add.at(table, (true, labels), 1)
    return [[int(c) for c in row] for row in table]

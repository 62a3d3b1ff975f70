"""Labels of samples in FedSPD: the cluster of each sample, a peer's mixture weights, and the cluster that it selects. Pure.

Every sample d of peer i has a hard label z_i(d); D_is = {d : z_i(d) = s}; u_is = |D_is| / n_i.
Source: FedSPD (arXiv 2410.18862), Section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.seeds import generator, uniform
from peer.algorithms.learner import Fields

Labels = npt.NDArray[np.int64]
LOSS_MAX = 10.0  # nats; one sample of large loss must not dominate the mean of its class


def first_labels(how: Literal["random", "index_split"], count: int, clusters: int, seed: int, peer_id: int) -> Labels:
    """Return the first labels, int64 [count], which break the symmetry between clusters.

    Args:
        how: ``random`` is uniform and independent, an addition of this project: the paper gives no rule. ``index_split`` gives
            the s-th part of the samples, in their order, label s with probability 2/3, as the authors' code. In the authors'
            data this is the order of the true distributions: a leak of the truth, kept for comparison only.
        count: n_i.
        clusters: S.
        seed: of the run.
        peer_id: the peer i.
    """
    draw = generator(seed, "first_labels", peer_id)
    labels: Labels = draw.integers(0, clusters, count)
    if how == "index_split" and clusters > 1:
        part = np.arange(count) * clusters // max(count, 1)
        other = (part + draw.integers(1, clusters, count)) % clusters
        labels = np.where(draw.random(count) < 2 / 3, part, other)
    return labels


def nearest(losses: npt.NDArray[np.floating], least: int = 0) -> Labels:
    """Return each sample's cluster of lowest loss, int64 [n]; ties go to the lowest index.

    Source: FedSPD, Step 4.

    Args:
        losses: [S, n], loss of each sample under each center.
        least: smallest allowed cluster size (see `fill_clusters`); 0 is the paper.
    """
    return fill_clusters(np.argmin(losses, axis=0).astype(np.int64), losses, least)


def fill_clusters(labels: Labels, losses: npt.NDArray[np.floating], least: int) -> Labels:
    """Return labels, int64 [n], with at least ``least`` samples in each cluster, if n is large enough.

    A cluster that is too small gets samples of the largest cluster, those whose loss increases least, as long as the largest
    keeps ``least`` itself. Source: the authors' code of FedSPD moves any 10 samples; the choice by loss is an addition of this
    project.

    Args:
        labels: int64 [n], read only.
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


def center_by_class(losses: npt.NDArray[np.floating], classes: Labels) -> npt.NDArray[np.float64]:
    """Return losses, float64 [S, n], minus each center's mean loss over the sample's class.

    A loss depends on the class of its sample, so S centers tend to divide the samples by class, which is not known for a test
    sample. The difference to the mean of the class shows how a sample differs from others of its class. An addition of this
    project.

    Args:
        losses: [S, n], loss of each sample under each center; clipped at `LOSS_MAX` here.
        classes: class of each sample, int64 [n].
    """
    centered = np.minimum(losses.astype(np.float64), LOSS_MAX)
    for label in np.unique(classes):
        of_class = classes == label
        centered[:, of_class] -= centered[:, of_class].mean(axis=1, keepdims=True)
    return centered


def cluster_sizes(labels: Labels, clusters: int) -> list[int]:
    """Return |D_is| of each cluster s."""
    return [int(c) for c in np.bincount(labels, minlength=clusters)]


def mixture_weights(labels: Labels, clusters: int) -> list[float]:
    """Return u_is of each cluster s; they sum to 1."""
    return [size / len(labels) for size in cluster_sizes(labels, clusters)]


def select_cluster(mixture: Sequence[float], u_min: float, seed: int, round_index: int, peer_id: int) -> int:
    """Return s_i ~ Categorical(max(u_i, u_min) / sum): a function of its arguments, so a restart selects the same cluster.

    Source: FedSPD, Step 1: one selection per round. ``u_min`` is an addition of this project: with 0, a cluster without samples
    is never selected.
    """
    edges = np.cumsum(np.maximum(np.array(mixture, dtype=np.float64), u_min))
    drawn = uniform(seed, "select", round_index, peer_id) * edges[-1]
    return int(np.searchsorted(edges, drawn, side="right"))


def partition_cluster(clusters: int, seed: int, round_index: int, place: int, peers: int) -> int:
    """Return s_i of the peer at ``place`` of N in the order of ids: a permutation of all peers, dealt to S clusters in turn.

    All peers compute one partition of N / S peers for each cluster. Source: the authors' code of FedSPD. Where S does not
    divide N, the code leaves N mod S peers out of a round. An addition of this project: as many clusters get one peer more.
    """
    order = generator(seed, "partition", round_index).permutation(peers)
    return int(order[place] % clusters)


def confusion(true: Labels, labels: Labels, clusters: int) -> list[list[int]]:
    """Return the counts [true cluster][label]; reports match labels to true clusters over all peers."""
    table = np.zeros((int(true.max(initial=0)) + 1, clusters), dtype=np.int64)
    np.add.at(table, (true, labels), 1)
    return [[int(c) for c in row] for row in table]


def explained(groups: Labels, labels: Labels, clusters: int) -> float:
    """Return the share of samples with the commonest label of their group: 1 if the group alone decides the label."""
    table = np.array(confusion(groups, labels, clusters))
    return float(table.max(axis=1).sum() / max(table.sum(), 1))


def division(labels: Labels, clusters: int, *, true: Labels | None, classes: Labels | None) -> Fields:
    """Return what the history records of a division of a peer's samples, as far as the data tell.

    `confusion` needs the true clusters; `class_explains` needs classes: where it is near 1, clusters are groups of classes, and a
    center is an expert for classes, not for a distribution.

    Args:
        labels: the cluster of each sample, int64 [n].
        clusters: S.
        true: the true cluster of each sample, int64 [n].
        classes: the class of each sample, int64 [n].
    """
    fields: Fields = {}
    if true is not None:
        fields["confusion"] = confusion(true, labels, clusters)
    if classes is not None:
        fields["class_explains"] = explained(classes, labels, clusters)
    return fields

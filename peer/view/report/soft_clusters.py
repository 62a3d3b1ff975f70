"""Mixtures of a run compared with the true clusters: samples, mixture weights, collapse; and the models of other algorithms.

The ``state`` of an evaluated round line has ``mixture`` (u_is), ``soft_mixture`` if that is not a count of samples (FedEM's
pi), and ``confusion`` (counts [true][label]). Labels are matched to distributions here, once for all peers of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.schedule import is_active, neighbors_in_round
from peer.core.assignment import assignment
from peer.store.records import AlgorithmFields
from peer.view.state.run_files import RunFiles

COLLAPSED = 0.95  # mean mixture weight above which one cluster has nearly all samples

Counts = npt.NDArray[np.int64]
T = TypeVar("T")


def matched(tables: list[Counts]) -> tuple[Counts, npt.NDArray[np.int64]]:
    """Return the confusion tables padded to squares, int64 [peers, K, K], and the label matched to each distribution.

    The matching covers the most samples of all peers (Hungarian).
    """
    width = max(max(table.shape) for table in tables)
    padded = np.zeros((len(tables), width, width), np.int64)
    for place, table in zip(padded, tables, strict=True):
        place[: table.shape[0], : table.shape[1]] = table
    return padded, assignment(-padded.sum(axis=0))[1]


def mixture_error(tables: list[Counts], soft: Sequence[list[float] | None] = ()) -> float:
    """Return mix_err: the mean over peers and clusters of |u_is - true fraction|, after matching.

    Args:
        tables: of each peer, [true][label].
        soft: mixture weights of each peer; None or missing: the shares of labels in its table.
    """
    padded, label_of = matched(tables)
    counts = padded.sum(axis=(1, 2))[:, None]
    found, true = padded.sum(axis=1) / counts, padded.sum(axis=2) / counts
    for row, weights in zip(found, soft, strict=False):
        if weights is not None and len(weights) <= len(row):
            row[: len(weights)] = weights
    found = found[:, label_of]
    used = (true.sum(axis=0) > 0) | (found.sum(axis=0) > 0)
    return float(np.abs(found - true)[:, used].mean())


def mixture_error_of(states: list[AlgorithmFields]) -> float | None:
    """Return `mixture_error` of the peers' algorithm states; None if the true clusters are not known."""
    known = [state for state in states if "confusion" in state]
    tables = [np.array(state["confusion"], np.int64) for state in known]
    return mixture_error(tables, [state.get("soft_mixture") for state in known]) if known else None


def sample_accuracy(tables: list[Counts]) -> float:
    """Return the share of training samples whose label is matched to their distribution."""
    padded, label_of = matched(tables)
    table = padded.sum(axis=0)
    return float(table[np.arange(len(table)), label_of].sum() / table.sum())


def collapse(mixtures: list[list[float]]) -> bool:
    """Return whether max_s mean_i u_is > `COLLAPSED`."""
    return bool(np.mean(mixtures, axis=0).max() > COLLAPSED)


def _present(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _tables(run: RunFiles) -> list[Counts]:
    found = _present(peer.algorithm_state.get("confusion") for peer in run.peers)
    return [np.array(rows, np.int64) for rows in found]


def mix_err(run: RunFiles) -> float | None:
    """Return `mixture_error` after the last evaluated rounds; None if mixtures or true clusters are not known."""
    return mixture_error_of([peer.algorithm_state for peer in run.peers])


def sample_cluster_accuracy(run: RunFiles) -> float | None:
    """Return `sample_accuracy` after the last evaluated rounds; None if true clusters are not known."""
    tables = _tables(run)
    return sample_accuracy(tables) if tables else None


def class_explains(run: RunFiles) -> float | None:
    """Return how much of the division of the samples their class explains, mean over peers; None without classes."""
    found = _present(peer.algorithm_state.get("class_explains") for peer in run.peers)
    return float(np.mean(found)) if found else None


def truth_explains(run: RunFiles) -> float | None:
    """Return the same for the true clusters: the share of samples with the commonest label of their distribution at a peer."""
    tables = [table for table in _tables(run) if table.sum()]
    return float(np.mean([table.max(axis=1).sum() / table.sum() for table in tables])) if tables else None


def best_center(run: RunFiles, true_cluster: int) -> float | None:
    """Return the score of the best center on the test samples of one true distribution, pooled over the peers.

    The score of center s is the share of correct predictions (in regression the mean loss) when each peer uses its own center s:
    centers differ a little between peers without a server. None without `state.center_scores`.
    Source: FedSoft (arXiv 2112.06053), Tables 1 to 4.
    """
    found = _present(peer.algorithm_state.get("center_scores") for peer in run.peers)
    tables = [table for table in found if len(table[0]) > true_cluster]
    if not tables:
        return None
    slots = range(min(map(len, tables)))
    sums = np.array([[table[s][true_cluster] for s in slots] for table in tables], dtype=np.float64).sum(axis=0)
    scores = sums[sums[:, 1] > 0, 0] / sums[sums[:, 1] > 0, 1]
    if not len(scores):
        return None
    return float(scores.max() if run.metric.higher_is_better else scores.min())


def collapsed(run: RunFiles) -> bool | None:
    """Return `collapse` of the last mixtures; None for an algorithm without mixtures."""
    mixtures = _present(peer.algorithm_state.get("mixture") for peer in run.peers)
    alike = [mixture for mixture in mixtures if len(mixture) == len(mixtures[0])]
    return collapse(alike) if alike and len(alike[0]) > 1 else None


def final_phase(run: RunFiles) -> dict[str, float] | None:
    """Return the mean of the metric before and after the final phase; None before it."""
    before, after = run.latest("metric_before_final"), run.latest("metric_after_final")
    return {"before": float(np.mean(before)), "after": float(np.mean(after))} if after else None


def models_compared(run: RunFiles) -> dict[str, int] | None:
    """Return how many models DFCA and FedEM would have sent on this graph in the same rounds.

    DFCA sends one model to each neighbor whose edge is active, FedEM one per cluster. None without a graph file.
    """
    if run.graph is None:
        return None
    graph, m = run.graph, run.graph.manifest
    dfca = sum(
        len(neighbors_in_round(graph, t, peer.peer_id))
        for peer in run.peers
        for t in peer.rounds
        if m.participation == 1 or is_active(m.seed, t, peer.peer_id, m.participation)
    )
    return {"dfca": dfca, "fedem": m.clusters * dfca}


METRICS = {
    "mix_err": mix_err,
    "sample_cluster_accuracy": sample_cluster_accuracy,
    "class_explains": class_explains,
    "truth_explains": truth_explains,
    "collapsed": collapsed,
    "metric_final_phase": final_phase,
    "models_others_would_send": models_compared,
}

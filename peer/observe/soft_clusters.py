"""What a run with mixtures found, against the truth: samples, mixture weights, collapse; and what others would have sent.

Peers leave in each evaluated round line ``facts``: ``mixture`` (u_is), ``soft_mixture`` where that is no count of samples
(FedEM's pi), and ``confusion`` (counts [true][label]). Labels
mean something only over all peers, so the one-to-one matching of labels to distributions is made here, once for the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.schedule import is_active, neighbors_in_round
from peer.observe.run_files import Run

COLLAPSED = 0.95  # one cluster holding more than this share of all peers' samples, on average

Counts = npt.NDArray[np.int64]


def matched(tables: list[Counts]) -> tuple[Counts, npt.NDArray[np.int64]]:
    """Return all peers' confusion tables, padded to a square, int64 [peers, K, K], and the label matched to each distribution.

    The matching is the one with the most samples on it, over all peers (Hungarian).
    """
    from scipy.optimize import linear_sum_assignment

    width = max(max(table.shape) for table in tables)
    padded = np.zeros((len(tables), width, width), np.int64)
    for place, table in zip(padded, tables, strict=True):
        place[: table.shape[0], : table.shape[1]] = table
    return padded, linear_sum_assignment(padded.sum(axis=0), maximize=True)[1]


def mixture_error(tables: list[Counts], soft: Sequence[list[float] | None] = ()) -> float:
    """Return mix_err: the mean over peers and clusters of |u_is - true fraction|, after matching.

    Args:
        tables: of each peer, [true][label].
        soft: of each peer, its mixture weights; None, or missing: the shares of labels in its table.
    """
    padded, label_of = matched(tables)
    counts = padded.sum(axis=(1, 2))[:, None]
    found, true = padded.sum(axis=1) / counts, padded.sum(axis=2) / counts
    for row, weights in zip(found, soft, strict=False):
        if weights is not None:
            row[: len(weights)] = weights
    found = found[:, label_of]
    used = (true.sum(axis=0) > 0) | (found.sum(axis=0) > 0)
    return float(np.abs(found - true)[:, used].mean())


def mixture_error_of(facts: list[dict[str, Any]]) -> float | None:
    """Return `mixture_error` of peers' facts; None where the truth is not known."""
    told = [found for found in facts if "confusion" in found]
    tables = [np.array(found["confusion"], np.int64) for found in told]
    return mixture_error(tables, [found.get("soft_mixture") for found in told]) if told else None


def sample_accuracy(tables: list[Counts]) -> float:
    """Return the share of all training samples whose label is the one matched to their distribution."""
    padded, label_of = matched(tables)
    table = padded.sum(axis=0)
    return float(table[np.arange(len(table)), label_of].sum() / table.sum())


def collapse(mixtures: list[list[float]]) -> bool:
    """Return whether max_s mean_i u_is > 0.95: the mixture has ended in one cluster."""
    return bool(np.mean(mixtures, axis=0).max() > COLLAPSED)


def _facts(run: Run, name: str) -> list[Any]:
    found = ((peer.last.get("facts") or {}).get(name) for peer in run.peers)
    return [value for value in found if value is not None]


def _tables(run: Run) -> list[Counts]:
    return [np.array(rows, np.int64) for rows in _facts(run, "confusion")]


def mix_err(run: Run) -> float | None:
    """Return `mixture_error` of the peers' last evaluated rounds; None where mixtures or the truth are not known."""
    return mixture_error_of([peer.last.get("facts") or {} for peer in run.peers])


def sample_cluster_accuracy(run: Run) -> float | None:
    """Return `sample_accuracy` of the peers' last evaluated rounds."""
    tables = _tables(run)
    return sample_accuracy(tables) if tables else None


def collapsed(run: Run) -> bool | None:
    """Return `collapse` of the peers' last mixtures; None for an algorithm without mixtures."""
    mixtures = _facts(run, "mixture")
    return collapse(mixtures) if mixtures and len(mixtures[0]) > 1 else None


def final_phase(run: Run) -> dict[str, float] | None:
    """Return the mean accuracy before and after the final phase; None until a peer has done it."""
    before, after = (run.latest(f"accuracy_{when}_final") for when in ("before", "after"))
    return {"before": float(np.mean(before)), "after": float(np.mean(after))} if after else None


def models_compared(run: Run) -> dict[str, int]:
    """Return the models that DFCA and FedEM would have sent on this graph in the rounds that the peers did.

    DFCA sends one model to each neighbor whose edge is up, FedEM one of each cluster (specification, section 11).
    """
    m = run.graph.manifest
    dfca = sum(
        len(neighbors_in_round(run.graph, t, peer.peer_id))
        for peer in run.peers
        for t in peer.rounds
        if m.participation == 1 or is_active(m.seed, t, peer.peer_id, m.participation)
    )
    return {"dfca": dfca, "fedem": m.clusters * dfca}


METRICS = {
    "mix_err": mix_err,
    "sample_cluster_accuracy": sample_cluster_accuracy,
    "collapsed": collapsed,
    "accuracy_final_phase": final_phase,
    "models_others_would_send": models_compared,
}

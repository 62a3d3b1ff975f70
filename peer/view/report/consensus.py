"""Consensus distance: how far the peers' models of a cluster are from their mean. It needs the models of all peers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator_free_bootstrap.errors import StorageError
from peer.store.model_file import load_model
from peer.view.state.run_files import RunFiles


def consensus_distances(run: RunFiles, notes: list[str]) -> tuple[list[float | None], list[float | None]]:
    """Return each cluster's consensus distance, absolute and relative; None with fewer than two models.

    The distance is the mean over peers of the squared Euclidean distance to the mean model; the relative distance is
    divided by the squared norm of the mean model. The files are read twice, so that two models are in memory at a time.

    Args:
        run: the run.
        notes: gets a sentence for each model file that cannot be used.

    Source: FedSPD (Lin et al., 2025, arXiv 2410.18862), Theorem 5.10, the quantity E_t.
    """
    absolute: list[float | None] = []
    relative: list[float | None] = []
    for cluster_index in range(run.clusters):
        paths = [peer.state_dir.cluster_model(cluster_index) for peer in run.peers]
        distance, norm = _distance([path for path in paths if path.is_file()], notes)
        absolute.append(distance)
        relative.append(distance / norm if distance is not None and norm else None)
    return absolute, relative


def _distance(paths: list[Path], notes: list[str]) -> tuple[float | None, float]:
    total: np.ndarray | None = None
    usable: list[Path] = []
    for path in paths:
        try:
            model = _flat(path)
        except StorageError as error:
            notes.append(str(error))
            continue
        if not np.isfinite(model).all():
            notes.append(f"{path} has values that are not finite: not part of the consensus distance")
            continue
        if total is None:
            total = np.zeros_like(model)
        if model.size != total.size:
            notes.append(
                f"{path} has {model.size} values, {usable[0]} has {total.size}: not part of the consensus distance"
            )
            continue
        total += model
        usable.append(path)
    if total is None or len(usable) < 2:  # a single model has distance 0, which says nothing
        return None, 0.0
    mean = total / len(usable)
    distances = [float(np.sum((_flat(path) - mean) ** 2)) for path in usable]
    return float(np.mean(distances)), float(np.sum(mean**2))


def _flat(path: Path) -> np.ndarray:
    """Return a model file's values as float64 [d], tensors in the order of their names."""
    tensors, _ = load_model(path)
    return np.concatenate([tensors[name].ravel().astype(np.float64) for name in sorted(tensors)])

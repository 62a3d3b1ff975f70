"""Accuracy over epsilon: what differential privacy of training samples costs, by algorithm.

    python benchmarks/privacy.py [mnist patients] [--epsilons 1 3 8] [--seeds 1 2 3] [--data-root data] [--save]

Each run is one of `peer.simulate`: the engine, training and budget of running peers, on one CPU thread. Each peer takes the least
noise with which its whole run costs at most epsilon at delta 1e-5 (`run.privacy.target_epsilon`); "none" is without run.privacy.
A figure is the mean accuracy of the peers' final predictors on their own test samples, then mean and half of the 95 % interval
over seeds; a seed draws the shards, the first models and the order of batches of a run without privacy. Tuned: `dfedavg`, and at
its end each peer trains five epochs alone. Regret: by how much a row is below the best of its column, the mean of the columns.

mnist: eight peers on a ring with chords (degree 4), half of them with pictures upside down; 3,000 training and 500 test samples
each, an MLP 784-32-10, 15 rounds of one epoch, batches of 150.

patients: scikit-learn's table of 569 patients with a breast tumor (30 measurements, benign or malignant; Street, Wolberg and
Mangasarian 1993), dealt at random to four clinics, all neighbors of each other: about 100 training and 43 test samples each,
logistic regression on the logarithms of the measurements, which need no statistics of the data; 20 rounds of two epochs, batches
of 20.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import new_parser, record
from scipy import stats
from torch import nn
from typing_extensions import override

import peer
from coordinator_free_bootstrap import Manifest, make_graph
from peer.tasks import Shard, Task

ROWS: dict[str, dict[str, Any]] = {
    "local": {"algorithm": "local"},
    "dfedavg": {"algorithm": "dfedavg"},
    "dfedavg, tuned": {"algorithm": "dfedavg", "final": {"epochs": 5}},
    "dfca": {"algorithm": "dfca", "clusters": 2},
    "blend": {"algorithm": "blend", "clusters": 2},
}
CLIP_NORM, DELTA = 1.0, 1e-5
MNIST: dict[str, Any] = {
    **{"task": "mnist", "split": "rotated_hard", "model": "mlp", "model_options": {"hidden": 32}},
    **{"split_options": {"rotations": [0, 180], "samples_per_peer": 3000, "test_per_peer": 500}, "rounds": 15},
    **{"local_epochs": 1, "batch_size": 150, "learning_rate": 0.5, "evaluate_every": 15},
}
PATIENTS: dict[str, Any] = {
    "rounds": 20,
    "local_epochs": 2,
    "batch_size": 20,
    "learning_rate": 0.5,
    "evaluate_every": 20,
}
CLINICS, TEST_SHARE = 4, 0.3


class Clinics(Task):
    """Breast tumors, dealt to clinics at random by a seed."""

    classes = 2
    class_names = ("malignant", "benign")

    def __init__(self, seed: int) -> None:
        from sklearn.datasets import load_breast_cancer

        raw, labels = load_breast_cancer(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(labels))
        self._x = np.log(raw[order] + 1e-3).astype(np.float32)
        self._y = labels[order].astype(np.int64)

    @override
    def make_model(self) -> nn.Module:
        """Return logistic regression."""
        return nn.Linear(30, 2)

    @override
    def load_shard(self, peer_id: int) -> Shard:
        """Return every fourth patient; the last ones are the test set."""
        x, y = self._x[peer_id::CLINICS], self._y[peer_id::CLINICS]
        cut = round(len(y) * (1 - TEST_SHARE))
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])


def accuracy_of(what: str, row: str, epsilon: float | None, seed: int, data_root: Path) -> float:
    """Return the mean accuracy of the peers at the end of one run."""
    run = {**(MNIST if what == "mnist" else PATIENTS), **ROWS[row], "seed": seed}
    if epsilon is not None:
        run["privacy"] = {"clip_norm": CLIP_NORM, "target_epsilon": epsilon, "delta": DELTA}
    if what == "mnist":
        graph = make_graph("regular", 8, degree=4, seed=seed)
        graph = replace(graph, manifest=Manifest(**run, data_seed=seed))
        return _mean(peer.simulate(graph, data_root=data_root, progress=False))
    graph = replace(make_graph("complete", CLINICS), manifest=Manifest(**run))
    return _mean(peer.simulate(graph, Clinics(seed), progress=False))


def _mean(run: peer.Run) -> float:
    return float(run.metrics["metric_mean"])


def rows_of(what: str, epsilons: Sequence[float | None], seeds: Sequence[int], data_root: Path) -> list[list[object]]:
    """Return a row for each of `ROWS`: mean and interval of the accuracy in percent for each epsilon, and the regret."""
    cells_of: dict[str, list[object]] = {}
    means: dict[str, list[float]] = {}
    for algorithm in ROWS:
        cells = cells_of[algorithm] = []
        means[algorithm] = []
        for epsilon in epsilons:
            began = time.monotonic()
            found = [100 * accuracy_of(what, algorithm, epsilon, seed, data_root) for seed in seeds]
            half = stats.t.ppf(0.975, len(found) - 1) * statistics.stdev(found) / len(found) ** 0.5
            means[algorithm].append(statistics.mean(found))
            cells.append(f"{means[algorithm][-1]:.1f} ± {half:.1f}")
            print(f"{what} {algorithm} epsilon {epsilon}: {cells[-1]}, {time.monotonic() - began:.0f} s", flush=True)
    best = [max(column) for column in zip(*means.values(), strict=True)]
    regrets = {
        algorithm: statistics.mean(top - own for top, own in zip(best, each, strict=True))
        for algorithm, each in means.items()
    }
    return [[algorithm, *cells, f"{regrets[algorithm]:.1f}"] for algorithm, cells in cells_of.items()]


def main() -> None:
    """Measure what is asked for."""
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], "mnist", "patients"], default=["mnist", "patients"])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    given: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    epsilons: list[float | None] = [*given.epsilons, None]
    columns = ["algorithm", *(f"epsilon {epsilon:g}" for epsilon in given.epsilons), "none", "regret"]
    for what in given.parts:
        rows = rows_of(what, epsilons, given.seeds, given.data_root)
        title = f"accuracy in percent over epsilon, {what}, {len(given.seeds)} seeds"
        record(f"privacy-{what}", title, columns, rows, save=given.save)


if __name__ == "__main__":
    main()

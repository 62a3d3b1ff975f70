"""Accuracy over epsilon: what differential privacy of training samples costs and what it hides, by algorithm.

    python benchmarks/privacy.py [mnist patients] [--rows local dfca] [--epsilons 1 3 8] [--seeds 1 2 3] [--data-root data]
        [--done FILE] [--save]

Each run is one of `peer.simulate`: the engine, training and budget of running peers, on one CPU thread. Each peer takes the least
noise with which its whole run costs at most epsilon at delta 1e-5 (`run.privacy.target_epsilon`); "none" is without run.privacy.
A figure is the mean accuracy of the peers' final predictors on their own test samples, then mean and half of the 95 % interval
over seeds; a seed draws the shards, the first models and the order of batches of a run without privacy. Tuned: `dfedavg`, and at
its end each peer trains five epochs alone. Regret: by how much a row is below the best of its column, the mean
of the columns.
Leak: as `peer privacy leak` measures it, how well the loss of the models that a peer sends in the last round tells its training
samples from its test samples; the mean AUC over models and peers, then as above; "-": nothing is sent.

mnist: six peers on a ring with chords (degree 4), half of them with pictures upside down; 2,000 training and 500 test samples
each, an MLP 784-32-10, 10 rounds of one epoch, batches of 100.

patients: scikit-learn's table of 569 patients with a breast tumor (30 measurements, benign or malignant; Street, Wolberg and
Mangasarian 1993), dealt at random to four clinics, all neighbors of each other: about 100 training and 43 test samples each,
logistic regression on the logarithms of the measurements, which need no statistics of the data; 20 rounds of two epochs, batches
of 20.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from record import new_parser, record
from scipy import stats
from torch import nn
from typing_extensions import override

import peer
from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.learning.learner import TorchLearner
from peer.store.state_dir import StateDir
from peer.tasks import Shard, Task
from peer.tasks.loading import load_task
from peer.tasks.user_code import data_of
from peer.view.models.saved import SavedModel
from peer.view.privacy.leak import auc_of

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
    **{"split_options": {"rotations": [0, 180], "samples_per_peer": 2000, "test_per_peer": 500}, "rounds": 10},
    **{"local_epochs": 1, "batch_size": 100, "learning_rate": 0.5, "evaluate_every": 10},
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


class Measured(NamedTuple):
    """One run: mean accuracy of the peers at its end, and mean AUC of the models they sent last; None: they send none."""

    accuracy: float
    leak: float | None


def measure(what: str, row: str, epsilon: float | None, seed: int, data_root: Path) -> Measured:
    """Return what one run gives."""
    run = {**(MNIST if what == "mnist" else PATIENTS), **ROWS[row], "seed": seed}
    if epsilon is not None:
        run["privacy"] = {"clip_norm": CLIP_NORM, "target_epsilon": epsilon, "delta": DELTA}
    if what == "mnist":
        graph = make_graph("regular", 6, degree=4, seed=seed)
        graph = replace(graph, manifest=Manifest(**run, data_seed=seed))
        task = load_task(graph.manifest, len(graph.nodes), data_root=data_root)
        done = peer.simulate(graph, data_root=data_root, progress=False)
    else:
        graph, task = replace(make_graph("complete", CLINICS), manifest=Manifest(**run)), Clinics(seed)
        done = peer.simulate(graph, task, progress=False)
    return Measured(float(done.metrics["metric_mean"]), leak_of(done.directory, graph, task))


def leak_of(directory: Path, graph: Graph, task: Task) -> float | None:
    """Return the mean AUC over the models that the peers of a run sent in its last round; None if they sent none."""
    found = []
    for peer_id in graph.ids:
        learner = TorchLearner(task, data_of(task, peer_id))
        for path in sorted(StateDir.of_peer(directory, peer_id).sent.glob("*.safetensors")):
            model = SavedModel.read(path).vector(learner.schema)
            found.append(auc_of(learner.sample_losses(model, "train"), learner.sample_losses(model, "test")))
    return statistics.mean(found) if found else None


class Runs:
    """The runs of one table; with a file, those that are done are not repeated.

    Args:
        what: whose table.
        data_root: of MNIST.
        done: file with a line for each finished run; None: nothing is kept.
    """

    def __init__(self, what: str, data_root: Path, done: Path | None) -> None:
        self._what, self._data_root, self._file = what, data_root, done
        lines = done.read_text(encoding="utf-8").splitlines() if done and done.exists() else []
        self._done: dict[str, Measured] = {key: Measured(*found) for key, found in map(json.loads, lines)}

    def __call__(self, row: str, epsilon: float | None, seed: int) -> Measured:
        """Return what a run gives."""
        key = f"{self._what} {row} {epsilon} {seed}"
        if key not in self._done:
            began = time.monotonic()
            self._done[key] = found = measure(self._what, row, epsilon, seed, self._data_root)
            print(f"{key}: {found}, {time.monotonic() - began:.0f} s", flush=True)
            if self._file is not None:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, found]) + "\n")
        return self._done[key]


def with_interval(values: Sequence[float], digits: int) -> str:
    """Return mean and half of the 95 % interval over seeds."""
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.{digits}f} ± {half:.{digits}f}"


def table_of(
    runs: Runs, chosen: Sequence[str], epsilons: Sequence[float | None], seeds: Sequence[int]
) -> list[dict[str, str]]:
    """Return a row for each algorithm: accuracy in percent for each epsilon, regret, leak with the least noise and with none."""
    found = {row: {e: [runs(row, e, seed) for seed in seeds] for e in epsilons} for row in chosen}
    means = {
        row: [statistics.mean(run.accuracy for run in each) for each in cells.values()] for row, cells in found.items()
    }
    best = [max(column) for column in zip(*means.values(), strict=True)]
    rows = []
    for row, cells in found.items():
        regret = statistics.mean(top - own for top, own in zip(best, means[row], strict=True))
        shown = {named(e): with_interval([100 * run.accuracy for run in each], 1) for e, each in cells.items()}
        shown |= {"regret": f"{100 * regret:.1f}"}
        for e in epsilons[-2:]:
            leaks = [run.leak for run in cells[e] if run.leak is not None]
            shown[f"leak, {named(e)}"] = with_interval(leaks, 3) if leaks else "-"
        rows.append({"algorithm": row} | shown)
    return rows


def named(epsilon: float | None) -> str:
    """Return the name of a column."""
    return "none" if epsilon is None else f"epsilon {epsilon:g}"


def main() -> None:
    """Measure what is asked for."""
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], "mnist", "patients"], default=["mnist", "patients"])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--done", type=Path, help="file that keeps finished runs, which the next call does not repeat")
    given: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    for what in given.parts:
        rows = table_of(Runs(what, given.data_root, given.done), given.rows, [*given.epsilons, None], given.seeds)
        title = f"accuracy in percent and leak over epsilon, {what}, {len(given.seeds)} seeds"
        record(f"privacy-{what}", title, list(rows[0]), [list(row.values()) for row in rows], save=given.save)


if __name__ == "__main__":
    main()

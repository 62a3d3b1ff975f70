"""Two methods that were built, measured and left out, beside those that they would have to beat, on settings of the suite.

    python benchmarks/left_out.py --data-root data [--setting 'MNIST, rotated 2' ...] [--seeds 3] [--markdown FILE]

- *shared body*: all peers average the body of one model; clusters share a last layer each. A sample belongs to the cluster of the
  lowest loss, less the mean over the samples of its class, less log u (u: the cluster's share of the peer's samples). Predicted
  is the mixture of the clusters' predictions by u.
- *weighed neighbors*: clusters as in DFCA with seeds; in the last rounds a peer averages what arrives, of any cluster, by the
  gain on samples held out per distance, max(0, F(start) - F(model)) / |model - start|, as FedFomo weighs (arXiv 2012.08565).

Plain loops over the learner, no engine and no messages: enough to see whether a method is worth an algorithm file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import show

from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.algorithms.learner import TrainingPlan
from peer.lab.scaling import Scale, scaled_graph
from peer.lab.spec import load_experiment
from peer.learning.learner import Learner
from peer.zoo.tasks.builtin import BuiltinTask

Vector = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
SUITE = Path(__file__).parent.parent / "experiments" / "suite.toml"
SETTINGS = (
    "MNIST, rotated 2",
    "Fashion, rotated 4",
    "letters, rotated 2",
    "MNIST, mixture",
    "Fashion, conflict",
    "Fashion, dirichlet",
)
SEED_EPOCHS = 10
LOSS_MAX = 10.0  # one sample of large loss must not dominate the mean of its class


class Federation:
    """The learners and neighbors of one setting and seed.

    Args:
        setting: of the suite.
        seed: of data, graph and training.
        data_root: where the data sets lie.
    """

    def __init__(self, setting: str, seed: int, data_root: Path) -> None:
        experiment = load_experiment(SUITE)
        case = next(case for case in experiment.case if case.name == f"{setting}: dfca, seeds")
        self.graph, self.seed = scaled_graph(experiment, case, seed, Scale()), seed
        self.manifest = self.graph.manifest
        task = BuiltinTask(self.manifest, len(self.graph.nodes), data_root, False)
        self.learners = [Learner(task, task.load_shard(i), batch_size=self.manifest.batch_size) for i in self.graph.ids]
        self.ids, self.clusters = range(len(self.learners)), range(self.manifest.clusters)

    def first(self, slot: int = 0) -> Vector:
        """Return a first model, equal on all peers."""
        return self.learners[0].initial_model(derive_seed(self.seed, "initial", slot))

    def train(self, i: int, start: Vector, epochs: int, key: int, indices: Indices | None = None) -> Vector:
        """Return a model that peer i trained."""
        m, seed = self.manifest, derive_seed(self.seed, "train", i, key)
        settings: dict[str, Any] = {"learning_rate": m.learning_rate, "momentum": m.momentum}
        return self.learners[i].train(start, TrainingPlan(epochs=epochs, seed=seed, indices=indices, **settings))[0]

    def averaged(self, i: int, own: Vector, others: list[Vector | None]) -> Vector:
        """Return the mean of the own model and those of neighbors; None: a neighbor sends none."""
        sent = [others[n] for n in self.graph.neighbors(i)]
        return np.asarray(np.mean([own, *(model for model in sent if model is not None)], axis=0), np.float32)

    def nearest(self, i: int, models: list[Vector]) -> int:
        """Return the cluster of lowest training loss."""
        return int(np.argmin([self.learners[i].mean_loss(model) for model in models]))

    def held_out(self, i: int, share: float) -> tuple[Indices, Indices]:
        """Return the samples that peer i holds out, and the others."""
        order = generator(self.seed, "held_out", i).permutation(self.learners[i].count())
        size = int(share * len(order))
        return np.sort(order[:size]), np.sort(order[size:])


def dfedavg(f: Federation) -> list[float]:
    """Return each peer's accuracy with one model for all."""
    models = [f.first()] * len(f.ids)
    for r in range(f.manifest.rounds):
        trained: list[Vector | None] = [f.train(i, models[i], f.manifest.local_epochs, r) for i in f.ids]
        models = [f.averaged(i, trained[i], trained) for i in f.ids]  # type: ignore[arg-type]
    return [f.learners[i].evaluate(models[i]).metric for i in f.ids]


def seeded(f: Federation, used: list[Indices | None]) -> list[list[Vector]]:
    """Return k first models for each peer, by farthest-first traversal."""
    own = [f.train(i, f.first(), SEED_EPOCHS, -1, used[i]) for i in f.ids]
    floor = np.array([f.learners[i].mean_loss(own[i]) for i in f.ids])
    seeds = [int(generator(f.seed, "first seed").integers(len(f.ids)))]
    rows = [[f.learners[i].mean_loss(own[seeds[0]]) for i in f.ids]]
    while len(seeds) < len(f.clusters):
        gains = np.min(rows, axis=0) - floor
        gains[seeds] = -1
        seeds.append(int(np.argmax(gains)))
        rows.append([f.learners[i].mean_loss(own[seeds[-1]]) for i in f.ids])
    return [[own[seed].copy() for seed in seeds] for _ in f.ids]


def clusters(f: Federation, weighed_rounds: int = 0) -> list[float]:
    """Return each peer's accuracy with clusters from seeds; in the last rounds it weighs its neighbors by samples held out."""
    held = [f.held_out(i, 0.25 if weighed_rounds else 0.0) for i in f.ids]
    used: list[Indices | None] = [rest for _, rest in held]
    models = seeded(f, used)
    for r in range(len(f.clusters), f.manifest.rounds):
        chosen = [f.nearest(i, models[i]) for i in f.ids]
        starts = [models[i][chosen[i]] for i in f.ids]
        trained = [f.train(i, starts[i], f.manifest.local_epochs, r, used[i]) for i in f.ids]
        for i in f.ids:
            models[i] = [
                f.averaged(
                    i,
                    trained[i] if chosen[i] == slot else models[i][slot],
                    [model if chosen[n] == slot else None for n, model in enumerate(trained)],
                )
                for slot in f.clusters
            ]
            if r >= f.manifest.rounds - weighed_rounds:
                models[i][chosen[i]] = weighed(f, i, starts[i], trained, held[i][0], models[i][chosen[i]])
    return [f.learners[i].evaluate(models[i][f.nearest(i, models[i])]).metric for i in f.ids]


def weighed(f: Federation, i: int, start: Vector, trained: list[Vector], judges: Indices, otherwise: Vector) -> Vector:
    """Return the start moved towards all models that a peer knows, by their gains; without any gain another model."""

    def loss(model: Vector) -> float:
        return float(f.learners[i].sample_losses(model)[judges].mean())

    known = [trained[n] for n in (i, *f.graph.neighbors(i))]
    gains = [max(0.0, loss(start) - loss(model)) / (float(np.linalg.norm(model - start)) + 1e-9) for model in known]
    if not sum(gains):
        return otherwise
    moves = [gain / sum(gains) * (model - start) for gain, model in zip(gains, known, strict=True)]
    return np.asarray(start + np.sum(moves, axis=0), np.float32)


def shared_body(f: Federation) -> list[float]:
    """Return each peer's accuracy with one body and a last layer for each cluster."""
    cut = list(f.learners[0].schema.slices())[-2][1].start  # weight and bias of the last layer end the vector
    bodies = [f.first()[:cut].copy() for _ in f.ids]
    heads = [[f.first(slot)[cut:].copy() for slot in f.clusters] for _ in f.ids]
    shares = [np.full(len(f.clusters), 1 / len(f.clusters)) for _ in f.ids]
    for r in range(f.manifest.rounds):
        sent: list[set[int]] = []
        for i in f.ids:
            count = f.learners[i].count()
            if r == 0:
                labels = np.full(count, generator(f.seed, "first cluster", i).integers(len(f.clusters)))
            else:
                labels = assigned(f, i, [np.concatenate([bodies[i], head]) for head in heads[i]], shares[i])
            shares[i] = np.bincount(labels, minlength=len(f.clusters)) / count
            for epoch in range(f.manifest.local_epochs):
                for slot in np.unique(labels):
                    whole, key = np.concatenate([bodies[i], heads[i][slot]]), (r * 10 + epoch) * 10 + int(slot)
                    model = f.train(i, whole, 1, key, np.flatnonzero(labels == slot))
                    bodies[i], heads[i][slot] = model[:cut], model[cut:]
            sent.append(set(np.unique(labels).tolist()))
        before = heads
        bodies = [f.averaged(i, bodies[i], list(bodies)) for i in f.ids]
        heads = [
            [
                f.averaged(i, before[i][slot], [before[n][slot] if slot in sent[n] else None for n in f.ids])
                for slot in f.clusters
            ]
            for i in f.ids
        ]
    return [mixture(f, i, [np.concatenate([bodies[i], head]) for head in heads[i]], shares[i]) for i in f.ids]


def assigned(f: Federation, i: int, models: list[Vector], shares: npt.NDArray[np.float64]) -> Indices:
    """Return the cluster of each sample, int64 [n]."""
    losses = np.minimum(np.stack([f.learners[i].sample_losses(model) for model in models]), LOSS_MAX)
    classes = f.learners[i].labels()
    for label in np.unique(classes) if classes is not None else ():
        losses[:, classes == label] -= losses[:, classes == label].mean(axis=1, keepdims=True)
    return np.asarray(np.argmin(losses - np.log(shares + 1e-3)[:, None], axis=0), np.int64)


def mixture(f: Federation, i: int, models: list[Vector], shares: npt.NDArray[np.float64]) -> float:
    """Return the accuracy of the clusters' predictions, mixed by their shares."""
    rows = zip(shares, models, strict=True)
    predictions = np.sum([share * f.learners[i].predict_proba(model) for share, model in rows], axis=0)
    return f.learners[i].evaluate_predictions(predictions.astype(np.float32)).metric


METHODS: dict[str, Callable[[Federation], list[float]]] = {
    "dfedavg": dfedavg,
    "clusters from seeds": clusters,
    "weighed neighbors, last round": lambda f: clusters(f, 1),
    "weighed neighbors, last 3 rounds": lambda f: clusters(f, 3),
    "shared body": shared_body,
}


def main() -> None:
    """Run all methods in each setting with each seed and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--setting", nargs="+", default=SETTINGS, help="settings of experiments/suite.toml")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    cells: dict[str, list[str]] = {name: [] for name in METHODS}
    for setting in options.setting:
        federations = [Federation(setting, seed, options.data_root) for seed in range(1, options.seeds + 1)]
        for name, method in METHODS.items():
            found = np.array([method(f) for f in federations])
            tenth = np.percentile(found, 10, axis=1, method="lower").mean()
            cells[name].append(f"{100 * found.mean():.1f} / {100 * tenth:.1f}")
            print(f"{setting}: {name}: {cells[name][-1]}", flush=True)
    title = "Left out: mean / worst tenth, %"
    show(title, ["case", *options.setting], [[name, *row] for name, row in cells.items()], options.markdown)


if __name__ == "__main__":
    main()

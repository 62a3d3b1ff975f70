"""Local training beside a bare PyTorch loop, and `peer experiment run --stacked` beside one peer after another.

    python benchmarks/training.py [--seconds 20] [--threads 1] [--peers 8 32 120] [--rounds 3] [--repeats 3] [--save]

The loop: MLP 2048 and DFCA's CNN on the same tensors, batches of 100. Stacked: an MLP 784-200-10 on data of MNIST's shape; all
peers run DFedAvg on a regular graph of degree 4, once with a training for each peer and once with one stack of all trainings.
The two forms take turns, so that both see the same machine; times are processor seconds of the process, ratios are medians.
Models are compared after the last round, over all peers and parameters: the largest difference, and its share of the farthest
that a parameter went from its start.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from record import new_parser, record
from torch import nn
from torch.nn import functional
from typing_extensions import override

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.algorithms.learner import TrainingPlan
from peer.lab.simulated import SimulatedSettings, simulate
from peer.learning.learner import TorchLearner
from peer.tasks import Shard, Task
from peer.zoo.tasks.models import make_model

SAMPLES, EPOCHS, BATCH, RATE = 1000, 2, 100, 0.1
AIM = 0.95


class RandomImages(Task):
    """Random data of MNIST's shape: how fast, not how well."""

    classes = 10

    def __init__(self, model: str) -> None:
        self.model = model

    @override
    def make_model(self) -> nn.Module:
        """Return one of the papers' models."""
        return make_model(self.model, (1, 28, 28), 10)

    @override
    def load_shard(self, peer_id: int) -> Shard:
        """Return random images and labels."""
        draw = np.random.default_rng(peer_id)
        x = draw.random((SAMPLES, 1, 28, 28), dtype=np.float32)
        y = draw.integers(0, 10, SAMPLES)
        return Shard(train_x=x, train_y=y, test_x=x[:BATCH], test_y=y[:BATCH])


class BareLoop:
    """What one would write by hand: shuffle, index, forward, backward, step."""

    def __init__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, momentum: float) -> None:
        self.model, self.x, self.y, self.momentum = model, x, y, momentum

    def train(self, seed: int) -> None:
        """Train one round."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=self.momentum)
        shuffle = torch.Generator().manual_seed(seed)
        self.model.train()
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(self.x), generator=shuffle).split(BATCH):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                functional.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()


def beside_a_loop(name: str, momentum: float, seconds: float) -> tuple[float, float, float]:
    """Return samples per processor second of the learner and of the bare loop, and the median ratio of neighboring rounds."""
    task = RandomImages(name)
    learner = TorchLearner(task, task.load_shard(0), batch_size=BATCH)
    x, y = (torch.from_numpy(values) for values in learner.data.part("train"))
    torch.manual_seed(0)
    bare = BareLoop(task.make_model(), x, y, momentum)
    theta = learner.initial_model(0)
    settings: dict[str, Any] = {"epochs": EPOCHS, "learning_rate": RATE, "momentum": momentum}
    loops = [lambda seed: learner.train(theta, TrainingPlan(seed=seed, **settings)), bare.train]
    rounds: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 4:
        took = [0.0, 0.0]
        for which in (0, 1) if len(rounds) % 2 else (1, 0):  # neither always runs after the other
            start = time.process_time()  # of all threads; other processes do not count
            loops[which](len(rounds))
            took[which] = time.process_time() - start
        rounds.append((took[0], took[1]))
    measured = rounds[1:]  # the first only warms up
    ours, theirs = (SAMPLES * EPOCHS / statistics.median(column) for column in zip(*measured, strict=True))
    return ours, theirs, statistics.median(bare_s / our_s for our_s, bare_s in measured)


# ---- stacked ---------------------------------------------------------------------------------------------------------

STACKED_SAMPLES, TEST, CLASSES, DEGREE = 250, 50, 10, 4
RUN = {"algorithm": "dfedavg", "local_epochs": 5, "learning_rate": 0.05, "batch_size": 50, "momentum": 0.5}


class NoisyPrototypes(Task):
    """A random picture of 28 x 28 for each class, with noise: gradients point somewhere, as those of real data do."""

    classes = CLASSES

    @override
    def make_model(self) -> nn.Module:
        """Return an MLP with 200 hidden units."""
        return make_model("mlp", (1, 28, 28), CLASSES, {"hidden": 200})

    @override
    def load_shard(self, peer_id: int) -> Shard:
        """Return 250 training and 50 test samples."""
        prototypes = np.random.default_rng(0).random((CLASSES, 1, 28, 28), dtype=np.float32)
        draw = np.random.default_rng(peer_id + 1)
        y = draw.integers(0, CLASSES, STACKED_SAMPLES + TEST)
        x = prototypes[y] + draw.standard_normal((len(y), 1, 28, 28), dtype=np.float32)
        return Shard(
            train_x=x[:STACKED_SAMPLES],
            train_y=y[:STACKED_SAMPLES],
            test_x=x[STACKED_SAMPLES:],
            test_y=y[STACKED_SAMPLES:],
        )


class Ended(NamedTuple):
    """One run: processor seconds, the models of all peers [N, d], and their common start [d]."""

    seconds: float
    models: NDArray[np.float32]
    start: NDArray[np.float32]


def graph_of(peers: int, rounds: int) -> Graph:
    """Return a regular graph with the settings of the run."""
    drawn = make_graph("regular", peers, degree=DEGREE)
    manifest = Manifest(**RUN, rounds=rounds, evaluate_every=rounds)  # type: ignore[arg-type]
    return Graph(drawn.nodes, drawn.edges, manifest)


def run(graph: Graph, *, stacked: bool, threads: int) -> Ended:
    """Run all peers of a graph to their end."""
    began = time.process_time()  # of all threads; other processes do not count
    settings = SimulatedSettings(stacked=stacked, threads=threads, task=NoisyPrototypes())
    hosts = [peer.host for peer in simulate(graph, None, settings).values()]
    seconds = time.process_time() - began
    models = np.stack([host.workspace.models.model(0) for host in hosts])
    (start, *_), _ = hosts[0].algorithm.initial_models(hosts[0].workspace.learner)
    return Ended(seconds, models, start)


def compare(peers: int, rounds: int, repeats: int, threads: int) -> list[object]:
    """Return a row of the table: both forms in turn, ``repeats`` times after one round that only warms up."""
    graph = graph_of(peers, rounds)
    for stacked in (False, True):
        run(graph_of(peers, 1), stacked=stacked, threads=threads)
    alone: list[Ended] = []
    together: list[Ended] = []
    for repeat in range(repeats):
        for stacked in (False, True) if repeat % 2 else (True, False):  # neither always runs after the other
            (together if stacked else alone).append(run(graph, stacked=stacked, threads=threads))
    difference = float(np.abs(alone[0].models - together[0].models).max())
    moved = float(np.abs(alone[0].models - alone[0].start).max())
    seconds = [statistics.median(found.seconds for found in form) for form in (alone, together)]
    ratio = statistics.median(a.seconds / b.seconds for a, b in zip(alone, together, strict=True))
    return [peers, *(f"{value:.2f}" for value in (*seconds, ratio)), f"{difference:.1e}", f"{difference / moved:.1e}"]


def main() -> None:
    """Measure both and print two tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a row of the loop; 0: not measured")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument(
        "--peers", type=int, nargs="*", default=[8, 32, 120], help="of stacked training; none: not measured"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows: list[list[object]] = []
    for name, momentum in itertools.product(("mlp2048", "dfca_cnn") if given.seconds else (), (0.0, 0.9)):
        ours, theirs, ratio = beside_a_loop(name, momentum, given.seconds)
        rows.append([name, momentum, round(ours), round(theirs), f"{ratio:.3f}"])
    if rows:
        title = f"Local training beside a bare PyTorch loop ({SAMPLES} samples of 28 x 28, batches of {BATCH})"
        columns = ["model", "momentum", "learner, samples/s", "bare loop, samples/s", f"ratio (aim {AIM})"]
        record("training", title, columns, rows, save=given.save)
    if given.peers:
        rows = [compare(peers, given.rounds, given.repeats, given.threads) for peers in given.peers]
        title = "Stacked training on a CPU (MLP 784-200-10, 250 samples a peer, 5 epochs a round)"
        columns = ["peers", "one by one s", "stacked s", "ratio", "largest difference", "of the farthest move"]
        record("training-stacked", title, columns, rows, save=given.save)


if __name__ == "__main__":
    main()

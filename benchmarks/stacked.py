"""`peer experiment --stacked` against one peer after another, on a CPU: an MLP 784-200-10 on data of MNIST's shape.

    python benchmarks/stacked.py [--peers 8 32 120] [--rounds 3] [--repeats 3] [--threads 1] [--markdown FILE]

All peers run DFedAvg on a regular graph of degree 4, once with a training for each peer and once with one stack of all
trainings; the two take turns, so that both see the same machine. Times are processor seconds of the process; the ratio is
the median over the repeats. Models are compared after the last round, over all peers and parameters: the largest difference,
and its share of the farthest that a parameter went from its start.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import show
from numpy.typing import NDArray
from torch import nn

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.lab.simulated import SimulatedSettings, simulate
from peer.tasks import Shard, Task
from peer.zoo.tasks.models import make_model

SAMPLES, TEST, CLASSES, DEGREE = 250, 50, 10, 4
RUN = {"algorithm": "dfedavg", "local_epochs": 5, "learning_rate": 0.05, "batch_size": 50, "momentum": 0.5}


class NoisyPrototypes(Task):
    """A random picture of 28 x 28 for each class, with noise: gradients point somewhere, as those of real data do."""

    classes = CLASSES

    def make_model(self) -> nn.Module:
        """Return an MLP with 200 hidden units."""
        return make_model("mlp", (1, 28, 28), CLASSES, {"hidden": 200})

    def load_shard(self, peer_id: int) -> Shard:
        """Return 250 training and 50 test samples."""
        prototypes = np.random.default_rng(0).random((CLASSES, 1, 28, 28), dtype=np.float32)
        draw = np.random.default_rng(peer_id + 1)
        y = draw.integers(0, CLASSES, SAMPLES + TEST)
        x = prototypes[y] + draw.standard_normal((len(y), 1, 28, 28), dtype=np.float32)
        return Shard(train_x=x[:SAMPLES], train_y=y[:SAMPLES], test_x=x[SAMPLES:], test_y=y[SAMPLES:])


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 32, 120])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    rows = [compare(peers, arguments.rounds, arguments.repeats, arguments.threads) for peers in arguments.peers]
    title = (
        f"Stacked training on a CPU (MLP 784-200-10, {SAMPLES} samples a peer, {RUN['local_epochs']} epochs a round)"
    )
    header = ["peers", "one by one s", "stacked s", "ratio", "largest difference", "of the farthest move"]
    show(title, header, rows, arguments.markdown)


if __name__ == "__main__":
    main()

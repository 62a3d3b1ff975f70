"""Local training against a bare PyTorch loop on the same tensors: MLP 2048 and DFCA's CNN, batches of 100, one thread.

    python benchmarks/training.py [--seconds 20] [--threads 1] [--markdown FILE]

The two loops take turns, round after round, so that both see the same machine; times are processor seconds of the process.
The ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import show
from torch import nn
from torch.nn import functional

from peer.algorithms.learner import TrainingPlan
from peer.learning.learner import Learner
from peer.tasks import Shard, Task
from peer.zoo.tasks.models import make_model

SAMPLES, EPOCHS, BATCH, RATE = 1000, 2, 100, 0.1
AIM = 0.95


class RandomImages(Task):
    """Random data of MNIST's shape: how fast, not how well."""

    classes = 10

    def __init__(self, model: str) -> None:
        self.model = model

    def make_model(self) -> nn.Module:
        """Return one of the papers' models."""
        return make_model(self.model, (1, 28, 28), 10)

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


def compare(name: str, momentum: float, seconds: float) -> tuple[float, float, float]:
    """Return samples per processor second of the learner and of the bare loop, and the median ratio of neighboring rounds."""
    task = RandomImages(name)
    learner = Learner(task, task.load_shard(0), batch_size=BATCH)
    x, y = (torch.from_numpy(values) for values in learner.shard.part("train"))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="per row")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for name in ("mlp2048", "dfca_cnn"):
        for momentum in (0.0, 0.9):
            ours, theirs, ratio = compare(name, momentum, arguments.seconds)
            rows.append([name, momentum, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ratio:.3f}"])
    title = f"Local training beside a bare PyTorch loop ({SAMPLES} samples of 28 x 28, batches of {BATCH})"
    header = ["model", "momentum", "learner, samples/s", "bare loop, samples/s", f"ratio (aim {AIM})"]
    show(title, header, rows, arguments.markdown)


if __name__ == "__main__":
    main()

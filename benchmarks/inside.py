"""What a checkpoint inside a round costs: seconds to write and to resume, and the share of a training with one a minute.

    python benchmarks/inside.py [--millions 11] [--writes 9] [--save]

An MLP of 11 million parameters (44 MB) in the built-in loop, with a checkpoint after each step. The training waits while it is
written, so its slowdown with one a minute is the seconds of one write of sixty; the median over the writes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from record import new_parser, record
from torch import nn
from typing_extensions import override

from peer.algorithms.learner import Arrays, Partial, TrainingPlan
from peer.learning.learner import TorchLearner
from peer.runtime.partials import PartialCheckpoint, PartialCheckpoints
from peer.store.checkpoint import CheckpointStore
from peer.tasks import Shard, Task

WIDTH, SAMPLES = 1000, 32
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.0},
    "SGD, momentum": {"momentum": 0.9},
    "Adam": {"optimizer": "adam"},
}


class Wide(Task):
    """Layers of 1000 x 1000, one for each million of parameters."""

    classes = WIDTH

    def __init__(self, millions: int) -> None:
        self.millions = millions

    @override
    def make_model(self) -> nn.Module:
        """Return the layers."""
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(self.millions)))

    @override
    def load_shard(self, peer_id: int) -> Shard:
        """Return random samples."""
        draw = np.random.default_rng(peer_id)
        x, y = draw.random((SAMPLES, WIDTH), dtype=np.float32), draw.integers(0, WIDTH, SAMPLES)
        return Shard(train_x=x, train_y=y, test_x=x[:2], test_y=y[:2])


class Timed:
    """A training on disk, with the seconds of each write."""

    def __init__(self, partial: PartialCheckpoint) -> None:
        self._partial = partial
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._partial, name)

    def save(self, step: int, steps: int | None, state: Callable[[], Arrays]) -> None:
        """Write, and note how long it takes."""
        began = time.perf_counter()
        self._partial.save(step, steps, state)
        self.seconds.append(time.perf_counter() - began)


def opened(folder: Path) -> PartialCheckpoints:
    """Return the trainings in a folder, with a state after each step."""
    digests = {"manifest_digest": "m", "graph_digest": "g", "schema_digest": "s"}
    owner = CheckpointStore(folder / "checkpoints", peer_id=0, **digests)
    return PartialCheckpoints(folder / "trainings", owner, "", 0.0, rounds=1)


def measured(millions: int, writes: int, **settings: Any) -> tuple[int, float, float]:
    """Return the bytes of a checkpoint, the seconds of a write, and those until a restart is at its step again."""
    task = Wide(millions)
    learner = TorchLearner(task, task.load_shard(0), batch_size="all")
    theta = learner.initial_model(0)
    plan = TrainingPlan(epochs=writes + 1, seed=0, learning_rate=1e-3, **settings)
    with tempfile.TemporaryDirectory(dir=".") as name:  # a disk, where /tmp may be memory
        timed = Timed(opened(Path(name)).of(theta, plan))
        learner.train(theta, replace(plan, partial=cast("Partial", timed)))
        size_bytes = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())
        began = time.perf_counter()
        opened(Path(name)).of(theta, plan).load()
        return size_bytes, statistics.median(timed.seconds), time.perf_counter() - began


def main() -> None:
    """Measure each optimizer, and print a table."""
    parser = new_parser(__doc__)
    parser.add_argument("--millions", type=int, default=11, help="of parameters")
    parser.add_argument("--writes", type=int, default=9)
    given = parser.parse_args()
    rows: list[list[object]] = []
    for name, settings in OPTIMIZERS.items():
        size_bytes, write_s, resume_s = measured(given.millions, given.writes, **settings)
        rows.append([name, round(size_bytes / 1e6), f"{write_s:.2f}", f"{resume_s:.2f}", f"{100 * write_s / 60:.2f}"])
    title = f"A checkpoint inside a round ({given.millions} million parameters)"
    columns = ["optimizer", "MB", "write, s", "read, s", "slowdown at one a minute, %"]
    record("inside", title, columns, rows, save=given.save)


if __name__ == "__main__":
    main()

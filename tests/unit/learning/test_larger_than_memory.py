"""A shard of 4 GB trains and is evaluated in a process that may not have 1 GB of memory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts so on Linux only"),
]
SAMPLES, FEATURES = 1 << 20, 1 << 12  # bytes: 4 GiB
PROGRAM = """
import resource
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from peer.learning.learner import Learner
from peer.tasks import Preprocessing, Shard, Task

torch.set_num_threads(1)
folder = Path(sys.argv[1])


class Big(Task):
    classes = 4
    preprocessing = Preprocessing(divisor=255)

    def make_model(self):
        return nn.Linear(4096, 4)

    def load_shard(self, peer_id):
        x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
        return Shard(train_x=x, train_y=y, test_x=x[:5000], test_y=y[:5000])


# Private writable memory: the heap and all that malloc maps. A file that is mapped for reading does not count.
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
task = Big()
shard = task.load_shard(0)
assert shard.train_x.nbytes == 4 << 30
try:
    np.array(shard.train_x)
except MemoryError:
    print("does not fit")
learner = Learner(task, shard, batch_size=100)
theta, stats = learner.train(learner.initial_model(0), epochs=50, seed=0, learning_rate=0.5, unit="step")
losses = learner.sample_losses(theta)
before, after = learner.evaluate(learner.initial_model(0)), learner.evaluate(theta)
print(stats.steps, len(losses), bool(np.isfinite(losses).all()), after.loss < before.loss, after.samples)
"""


def test_a_shard_of_four_gigabytes_needs_less_than_one_of_memory(tmp_path: Path) -> None:
    x = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.uint8, shape=(SAMPLES, FEATURES))
    y = np.zeros(SAMPLES, np.uint8)
    draw = np.random.default_rng(0)
    for start in range(0, SAMPLES, SAMPLES // 64):  # the rest of the file is a hole, which takes no disk
        x[start : start + 100] = draw.integers(0, 256, (100, FEATURES), np.uint8)
        y[start : start + 100] = 1 + (x[start : start + 100, 0] > 127)
    x.flush()
    np.save(tmp_path / "y.npy", y)
    assert os.stat(tmp_path / "x.npy").st_size > 4 << 30
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["does not fit", f"50 {SAMPLES} True True 5000"]

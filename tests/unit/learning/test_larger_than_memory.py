"""A shard of 4 GB, as arrays on disk or as a shard file, trains and is evaluated in a process with less than 1 GB of memory."""

from __future__ import annotations

import json
import math
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

from coordinator_free_bootstrap import Manifest
from peer.algorithms.learner import TrainingPlan
from peer.learning.learner import TorchLearner
from peer.tasks.loading import load_task

torch.set_num_threads(1)
folder, form = Path(sys.argv[1]), sys.argv[2]
# Private writable memory: the heap and all that malloc maps. A file that is mapped for reading does not count.
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
given = {"split": "shard"} if form == "file" else {}
shard_path = folder / "shard.safetensors" if form == "file" else None
task = load_task(Manifest(task=f"{folder / 'big_task.py'}:task", **given), 2, shard_path=shard_path)
shard = task.load_shard(0)
assert shard.train_x.nbytes == 4 << 30
try:
    np.array(shard.train_x)
except MemoryError:
    print("does not fit")
learner = TorchLearner(task, shard, batch_size=100)
theta, stats = learner.train(learner.initial_model(0), TrainingPlan(epochs=50, seed=0, learning_rate=0.5, unit="step"))
losses = learner.sample_losses(theta)
before, after = learner.evaluate(learner.initial_model(0)), learner.evaluate(theta)
print(stats.steps, len(losses), bool(np.isfinite(losses).all()), after.loss < before.loss, after.samples)
"""

TASK = """
from pathlib import Path

import numpy as np
from torch import nn

from peer.tasks import Preprocessing, Shard, Task

folder = Path(__file__).parent


class Big(Task):
    classes = 4
    preprocessing = Preprocessing(divisor=255)

    def make_model(self):
        return nn.Linear(4096, 4)

    def load_shard(self, peer_id):
        x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
        return Shard(train_x=x, train_y=y, test_x=x[:5000], test_y=y[:5000])


task = Big()
"""


def write_samples(x: np.ndarray, y: np.ndarray) -> None:
    """Write some of the samples; the rest of the file is a hole, which takes no disk."""
    draw = np.random.default_rng(0)
    for start in range(0, SAMPLES, SAMPLES // 64):
        x[start : start + 100] = draw.integers(0, 256, (100, FEATURES), np.uint8)
        y[start : start + 100] = 1 + (x[start : start + 100, 0] > 127)


def arrays(folder: Path) -> None:
    """Write x.npy and y.npy."""
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.uint8, shape=(SAMPLES, FEATURES))
    y = np.zeros(SAMPLES, np.uint8)
    write_samples(x, y)
    np.save(folder / "y.npy", y)
    assert os.stat(folder / "x.npy").st_size > 4 << 30


def shard_file(folder: Path) -> None:
    """Write shard.safetensors, whose inputs are a sparse part of the file."""
    shapes = {"test_x": (5000, FEATURES), "test_y": (5000,), "train_y": (SAMPLES,), "train_x": (SAMPLES, FEATURES)}
    header, end = {"__metadata__": {"format": "coordinator-free shard 1"}}, 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape)
        header[name] = {"dtype": "U8", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path, begin = folder / "shard.safetensors", 8 + len(text)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, begin + end)
    tensor = {
        name: np.memmap(path, np.uint8, "r+", begin + header[name]["data_offsets"][0], shape)
        for name, shape in shapes.items()
    }
    write_samples(tensor["train_x"], tensor["train_y"])
    tensor["test_x"][:], tensor["test_y"][:] = tensor["train_x"][:5000], tensor["train_y"][:5000]
    assert path.stat().st_size > 4 << 30


@pytest.mark.parametrize("form", ["arrays", "file"])
def test_a_shard_of_four_gigabytes_needs_less_than_one_of_memory(form: str, tmp_path: Path) -> None:
    (arrays if form == "arrays" else shard_file)(tmp_path)
    (tmp_path / "big_task.py").write_text(TASK)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), form]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["does not fit", f"50 {SAMPLES} True True 5000"]

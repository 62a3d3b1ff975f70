"""The published image sets are loaded, split by rotation, and learned better than by chance.

Their folder is PEER_DATA_ROOT; default: ``data``, as in the commands in docs/.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.learner import TrainingPlan
from peer.learning.learner import TorchLearner
from peer.tasks.loading import load_task

pytestmark = pytest.mark.data
DATA_ROOT = Path(os.environ.get("PEER_DATA_ROOT", "data"))


@pytest.mark.parametrize(
    ("task", "options", "file", "counts", "classes"),
    [
        ("mnist", {}, "MNIST/raw/train-images-idx3-ubyte", (60_000, 10_000), 10),
        ("fmnist", {}, "FashionMNIST/raw/train-images-idx3-ubyte", (60_000, 10_000), 10),
        ("emnist", {"split": "letters"}, "EMNIST/raw/emnist-letters-train-images-idx3-ubyte", (124_800, 20_800), 26),
    ],
)
def test_a_few_steps_on_one_shard_beat_chance(task, options, file, counts, classes):
    if not (DATA_ROOT / file).is_file():
        pytest.skip(f"no {DATA_ROOT / file}: unpack {task} there, or set PEER_DATA_ROOT")
    split = {"k": 4, "samples_per_peer": 500, "test_per_peer": 200}
    manifest = Manifest(task=task, task_options=options, model="mlr", split="rotated_hard", split_options=split)
    loaded = load_task(manifest, 4, data_root=DATA_ROOT)
    pool = loaded._deal.pool
    assert (pool.train_count, len(pool.y) - pool.train_count) == counts
    assert loaded.classes == pool.classes == classes
    shards = [loaded.load_shard(i) for i in range(4)]
    assert [set(shard.turns.tolist()) for shard in shards] == [{0}, {1}, {2}, {3}]
    means = [shard.train_x.mean(0) for shard in shards]
    turned = [np.rot90(means[1], -1, axes=(-2, -1)), means[1]]
    assert np.abs(turned[0] - means[0]).mean() < np.abs(turned[1] - means[0]).mean()  # upright after turning back
    learner = TorchLearner(loaded, shards[1], batch_size=50)
    theta, _ = learner.train(learner.initial_model(0), TrainingPlan(epochs=60, unit="step", seed=0, learning_rate=0.1))
    assert learner.evaluate(theta).metric > 4 / classes

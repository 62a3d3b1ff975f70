"""Two half circles, rotated by another angle at every peer: the task of this package."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import make_moons
from torch import nn

from peer import Preprocessing, Shard, Task

SAMPLES = 200
TURN = 20.0  # degrees between two peers


class Moons(Task):
    """Classify points of two half circles. ``run.task_options.noise`` is their standard deviation."""

    classes = 2
    class_names = ("upper", "lower")
    preprocessing = Preprocessing()

    def __init__(self, noise: float = 0.1) -> None:
        self.noise = noise

    def make_model(self) -> nn.Module:
        """Return a network with one hidden layer."""
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, self.classes))

    def load_shard(self, peer_id: int) -> Shard:
        """Return points that are rotated by ``peer_id`` times `TURN` degrees."""
        x, y = make_moons(SAMPLES, noise=self.noise, random_state=peer_id)
        angle = np.deg2rad(TURN * peer_id)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        x, cut = (x @ turn).astype(np.float32), SAMPLES * 3 // 4
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])

"""Example task: a one-dimensional convolution classifies the state of a machine from 128 vibration readings of two axes.

Each peer measures a machine of one of two types. Their vibrations differ, so two cluster models fit better than one. The example
computes the readings from the peer id; replace `load_shard` by code that reads your own files.

    peer task check examples/sensor_task.py:task
    peer testbed --peers 6 --set run.task=examples/sensor_task.py:task
"""

from __future__ import annotations

import numpy as np
from torch import nn

from peer.tasks import Preprocessing, Shard, Task

STATES = ("idle", "running", "worn")
READINGS, AXES = 128, 2
TRAIN, VALIDATION, TEST = 120, 30, 60


class SensorTask(Task):
    """Task of vibration readings, float32 [n, 2, 128], in three states."""

    classes = len(STATES)
    class_names = STATES
    preprocessing = Preprocessing()  # readings are the inputs of the model, as they are

    def make_model(self) -> nn.Module:
        """Return a network of two convolutions over time and a linear layer, about 2,000 parameters."""
        return nn.Sequential(
            nn.Conv1d(AXES, 8, kernel_size=9, stride=2),
            nn.ReLU(),
            nn.Conv1d(8, 16, kernel_size=9, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(16 * 4, self.classes),
        )

    def load_shard(self, peer_id: int) -> Shard:
        """Return the readings of one machine; even and odd peers have different types of machine."""
        machine_type = peer_id % 2
        draw = np.random.default_rng(peer_id)
        x, y = readings(draw, machine_type, TRAIN + VALIDATION + TEST)
        cut = TRAIN + VALIDATION
        return Shard(
            train_x=x[:TRAIN],
            train_y=y[:TRAIN],
            val_x=x[TRAIN:cut],
            val_y=y[TRAIN:cut],
            test_x=x[cut:],
            test_y=y[cut:],
            true_cluster=np.full(TRAIN, machine_type),
        )


def readings(draw: np.random.Generator, machine_type: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return windows, float32 [count, 2, 128], and states, int64 [count]: a tone with a pitch by state and type."""
    states = draw.integers(0, len(STATES), count)
    pitch = np.array([[2.0, 9.0, 16.0], [9.0, 16.0, 2.0]])[machine_type][states]  # cycles per window
    time = np.linspace(0.0, 1.0, READINGS, endpoint=False)
    phase = draw.uniform(0.0, 2 * np.pi, (count, 1))
    hum = np.sin(2 * np.pi * pitch[:, None] * time + phase)
    window = np.stack([hum, np.roll(hum, 3, axis=1)], axis=1) + draw.normal(0.0, 0.5, (count, AXES, READINGS))
    return window.astype(np.float32), states.astype(np.int64)


task = SensorTask()

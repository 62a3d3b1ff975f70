"""The task: the rent of an apartment from area, rooms, year and distance to the center. Each site, a town, has a CSV table.

The metric is the mean absolute error in the table's currency.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from peer.tasks import Preprocessing, Shard, Task

FOLDER = Path(__file__).parent / "data"
INPUTS = ("area", "rooms", "year", "distance_km")
TARGET = "rent"
UNIT = 1000.0  # of the targets; a network learns numbers near 1 faster


class RentTask(Task):
    """Rents of one town, in thousands."""

    kind = "regression"
    metric_name = "mean_absolute_error"
    higher_is_better = False

    def make_model(self) -> nn.Module:
        """Return a network of one hidden layer."""
        return nn.Sequential(nn.Linear(len(INPUTS), 32), nn.ReLU(), nn.Linear(32, 1))

    def load_shard(self, peer_id: int) -> Shard:
        """Return the rows of one town, scaled by the training rows; the last fifth is the test set."""
        table = np.genfromtxt(FOLDER / f"site-{peer_id}.csv", delimiter=",", names=True)
        raw = np.stack([table[name] for name in INPUTS], axis=1)
        y = (table[TARGET] / UNIT).astype(np.float32)[:, None]
        cut = len(y) * 4 // 5
        scaling = Preprocessing.standardizing(raw[:cut], INPUTS)
        x = scaling.apply(raw)
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:], preprocessing=scaling)

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the mean absolute error in the table's currency."""
        return float((outputs - targets).abs().mean()) * UNIT


task = RentTask()

"""The task: the rent of an apartment, with a training loop of its own. Each site is a town with its own CSV table.

`train` is the loop, with its loaders and its optimizer. Between two calls the peers average the parameters of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from peer.tasks import Budget, Task, Trained

FOLDER = Path(__file__).parent / "data"
UNITS = np.array([100.0, 4.0, 100.0, 10.0, 1000.0])  # of area, rooms, year, distance and rent
YEAR = 1970.0


class OwnLoopTask(Task):
    """Rents of one town, in thousands."""

    kind = "regression"
    metric_name = "mean_absolute_error"
    higher_is_better = False

    def make_model(self) -> nn.Module:
        """Return a network of one hidden layer."""
        return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))

    def load_data(self, peer_id: int) -> dict[str, DataLoader[Any]]:
        """Return loaders of one town; the last fifth of the rows is the test set."""
        table = np.genfromtxt(FOLDER / f"site-{peer_id}.csv", delimiter=",", skip_header=1)
        rows = torch.tensor((table - [0.0, 0.0, YEAR, 0.0, 0.0]) / UNITS, dtype=torch.float32)
        samples, cut = TensorDataset(rows[:, :4], rows[:, 4:]), len(rows) * 4 // 5
        train, test = (torch.utils.data.Subset(samples, part) for part in (range(cut), range(cut, len(rows))))
        return {"train": DataLoader(train, batch_size=16, shuffle=True), "test": DataLoader(test, batch_size=64)}

    def train(self, model: nn.Module, data: dict[str, DataLoader[Any]], budget: Budget) -> Trained:
        """Train for the epochs of a round; the optimizer lasts over rounds and restarts."""
        optimizer = budget.keep("optimizer", lambda: torch.optim.AdamW(model.parameters(), budget.learning_rate))
        for _ in range(budget.epochs or 1):
            for x, y in data["train"]:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
        return Trained(loss=loss.item())

    def metric(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Return the mean absolute error in the table's currency."""
        return float((outputs - targets).abs().mean()) * float(UNITS[4])


task = OwnLoopTask()

"""What the systems of `benchmarks/rivals.py` have in common: the model, the data of a node, an epoch, and what a node tells.

Each system runs in an environment of its own, so nothing here imports this project. The folder of a run has `setting.json` and
`data.npz`; each node appends lines to `node-I.jsonl`: ``{"t", "kind", ...}``: "train" as it begins to train in a ``round``,
with the ``pid`` of the node; "trained" with ``train_s``; "round" at the end of one, with the ``accuracy`` on the test set.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Setting:
    """What all systems do equally: nodes, rounds, one epoch of SGD a round, a perceptron of these hidden layers."""

    nodes: int
    rounds: int
    hidden: list[int]
    inputs: int
    classes: int
    learning_rate: float
    batch_size: int
    seed: int

    @classmethod
    def read(cls, folder: Path) -> Setting:
        """Return the setting of a run."""
        return cls(**json.loads((folder / "setting.json").read_text()))

    def make_model(self) -> nn.Module:
        """Return the perceptron, with the same first parameters at every node."""
        torch.manual_seed(self.seed)
        sizes = [self.inputs, *self.hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], self.classes))

    def samples(self, folder: Path, node: int | None) -> tuple[Tensor, Tensor]:
        """Return inputs [n, inputs] float32 and labels [n] int64 of a node's training set; of None: of the test set."""
        with np.load(folder / "data.npz") as data:
            part = "test" if node is None else "train"
            mine = slice(None) if node is None else slice(node, None, self.nodes)
            return torch.from_numpy(data[f"{part}_x"][mine]), torch.from_numpy(data[f"{part}_y"][mine])

    def train_epoch(self, model: nn.Module, x: Tensor, y: Tensor) -> float:
        """Train one epoch of SGD in shuffled batches; return the mean loss."""
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        total = 0.0
        for batch in torch.randperm(len(x)).split(self.batch_size):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss) * len(batch)
        return total / len(x)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of correct labels."""
    with torch.inference_mode():
        return float((model(x).argmax(1) == y).double().mean())


class Teller:
    """The lines of one node."""

    def __init__(self, folder: Path, node: int) -> None:
        self.folder, self.node = folder, node
        self.path = folder / f"node-{node}.jsonl"
        self.test = Setting.read(folder).samples(folder, None)
        self.began = 0.0

    def training(self, round_index: int) -> None:
        """Note that training begins."""
        self.began = time.perf_counter()
        self._write({"kind": "train", "round": round_index, "pid": int(os.environ.get("RIVAL_PID", os.getpid()))})

    def trained(self) -> None:
        """Note that training has ended."""
        self._write({"kind": "trained", "train_s": time.perf_counter() - self.began})

    def round_ended(self, round_index: int, model: nn.Module) -> None:
        """Test the model, and note the end of a round."""
        self._write({"kind": "round", "round": round_index, "accuracy": accuracy(model, *self.test)})

    def _write(self, fields: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"t": time.time(), **fields}) + "\n")

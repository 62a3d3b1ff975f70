"""Tasks that wait in mid-training until their peer has been asked to leave; a test copies the file to a folder.

Where ``hold`` stands beside the file, with the path of the peer's log in it, the training of that peer waits in its fourth step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import peer

HERE = Path(__file__).parent
STEP, PATIENCE_S = 4, 60.0


class Held(peer.Task):
    """The built-in loop."""

    classes = 3

    def __init__(self) -> None:
        self.peer_id, self.steps = -1, 0

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def load_shard(self, peer_id: int) -> peer.Shard:
        self.peer_id, self.steps = peer_id, 0
        x = np.random.default_rng(peer_id).normal(size=(60, 4)).astype(np.float32)
        y = (x @ np.arange(12).reshape(4, 3)).argmax(1)
        return peer.Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad:
            self.step()
        return super().loss(outputs, targets)

    def step(self) -> None:
        self.steps += 1
        hold = HERE / "hold"
        if self.steps < STEP or not hold.exists():
            return
        log = Path(hold.read_text())
        if log.parent.name != f"peer-{self.peer_id}":
            return
        (HERE / "held").touch()
        end = time.monotonic() + PATIENCE_S
        while "asked to stop" not in log.read_text():
            assert time.monotonic() < end, "nobody asked the peer to stop"
            time.sleep(0.01)


class HeldLoop(Held):
    """An own loop."""

    def load_data(self, peer_id: int) -> Any:
        shard = self.load_shard(peer_id)
        return {part: [torch.from_numpy(a) for a in shard.part(part)] for part in ("train", "test")}

    def count(self, data: Any) -> int:
        return len(data["train"][0])

    def train(self, model: nn.Module, data: Any, budget: peer.Budget) -> peer.Trained:
        optimizer = budget.keep("optimizer", lambda: torch.optim.AdamW(model.parameters(), budget.learning_rate))
        (x, y), loss = data["train"], torch.zeros(())
        for _ in budget.resumable(range(budget.epochs or 0)):
            for batch in budget.resumable(torch.randperm(len(x)).split(8)):
                optimizer.zero_grad()
                loss = self.loss(model(x[batch]), y[batch]).mean()
                loss.backward()
                optimizer.step()
        return peer.Trained(loss=float(loss.detach()))

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        x, y = data["test"]
        return {"accuracy": float((model(x).argmax(1) == y).float().mean())}


built_in, own = Held(), HeldLoop()

"""A site with a training script of its own, which joins a federation: ``python own_loop_site.py GRAPH ID STATE``.

The same loop as the task `Site`, which `peer run` and `peer.simulate` call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peer

SAMPLES, TEST = 40, 20


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def loaders(site: int) -> dict[str, DataLoader[Any]]:
    draw = torch.Generator().manual_seed(site)
    x = torch.randn(SAMPLES + TEST, 4, generator=draw)
    y = (x @ torch.arange(12.0).reshape(4, 3)).argmax(1)
    train, test = TensorDataset(x[:SAMPLES], y[:SAMPLES]), TensorDataset(x[SAMPLES:], y[SAMPLES:])
    return {"train": DataLoader(train, batch_size=16, shuffle=True), "test": DataLoader(test, batch_size=16)}


def train_one_epoch(model: nn.Module, loader: Any, optimizer: Any, scheduler: Any, should_stop: Any) -> Tensor:
    model.train()
    total = torch.zeros(())
    for x, y in loader:
        if should_stop():
            break
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    scheduler.step()
    return total / len(loader)


def accuracy(model: nn.Module, loader: Any) -> float:
    right = [(model(x).argmax(1) == y).float() for x, y in loader]
    return float(torch.cat(right).mean())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01)


def scheduler_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


class Site(peer.Task):
    """The hook with the same loop."""

    classes = 3

    def make_model(self) -> nn.Module:
        return make_model()

    def load_data(self, peer_id: int) -> Any:
        return loaders(peer_id)

    def train(self, model: nn.Module, data: Any, budget: peer.Budget) -> peer.Trained:
        optimizer = budget.keep("optimizer", lambda: optimizer_of(model))
        scheduler = budget.keep("scheduler", lambda: scheduler_of(optimizer))
        loss = torch.zeros(())
        for _ in range(budget.epochs or 0):
            loss = train_one_epoch(model, data["train"], optimizer, scheduler, budget.should_stop)
        return peer.Trained(loss=float(loss), samples=SAMPLES * (budget.epochs or 0))

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        return {"accuracy": accuracy(model, data["test"])}


def main(graph: str, site: int, state: str) -> None:
    """Join, and train as a script of one's own does."""
    data = loaders(site)
    model = make_model()
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer)
    federation = peer.join(
        graph,
        site,
        model=model,
        make_model=make_model,
        evaluate=lambda net: accuracy(net, data["test"]),
        samples=SAMPLES,
        keep={"optimizer": optimizer, "scheduler": scheduler},
        state_dir=state,
        insecure=True,
        log="info",
    )
    with federation:
        for round in federation:
            loss = torch.zeros(())
            for _ in range(round.epochs or 0):
                loss = train_one_epoch(model, data["train"], optimizer, scheduler, round.should_stop)
            round.report(loss=float(loss), samples=SAMPLES * (round.epochs or 0))
    print("accuracy", accuracy(model.eval(), data["test"]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

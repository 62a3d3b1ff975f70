"""The site of `own_loop_site.py` with resumable loops: ``python own_loop_inside.py GRAPH ID STATE``; ``task`` is the hook."""

from __future__ import annotations

import sys
from typing import Any

import torch
from own_loop_site import SAMPLES, Site, accuracy, loaders, make_model, optimizer_of, scheduler_of
from torch import Tensor, nn

import peer


def train(model: nn.Module, loader: Any, optimizer: Any, scheduler: Any, budget: peer.Budget) -> Tensor:
    model.train()
    total = torch.zeros(())
    for _ in budget.resumable(range(budget.epochs or 0)):
        for x, y in budget.resumable(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        scheduler.step()
    return total


class Inside(Site):
    def train(self, model: nn.Module, data: Any, budget: peer.Budget) -> peer.Trained:
        optimizer = budget.keep("optimizer", lambda: optimizer_of(model))
        scheduler = budget.keep("scheduler", lambda: scheduler_of(optimizer))
        return peer.Trained(loss=float(train(model, data["train"], optimizer, scheduler, budget)))


task = Inside()


def main(graph: str, site: int, state: str) -> None:
    data = loaders(site)
    model = make_model()
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer)
    keep = {"optimizer": optimizer, "scheduler": scheduler}
    options: Any = {"state_dir": state, "insecure": True, "log": "info", "checkpoint_minutes": 0}
    with peer.join(
        graph,
        site,
        model=model,
        make_model=make_model,
        evaluate=lambda net: accuracy(net, data["test"]),
        samples=SAMPLES,
        keep=keep,
        **options,
    ) as federation:
        for round in federation:
            round.report(loss=float(train(model, data["train"], optimizer, scheduler, round)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

"""A site that trains with two processes: ``torchrun --nproc-per-node 2 own_loop_ranks.py GRAPH ID STATE``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from own_loop_site import SAMPLES, accuracy, loaders, make_model, optimizer_of, scheduler_of, train_one_epoch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import peer


def main(graph: str, site: int, state: str) -> None:
    """Join at rank 0, and follow at rank 1."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    data = loaders(site)
    sampler = DistributedSampler(data["train"].dataset, seed=site)
    loader = DataLoader(data["train"].dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(make_model())
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer)
    steps = []
    with peer.join(
        graph,
        site,
        model=model,
        make_model=make_model,
        evaluate=lambda net: accuracy(net, data["test"]),
        samples=SAMPLES,
        keep={"optimizer": optimizer, "scheduler": scheduler},
        state_dir=state,
        insecure=True,
    ) as federation:
        for round in federation:
            steps.append(round.round)
            for epoch in range(round.epochs or 0):
                sampler.set_epoch(round.round * (round.epochs or 0) + epoch)
                train_one_epoch(model, loader, optimizer, scheduler, round.should_stop)
    values = torch.cat([tensor.flatten() for tensor in model.module.state_dict().values()])
    Path(f"{state}-rank-{rank}.txt").write_text(f"{steps} {float(values.double().sum())!r}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

"""A site that trains with accelerate: ``torchrun --nproc-per-node 2 own_loop_accelerate.py GRAPH ID STATE``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from own_loop_site import SAMPLES, accuracy, loaders, make_model, optimizer_of
from torch import nn

import peer


def main(graph: str, site: int, state: str) -> None:
    """Join in every process; accelerate shares the batches out, and averages the gradients."""
    seedable = DataLoaderConfiguration(
        use_seedable_sampler=True, data_seed=site
    )  # an order by epoch, not by what was before
    accelerator = Accelerator(cpu=True, dataloader_config=seedable)
    data, plain = loaders(site), make_model()
    model, optimizer, loader = accelerator.prepare(plain, optimizer_of(plain), data["train"])
    rounds = []
    with peer.join(
        graph,
        site,
        model=model,
        make_model=make_model,
        evaluate=lambda net: accuracy(net, data["test"]),
        samples=SAMPLES,
        keep={"optimizer": optimizer},
        state_dir=state,
        insecure=True,
    ) as federation:
        for round in federation:
            rounds.append(round.round)
            for epoch in range(round.epochs or 0):
                loader.set_epoch(round.round * (round.epochs or 0) + epoch)
                for x, y in loader:
                    if round.should_stop():
                        break
                    optimizer.zero_grad()
                    accelerator.backward(nn.functional.cross_entropy(model(x), y))
                    optimizer.step()
    values = torch.cat([tensor.flatten() for tensor in accelerator.unwrap_model(model).state_dict().values()])
    found = f"{accelerator.num_processes} {rounds} {float(values.double().sum())!r}\n"
    Path(f"{state}-rank-{accelerator.process_index}.txt").write_text(found)
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

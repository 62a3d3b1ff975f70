"""A site of two processes whose loop ends early: ``own_loop_ranks_end.py HOME RANK HOW``.

HOW is "break", at both ranks, or "error", at rank 0, while rank 1 waits for it in its backward pass.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
from own_loop_site import make_model
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import peer
from peer.api import ranks

FEATURES = next(make_model().parameters()).shape[1]
LAST = 2


def main(home: Path, rank: int, how: str) -> None:
    """Train two rounds, and end in the third; write the sum of the model's values."""
    distributed.init_process_group("gloo", init_method=f"file://{home}/group", rank=rank, world_size=2)
    ranks.FAILED_TIMEOUT = timedelta(seconds=0.2)
    run = {"algorithm": "local", "rounds": LAST + 2, "start": {"deadline_s": 0.1}}
    graph = peer.Graph.make("line", peers=2, run=run)
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = {"evaluate": lambda net: 0.5, "samples": 8, "state_dir": home / "peer-0", "insecure": True}
    with peer.join(graph, 0, model=model, **given) as federation:
        for round in federation:
            if round.round == LAST and how == "break":
                break
            if round.round == LAST and rank == 0:
                raise ValueError("a bug of the program")
            optimizer.zero_grad()
            model(torch.ones(8, FEATURES)).square().mean().backward()
            optimizer.step()
    total = float(sum(tensor.detach().double().sum() for tensor in model.parameters()))
    (home / f"rank-{rank}.txt").write_text(f"{total!r}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

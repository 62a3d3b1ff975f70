"""The digest of what a model needs beside its vector: tensors that are neither trained nor sent; every peer makes its own.

These are parameters without a gradient (the base under LoRA adapters), integer buffers, and buffers that are not in the
`state_dict` (tables of positions). The statistics of BatchNorm are in the vector, so they are not among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch
import xxhash
from torch import Tensor, nn


def frozen_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of all that a model vector of the module lacks, in the module's order."""
    persistent = module.state_dict(keep_vars=True).keys()
    yield from ((name, p) for name, p in module.named_parameters() if not p.requires_grad)
    yield from ((name, b) for name, b in module.named_buffers() if not (name in persistent and b.is_floating_point()))


def frozen_digest(module: nn.Module) -> str:
    """Return XXH3-128 (hex) of names, dtypes, shapes and bytes of the frozen tensors; "" where there are none.

    It shows a difference by mistake. A peer that lies about its weights can as well lie about their digest.
    """
    state, found = xxhash.xxh3_128(), False
    for name, tensor in frozen_tensors(module):
        found = True
        state.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        state.update(values.view(torch.uint8).numpy().data if len(values) else b"")
    return state.hexdigest() if found else ""

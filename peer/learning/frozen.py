"""The digest of what a model needs beside its vector: tensors that are neither trained nor sent; every peer makes its own.

These are parameters without a gradient (the base under LoRA adapters), integer buffers, constants such as a causal mask, and
buffers that are not in the `state_dict` (tables of positions). The statistics of BatchNorm are in the vector, so they are not
among them, and neither is what training moves (`peer.learning.tensors`).
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator

import torch
import xxhash
from torch import Tensor, nn


def frozen_tensors(module: nn.Module, carried: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of all that a model vector with the tensors ``carried`` lacks, in the module's order."""
    yield from ((name, p) for name, p in module.named_parameters() if not p.requires_grad and name not in carried)
    yield from ((name, b) for name, b in module.named_buffers() if name not in carried)


def frozen_digest(module: nn.Module, carried: Container[str] = ()) -> str:
    """Return XXH3-128 (hex) of names, dtypes, shapes and bytes of the frozen tensors; "" where there are none.

    It shows a difference by mistake. A peer that lies about its weights can as well lie about their digest.
    """
    state, any_tensor = xxhash.xxh3_128(), False
    for name, tensor in frozen_tensors(module, carried):
        any_tensor = True
        state.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        state.update(_bytes_of(tensor))
    return state.hexdigest() if any_tensor else ""


def digest_of(tensor: Tensor) -> str:
    """Return XXH3-128 (hex) of the bytes of a tensor of any dtype."""
    return xxhash.xxh3_128_hexdigest(_bytes_of(tensor))


def _bytes_of(tensor: Tensor) -> memoryview | bytes:
    values = tensor.detach().cpu().contiguous().reshape(-1)
    return values.view(torch.uint8).numpy().data if len(values) else b""

"""The state of a PyTorch optimizer as flat arrays, to continue with it in the next round, also after a restart.

A value that has its parameter's shape (a momentum buffer) is flat over all parameters, in their order; a value with one element
(Adam's count of steps) has one element for each parameter. A parameter without a value, such as one that never had a gradient,
has zeros: SGD and Adam start from them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from coordinator_free_bootstrap.errors import TaskError
from peer.core.averaging import Vector
from peer.learning.sgd import Optimizer


def state_of(optimizer: Optimizer, parameters: list[Tensor]) -> dict[str, Vector]:
    """Return the optimizer's state: name of a value -> float32 [sum of sizes] or [number of parameters]."""
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    names = sorted({name for state in states for name, value in state.items() if isinstance(value, Tensor)})
    flat = {}
    for name in names:
        scalar = any(name in state and state[name].dim() == 0 for state in states)
        parts = []
        for parameter, state in zip(parameters, states, strict=True):
            value = state.get(name)
            size = 1 if scalar else parameter.numel()
            parts.append(np.zeros(size, np.float32) if value is None else value.float().reshape(-1).cpu().numpy())
        flat[name] = np.concatenate(parts)
    return flat


def restore(optimizer: Optimizer, parameters: list[Tensor], kept: Mapping[str, Vector]) -> None:
    """Give an optimizer without state the values that `state_of` returned for the same parameters.

    Raises:
        TaskError: the values are of other parameters.
    """
    sizes = [parameter.numel() for parameter in parameters]
    for name, values in kept.items():
        scalar = len(values) == len(parameters) and len(values) != sum(sizes)
        lengths = [1] * len(parameters) if scalar else sizes
        if len(values) != sum(lengths):
            raise TaskError(
                f"optimizer state {name!r}: expected {sum(sizes)} or {len(sizes)} values, got {len(values)}"
            )
        parts = np.split(values, np.cumsum(lengths)[:-1])
        for parameter, part in zip(parameters, parts, strict=True):
            tensor = torch.from_numpy(part.copy()).to(parameter.device)
            optimizer.state[parameter][name] = tensor.reshape(()) if scalar else tensor.reshape(parameter.shape)

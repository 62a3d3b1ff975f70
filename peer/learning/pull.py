"""The proximal term of a training, as a part of its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pull(parameters: Sequence[Tensor], centers: Sequence[Tensor], strength: float) -> None:
    """Add strength * (theta - center) to the gradients (FedSoft, arXiv:2112.06053, Eq. 5 with its centers averaged)."""
    with torch.no_grad():
        for parameter, center in zip(parameters, centers, strict=True):
            if not parameter.requires_grad:
                continue
            if parameter.grad is not None and parameter.grad.is_sparse:  # of an embedding
                parameter.grad = parameter.grad.to_dense()
            term = (parameter - center).mul_(strength)
            parameter.grad = term if parameter.grad is None else parameter.grad.add_(term)

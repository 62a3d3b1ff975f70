"""Stochastic gradient descent without `torch.optim`, whose first optimizer imports torch._dynamo and sympy (1.3 s, 84 MB).

The step is the operator that ``torch.optim.SGD(fused=True)`` calls: one pass over parameter, gradient and momentum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    """The part of `torch.optim.Optimizer` that a training calls."""

    state: Any  # parameter -> name -> value, as in torch

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""

    def step(self) -> object:
        """Change the parameters by their gradients."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any) -> object:
        """Take a state."""


class SGD:
    """The values of ``torch.optim.SGD(fused=True)`` bit for bit: momentum with dampening 0, weight decay in the gradient.

    Args:
        parameters: tensors of one floating dtype and device; one without a gradient is left as it is.
        rate: learning rate.
        momentum: 0 keeps no buffers; else each buffer starts as the first gradient.
        weight_decay: times the parameter, added to the gradient.
    """

    def __init__(
        self, parameters: Sequence[Tensor], rate: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.parameters = list(parameters)
        self.rate, self.momentum, self.weight_decay = rate, momentum, weight_decay
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)  # buffers are made with the first gradient

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients: the next backward pass makes new ones, or adds to zeros."""
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def state_dict(self) -> dict[int, dict[str, Tensor]]:
        """Return the buffers by the number of their parameter."""
        return {number: self.state[p] for number, p in enumerate(self.parameters) if p in self.state}

    def load_state_dict(self, state: dict[int, dict[str, Tensor]]) -> None:
        """Take what `state_dict` returned; copied."""
        for number, values in state.items():
            parameter = self.parameters[number]
            self.state[parameter] = {name: value.to(parameter.device, copy=True) for name, value in values.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters in place: buffer = momentum * buffer + gradient; parameter -= rate * buffer."""
        due = [parameter for parameter in self.parameters if parameter.grad is not None and not self._sparse(parameter)]
        self._apply([parameter for parameter in due if "momentum_buffer" in self.state[parameter]], first=False)
        self._apply([parameter for parameter in due if "momentum_buffer" not in self.state[parameter]], first=True)

    def _sparse(self, parameter: Tensor) -> bool:
        """Take the step of a parameter with a sparse gradient, as torch does; with momentum or decay its gradient gets dense."""
        gradient = parameter.grad
        if gradient is None or not gradient.is_sparse:
            return False
        if self.momentum or self.weight_decay:
            parameter.grad = gradient.to_dense()
            return False
        parameter.add_(gradient, alpha=-self.rate)
        return True

    def _apply(self, parameters: list[Tensor], first: bool) -> None:
        if not parameters:
            return
        if first and self.momentum:
            for parameter in parameters:
                self.state[parameter]["momentum_buffer"] = torch.empty_like(parameter)
        torch._fused_sgd_(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self.state[parameter]["momentum_buffer"] for parameter in parameters] if self.momentum else [],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=first,
        )

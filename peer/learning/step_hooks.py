"""What an algorithm does at each optimizer step of an own loop, by torch's hooks of optimizers, so that the loop is unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


@contextmanager
def step_hooks(
    parameters: Sequence[Tensor], before: Callable[[float], None] | None, after: Callable[[], None]
) -> Iterator[None]:
    """Call ``before`` and ``after`` around each step of an optimizer that has one of the parameters, while the block runs.

    Args:
        parameters: of the model.
        before: called when the gradients are complete, with the factor by which a scaler has multiplied them; None: nothing.
        after: called after the step.
    """
    ours = {id(parameter) for parameter in parameters}

    def is_ours(optimizer: Optimizer) -> bool:
        return any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"])

    def on_begin(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if before is None or not is_ours(optimizer):
            return None
        scale = getattr(optimizer, "grad_scale", None)  # of a fused optimizer, which unscales the gradients in its step
        factor = 1.0 if scale is None else float(scale)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            before(factor)
            return None

        def complete() -> Any:  # a closure computes the gradients inside of the step
            with torch.enable_grad():
                loss = closure()
            before(factor)
            return loss

        return ((args[0], complete, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": complete})

    def on_end(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_ours(optimizer):
            after()

    handles = [register_optimizer_step_pre_hook(on_begin), register_optimizer_step_post_hook(on_end)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

"""The form of a model's outputs: one tensor with one row for each sample of the batch, and the line of code that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.strict_json import of_type
from coordinator_free_bootstrap.validation import counted
from peer.learning.samples import Batch, call
from peer.tasks.arrays import by_name, each
from peer.tasks.task import Task
from peer.tasks.user_code import line_of, present_line


def rows_of(inputs: Batch) -> int:
    """Return the number of samples of a batch."""
    return len(next(iter(by_name(inputs).values())))


def check_form(module: nn.Module, inputs: Batch, outputs: object) -> None:
    """Check what a model returned for a batch.

    Raises:
        TaskError: it is no tensor, or has not one row for each sample; the message has the line of the model's code.
    """
    rows = rows_of(inputs)
    if isinstance(outputs, Tensor) and outputs.shape[:1] == (rows,):
        return
    expected = f"expected one tensor [{rows}, ...], a row for each sample"
    if isinstance(outputs, Tensor):
        lost = ". A .squeeze() without an axis drops that of the samples too: give it one, as in .squeeze(-1)." * (
            rows == 1
        )
        where = _lost_axis(module, inputs) if rows == 1 else line_of(type(module).forward)
        actual = f"outputs of shape {list(outputs.shape)}"
    else:
        lost, where = ". Return the outputs alone: the task's loss computes the loss.", line_of(type(module).forward)
        names = f" with {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
        actual = f"{of_type(outputs)}{names}"
    raise TaskError(f"model: {expected}, got {actual} for a batch of {counted(rows, 'sample')}{where}{lost}")


def check_pairs(task: Task, outputs: Tensor, targets: Tensor) -> None:
    """Check that loss and metric compare each output with its own target: [n, 1] and [n] broadcast to [n, n] without a word.

    Raises:
        TaskError: they give other numbers once the outputs have the shape of the targets.
    """
    if [n for n in outputs.shape if n != 1] != [n for n in targets.shape if n != 1] or outputs.shape == targets.shape:
        return
    first = torch.linspace(0.1, 0.9, targets.numel(), device=targets.device).reshape(targets.shape)
    second = first.flip(0).to(targets.dtype)
    for name in ("loss", "score", "metric"):
        measure = getattr(task, name)
        try:
            given = torch.as_tensor(measure(first.reshape(outputs.shape), second))
            same = _paired(measure, first.reshape(outputs.shape), first, second)
        except Exception:  # code of the user, which may refuse invented numbers
            continue
        if same is not None and (given.shape != same.shape or not torch.allclose(given.float(), same.float())):
            raise TaskError(
                f"{name}: expected outputs of the targets' shape {list(targets.shape)}, got {list(outputs.shape)}, which "
                "broadcast: each output is compared with every target. Let the model return "
                f"{list(targets.shape)}, as outputs.squeeze(-1) does{line_of(measure)}."
            )


def _paired(measure: Callable[..., Any], outputs: Tensor, shaped: Tensor, targets: Tensor) -> Tensor | None:
    """Return what is measured where each output meets its own target: of outputs shaped as the targets, else sample by sample."""
    try:
        return torch.as_tensor(measure(shaped, targets))
    except Exception:  # code of the user, which may need the other shape
        each_alone = [torch.as_tensor(measure(outputs[i : i + 1], targets[i : i + 1])) for i in range(len(targets))]
        return torch.cat(each_alone) if each_alone[0].dim() else None


class _Shapes(TorchFunctionMode):
    """Records name, shape and line of each operation that a user's code calls."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, str]] = []

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.rows.append((getattr(func, "__name__", ""), result.dim(), present_line()))
        return result


def _lost_axis(module: nn.Module, inputs: Batch) -> str:
    """Return the first line whose result has other axes for one sample than for two, as " (file, line 3)"; or that of forward."""
    twice = each(lambda tensor: torch.cat([tensor, tensor]), inputs)
    traces: list[list[tuple[str, int, str]]] = []
    training = module.training
    try:
        module.eval()
        for batch in (inputs, twice):
            with torch.no_grad(), _Shapes() as shapes:
                call(module, batch)
            traces.append(shapes.rows)
    except Exception:  # code of the user; the line is only a help
        traces = [[], []]
    finally:
        module.train(training)
    for one, two in zip(traces[0], traces[1], strict=False):
        if one[0] == two[0] and one[1] != two[1] and one[2]:
            return one[2]
    return line_of(type(module).forward)

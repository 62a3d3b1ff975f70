"""Which tensors of a module are in its model vector, and which stay as `make_model` gives them.

In the vector, in this order: trainable parameters; persistent float32 buffers; and what forward moves besides (`movable`): the
weights of a teacher that follows its student, a counter, a buffer of another dtype. A *constant* stays outside: a buffer of -inf
or of values whose square overflows float32, such as a causal mask, cannot be averaged and must not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coordinator_free_bootstrap.errors import TaskError
from peer.core.schema import Role, TensorSpec

CONSTANT_ABOVE = 1e15  # of a buffer: the squares of larger values soon overflow the norm of a model, float32
_NORMS = nn.modules.batchnorm._NormBase


@dataclass(frozen=True)
class Place:
    """A tensor of a module by its owner and name, since forward may put another tensor there."""

    spec: TensorSpec
    owner: nn.Module
    leaf: str
    cast: bool  # not float32: it cannot be a view of the vector, so values are copied

    def tensor(self) -> Tensor | None:
        """Return what is there now."""
        return self.owner._parameters.get(self.leaf, self.owner._buffers.get(self.leaf))


def places_of(module: nn.Module, moved: frozenset[str] = frozenset()) -> list[Place]:
    """Return the tensors of a model vector in its order.

    Args:
        module: as `make_model` returns it.
        moved: the names of `movable` tensors that are in the vector too.

    Raises:
        TaskError: a trainable parameter is not float32, or there is none; a moved tensor is complex or not finite.
    """
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trained:
        raise TaskError("make_model: expected one or more trainable parameters, got none")
    for name, parameter in trained:
        if parameter.is_complex():
            raise TaskError(
                f"make_model: {name}: expected float32, got {parameter.dtype}. Keep real and imaginary part as a "
                "float32 parameter [..., 2], and use torch.view_as_complex in forward."
            )
        if parameter.dtype != torch.float32:
            raise TaskError(f"make_model: {name}: expected float32, got {parameter.dtype}. Call .float() on the model.")
    persistent = module.state_dict(keep_vars=True).keys()
    kept = [(n, b) for n, b in module.named_buffers() if n in persistent and (n in moved or _averaged(b))]
    frozen = [(n, p) for n, p in module.named_parameters() if n in moved and not p.requires_grad]
    for name, tensor in [*kept, *frozen]:
        if name in moved:
            _check_moved(name, tensor)
    parameters = [_place(module, name, tensor, "parameter") for name, tensor in trained]
    return parameters + [_place(module, name, tensor, "buffer") for name, tensor in [*kept, *frozen]]


def movable(module: nn.Module) -> list[Place]:
    """Return the tensors of the `state_dict` that are outside of the vector, and that forward may yet move.

    The count of batches of BatchNorm moves always. It matters, and is returned, only where ``momentum=None`` averages by it.
    """
    persistent = module.state_dict(keep_vars=True).keys()
    counts = {
        f"{name}.num_batches_tracked".lstrip(".")
        for name, part in module.named_modules()
        if isinstance(part, _NORMS) and part.momentum is not None
    }
    constants: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    constants |= {n: b for n, b in module.named_buffers() if n in persistent and n not in counts and not _averaged(b)}
    return [_place(module, name, tensor, "buffer") for name, tensor in constants.items()]


def variances(module: nn.Module) -> frozenset[str]:
    """Return the names of tensors that are never negative: the running variances of normalizing layers."""
    return frozenset(
        f"{name}.running_var".lstrip(".") for name, part in module.named_modules() if isinstance(part, _NORMS)
    )


def norm_statistics(module: nn.Module) -> Iterator[str]:
    """Yield the names of the running means and variances of normalizing layers."""
    for name, part in module.named_modules():
        if isinstance(part, _NORMS):
            yield from (f"{name}.{leaf}".lstrip(".") for leaf in ("running_mean", "running_var"))


def _averaged(buffer: Tensor) -> bool:
    return buffer.dtype == torch.float32 and (not buffer.numel() or float(buffer.detach().abs().max()) < CONSTANT_ABOVE)


def _check_moved(name: str, tensor: Tensor) -> None:
    if tensor.is_complex():
        raise TaskError(
            f"make_model: {name}: expected real numbers in a tensor that training changes, got {tensor.dtype}. Keep real and "
            "imaginary part as float32 [..., 2], and use torch.view_as_complex in forward."
        )
    if tensor.is_floating_point() and not _averaged(tensor.detach().float()):
        raise TaskError(
            f"make_model: {name}: expected finite values up to {CONSTANT_ABOVE:g} in a tensor that training changes, since "
            "models are averaged, got others. Initialize it with ordinary numbers, such as those of a first batch."
        )


def _place(module: nn.Module, name: str, tensor: Tensor, role: Role) -> Place:
    path, _, leaf = name.rpartition(".")
    spec = TensorSpec(name, tuple(tensor.shape), role)
    return Place(spec, module.get_submodule(path), leaf, tensor.dtype != torch.float32)

"""A PyTorch module whose tensors are views of one flat float32 buffer, so that loading a model is one memory copy.

Order of the vector (`peer.core.schema`): all trainable parameters, then all persistent floating-point buffers
(BatchNorm statistics). Integer buffers (``num_batches_tracked``) are not in the vector and are never averaged. They get
their initial values before each training, so that training depends on the model vector only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coordinator_free_bootstrap.errors import TaskError
from peer.core.schema import Schema, TensorSpec
from peer.learning.frozen import frozen_digest
from peer.tasks.user_code import GENERATORS

Vector = NDArray[np.float32]


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators for one block, then restore their state; of several threads, one at a time.

    The generators belong to the process: two peers in one process would draw from each other's seeds.
    ``torch.manual_seed`` is not used: without an initialized GPU, each of its calls adds to a queue.
    """
    generators = [torch.default_generator]
    if device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[device.index or 0])
    with GENERATORS:
        states = [g.get_state() for g in generators]
        for g in generators:
            g.manual_seed(seed)
        try:
            yield
        finally:
            for g, state in zip(generators, states, strict=True):
                g.set_state(state)


def model_tensors(module: nn.Module) -> list[tuple[TensorSpec, Tensor]]:
    """Return the tensors of a model vector in schema order.

    Raises:
        TaskError: a parameter or floating-point buffer is not float32, or there is no trainable parameter.
    """
    persistent = module.state_dict(keep_vars=True).keys()
    found: list[tuple[str, Tensor, str]] = [
        (name, p, "parameter") for name, p in module.named_parameters() if p.requires_grad
    ]
    if not found:
        raise TaskError("make_model: found a model without trainable parameters; allowed: one or more")
    found += [(name, b, "buffer") for name, b in module.named_buffers() if name in persistent and b.is_floating_point()]
    for name, tensor, _ in found:
        if tensor.dtype != torch.float32:
            raise TaskError(f"make_model: {name}: found {tensor.dtype}; allowed: float32; call .float() on the model")
    return [(TensorSpec(name, tuple(t.shape), role), t) for name, t, role in found]  # type: ignore[arg-type]


class FlatModule:
    """One module, its schema, and the flat buffer behind its tensors."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        tensors = model_tensors(self.module)
        self.schema = Schema(tuple(spec for spec, _ in tensors))
        self.parameters = [t for spec, t in tensors if spec.role == "parameter"]
        self.has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())
        # On a CPU, the host buffer is the buffer; on a GPU, vectors pass through it between NumPy and the device.
        self._host = torch.empty(self.schema.size, dtype=torch.float32, pin_memory=device.type == "cuda")
        self._flat = self._host if device.type == "cpu" else torch.empty_like(self._host, device=device)
        self._numpy: Vector = self._host.numpy()
        for (_, place), (_, tensor) in zip(self.schema.slices(), tensors, strict=True):
            view = self._flat[place].view(tensor.shape)
            view.copy_(tensor.data)
            tensor.data = view
        self._integers = [(b, b.clone()) for b in self.module.buffers() if not b.is_floating_point()]

    @cached_property
    def frozen_digest(self) -> str:
        """`peer.learning.frozen.frozen_digest` of the module, as it is at the first call."""
        return frozen_digest(self.module)

    def load(self, theta: Vector) -> None:
        """Copy a model vector, float32 [d], into the module.

        Raises:
            TaskError: the vector has a wrong size or dtype.
        """
        if theta.dtype != np.float32 or theta.shape != (self.schema.size,):
            raise TaskError(f"model vector: found {theta.dtype} {theta.shape}; allowed: float32 ({self.schema.size},)")
        np.copyto(self._numpy, theta)
        if self._flat is not self._host:
            self._flat.copy_(self._host)

    def store(self) -> Vector:
        """Return the vector of the module as a new array, float32 [d]."""
        if self._flat is not self._host:
            self._host.copy_(self._flat)
        return self._numpy.copy()

    def restrict(self, only: frozenset[str] | None) -> list[Tensor]:
        """Let only the named parameters have gradients, or all of them (None), and return those that have.

        Raises:
            TaskError: a name is that of no parameter.
        """
        names = [spec.name for spec in self.schema.tensors if spec.role == "parameter"]
        if only is not None and (unknown := only - set(names)):
            raise TaskError(f"parameters to train: found {sorted(unknown)}; allowed: {names}")
        for name, parameter in zip(names, self.parameters, strict=True):
            parameter.requires_grad_(only is None or name in only)
        return [parameter for parameter in self.parameters if parameter.requires_grad]

    def reset_integers(self) -> None:
        """Reset integer buffers to their initial values."""
        for buffer, initial in self._integers:
            buffer.copy_(initial)

    def views(self, theta: Vector) -> list[Tensor]:
        """Return the parameters of a vector as tensors on the device of the module; copied."""
        flat = torch.tensor(theta, device=self._flat.device)
        return [flat[place].view(spec.shape) for spec, place in self.schema.slices() if spec.role == "parameter"]

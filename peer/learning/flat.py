"""A PyTorch module whose tensors are views of one flat float32 buffer, so that loading a model is one memory copy.

`peer.learning.tensors` says what is in the vector. Other integer buffers (``num_batches_tracked``) are never averaged. They
get their initial values before each training, so that training depends on the model vector only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coordinator_free_bootstrap.errors import TaskError
from peer.core.averaging import Vector
from peer.core.schema import Schema
from peer.learning.frozen import digest_of, frozen_digest
from peer.learning.tensors import Place, movable, norm_statistics, places_of, variances
from peer.tasks.user_code import GENERATORS

WATCHED_BYTES_MAX = 256 << 20  # a digest of this size takes about 0.1 s


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators for one block, then restore their state; of several threads, one at a time.

    The generators belong to the process: two peers in one process would draw from each other's seeds.
    ``torch.manual_seed`` is not used: without an initialized GPU, each of its calls adds to a queue.
    """
    generators = generators_of(device)
    with GENERATORS:
        states = [g.get_state() for g in generators]
        for g in generators:
            g.manual_seed(seed)
        try:
            yield
        finally:
            for g, state in zip(generators, states, strict=True):
                g.set_state(state)


def generators_of(device: torch.device) -> list[torch.Generator]:
    """Return torch's generators that code on a device draws from."""
    generators = [torch.default_generator]
    if device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[device.index or 0])
    return generators


class FlatModule:
    """One module, its schema, and the flat buffer behind its tensors.

    Args:
        module: fresh from `make_model`.
        device: of all its tensors.
        moved: names of tensors that are in the vector because training moves them, see `peer.learning.tensors`.
    """

    def __init__(self, module: nn.Module, device: torch.device, moved: frozenset[str] = frozenset()) -> None:
        self.module = module.to(device)
        self.moved = moved
        self._places = places_of(self.module, moved)
        self.schema = Schema(tuple(place.spec for place in self._places))
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())
        self.constants = [place for place in movable(self.module) if place.spec.name not in moved]
        self._watched: dict[str, str] = {}
        self.draws = False  # whether it draws random numbers in evaluation, too; its learner finds out
        # On a CPU, the host buffer is the buffer; on a GPU, vectors pass through it between NumPy and the device.
        self._host = torch.empty(self.schema.size, dtype=torch.float32, pin_memory=device.type == "cuda")
        self._flat = self._host if device.type == "cpu" else torch.empty_like(self._host, device=device)
        self._numpy: Vector = self._host.numpy()
        self._views = [self._flat[where].view(spec.shape) for spec, where in self.schema.slices()]
        for place, view in zip(self._places, self._views, strict=True):
            if (tensor := place.tensor()) is not None:
                view.copy_(tensor.data)
                if not place.cast:
                    tensor.data = view
        self._integers = [
            (b, b.clone()) for name, b in self.module.named_buffers() if not b.is_floating_point() and name not in moved
        ]
        positive = variances(self.module)
        self.variances = [where for spec, where in self.schema.slices() if spec.name in positive]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._flat.device

    @cached_property
    def frozen_digest(self) -> str:
        """`peer.learning.frozen.frozen_digest` of what is not in the vector, as it is at the first call."""
        return frozen_digest(self.module, frozenset(spec.name for spec in self.schema.tensors))

    @cached_property
    def only_norm_statistics(self) -> bool:
        """Whether all buffers in the vector are those of normalizing layers, which change them in place."""
        return {s.name for s in self.schema.tensors if s.role == "buffer"} <= set(norm_statistics(self.module))

    def digests(self) -> dict[str, str]:
        """Return the digest of each constant, by name."""
        return {place.spec.name: "" if (t := place.tensor()) is None else digest_of(t) for place in self.constants}

    def watch(self) -> None:
        """Let `check_constants` compare from now on, unless the constants are so large that it would take long."""
        tensors = [tensor for place in self.constants if (tensor := place.tensor()) is not None]
        if sum(tensor.nbytes for tensor in tensors) <= WATCHED_BYTES_MAX:
            self._watched = self.digests()

    def check_constants(self) -> None:
        """Check that training has not changed what is not in the vector.

        Raises:
            TaskError: it has, though the first steps did not.
        """
        if self._watched and (now := self.digests()) != self._watched:
            changed = ", ".join(name for name, digest in now.items() if digest != self._watched[name])
            raise TaskError(
                f"model: {changed}: expected the same values after training, since the first two steps do not change them and "
                "they are not sent with the model, got others. Keep them in a float32 buffer (register_buffer), or let the "
                "first steps change them."
            )

    def load(self, theta: Vector) -> None:
        """Copy a model vector, float32 [d], into the module; a variance below 0, by a lossy encoding, becomes 0.

        Raises:
            TaskError: the vector has a wrong size or dtype.
        """
        if theta.dtype != np.float32 or theta.shape != (self.schema.size,):
            raise TaskError(f"model vector: expected float32 ({self.schema.size},), got {theta.dtype} {theta.shape}")
        np.copyto(self._numpy, theta)
        for where in self.variances:
            np.maximum(self._numpy[where], 0, out=self._numpy[where])
        if self._flat is not self._host:
            self._flat.copy_(self._host)
        for place, view in zip(self._places, self._views, strict=True):
            tensor = place.tensor()
            if place.cast and tensor is not None:
                tensor.data = _as(view, tensor.dtype)
            elif tensor is None or tensor.data_ptr() != view.data_ptr():
                self._put_back(place, view, tensor)

    def state(self) -> dict[str, Any]:
        """Return all that training changes, exactly: the vector, float32 [d], and tensors that it lacks or has cast."""
        cast = [tensor for place in self._places if place.cast and (tensor := place.tensor()) is not None]
        return {"vector": self.store(), "integers": [buffer for buffer, _ in self._integers], "cast": cast}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned."""
        self.load(state["vector"])
        for (buffer, _), values in zip(self._integers, state["integers"], strict=True):
            buffer.copy_(values)
        cast = [tensor for place in self._places if place.cast and (tensor := place.tensor()) is not None]
        for tensor, values in zip(cast, state["cast"], strict=True):
            tensor.data = values.to(tensor.device)

    def store(self) -> Vector:
        """Return the vector of the module as a new array, float32 [d].

        Raises:
            TaskError: forward has put a tensor of another shape in the place of a buffer.
        """
        for place, view in zip(self._places, self._views, strict=True):
            tensor = place.tensor()
            if tensor is not None and (place.cast or tensor.data_ptr() != view.data_ptr()):
                if tensor.shape != view.shape:
                    raise TaskError(
                        f"model: {place.spec.name}: expected a fixed shape, got shape {list(tensor.shape)} after a "
                        f"call of forward, and {list(view.shape)} before. Keep what belongs to one batch out of the "
                        "state_dict."
                    )
                view.copy_(tensor.data)
                if not place.cast:
                    self._put_back(place, view, tensor)
        if self._flat is not self._host:
            self._host.copy_(self._flat)
        return self._numpy.copy()

    def _put_back(self, place: Place, view: Tensor, tensor: Tensor | None) -> None:
        """Make a tensor of the module a view of the flat buffer again, after forward has put another one in its place."""
        if isinstance(tensor, nn.Parameter):
            tensor.data = view
        else:
            place.owner._buffers[place.leaf] = view

    def restrict(self, only: frozenset[str] | None) -> list[Tensor]:
        """Let only the named parameters have gradients, or all of them (None), and return those that have.

        Raises:
            TaskError: a name is that of no parameter.
        """
        names = [spec.name for spec in self.schema.tensors if spec.role == "parameter"]
        if only is not None and (unknown := only - set(names)):
            raise TaskError(f"parameters to train: expected one or more of {names}, got {sorted(unknown)}")
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
        return [flat[part].view(spec.shape) for spec, part in self.schema.slices() if spec.role == "parameter"]


def _as(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 values in another dtype, a new tensor; averaged integers are rounded, and a boolean is what most are."""
    if dtype == torch.bool:
        return values > 0.5
    return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)

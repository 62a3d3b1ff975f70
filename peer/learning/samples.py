"""The samples of one part of a shard as batches of tensors on a device.

An array in memory is moved to the device once, in its own type. Rows of a stored array are read, checked and moved batch by
batch, so that a shard may be larger than memory. A batch has what a model needs: float32, or int64 for integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from peer.tasks.arrays import Inputs, by_name, count, is_stored, read_rows
from peer.tasks.preprocessing import Preprocessing, precision
from peer.tasks.shard import Kind, check_finite, check_labels

Batch = Tensor | dict[str, Tensor]  # the inputs of one call of a model


def call(module: nn.Module, inputs: Batch) -> Any:
    """Return the model's outputs; several inputs are passed as arguments by name."""
    return module(**inputs) if isinstance(inputs, dict) else module(inputs)


def batch_of_one(inputs: Batch) -> Batch:
    """Return one sample, without the axis of samples, as a batch of one."""
    return {name: x.unsqueeze(0) for name, x in inputs.items()} if isinstance(inputs, dict) else inputs.unsqueeze(0)


class Samples:
    """Inputs and targets of one part.

    Args:
        name: of the arrays in messages, such as "train".
        x: checked inputs.
        y: checked targets; None: there are none, only inputs.
        device: of the batches.
        scaling: applied to raw integers; None: integers are the inputs.
        kind: of the targets.
        classes: number of labels, or None.
    """

    def __init__(
        self,
        name: str,
        x: Inputs,
        y: Any,
        device: torch.device,
        *,
        scaling: Preprocessing | None = None,
        kind: Kind = "regression",
        classes: int | None = None,
    ) -> None:
        self._single = not isinstance(x, dict)
        self._count = count(x)
        self._columns = {
            key: _Column(f"{name}_x" + (f"[{key!r}]" if key else ""), array, device, scaling)
            for key, array in by_name(x).items()
        }
        self._targets = None if y is None else _Targets(f"{name}_y", y, device, kind, classes)
        self.stored = any(column.stored is not None for column in (*self._columns.values(), self._targets) if column)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    @property
    def stackable(self) -> bool:
        """Whether `whole` is two tensors that fit in memory."""
        return self._single and not self.stored

    def check_labels(self, outputs: int) -> None:
        """Check that a classifier has an output for each label in memory.

        Raises:
            ShardError: a label is out of range.
        """
        if self._targets is not None:
            self._targets.check_labels(outputs)

    def inputs(self, rows: Tensor | slice) -> Batch:
        """Return the inputs of the rows: int64 [b] on the device, or a slice."""
        chosen = {key: column.rows(rows) for key, column in self._columns.items()}
        return chosen[""] if self._single else chosen

    def targets(self, rows: Tensor | slice) -> Tensor:
        """Return the targets of the rows."""
        assert self._targets is not None  # learners have targets
        return self._targets.rows(rows)

    def batch(self, rows: Tensor | slice) -> tuple[Batch, Tensor]:
        """Return inputs and targets of the rows."""
        return self.inputs(rows), self.targets(rows)

    def whole(self) -> tuple[Tensor, Tensor]:
        """Return all samples at once; only if they are `stackable`."""
        return self._columns[""].rows(slice(None)), self.targets(slice(None))

    def slices(self, size: int) -> Iterator[slice]:
        """Return the rows in order, ``size`` at a time."""
        return (slice(start, start + size) for start in range(0, self._count, size))


class _Column:
    """One array of the inputs."""

    def __init__(self, name: str, array: Any, device: torch.device, scaling: Preprocessing | None) -> None:
        self.name, self._device, self._count = name, device, count(array)
        self.stored = array if is_stored(array) else None
        self._values = None if is_stored(array) else _tensor(array, device)
        self._floating = np.issubdtype(array.dtype, np.floating)
        self._scale = None
        if scaling is not None and not self._floating and scaling.changes_values:
            wide = self.stored is None and precision(array) is np.float64
            self._scale = _Scale(scaling, device, np.float64 if wide else np.float32)

    def rows(self, rows: Tensor | slice) -> Tensor:
        """Return the rows as float32, or as int64 if they are integers that are not scaled."""
        values = self._read(rows) if self._values is None else _chosen(self._values, rows)
        if self._scale is not None:
            return self._scale(values)
        return values if self._floating else values.long()

    def _read(self, rows: Tensor | slice) -> Tensor:
        """Return rows of the stored array, floating point ones as float32."""
        wanted = np.arange(*rows.indices(self._count)) if isinstance(rows, slice) else rows.cpu().numpy()
        read = read_rows(self.stored, wanted)
        self._check(read)
        return _tensor(read.astype(np.float32) if self._floating else read, self._device)

    def _check(self, read: Any) -> None:
        if self._floating:
            check_finite(f"{self.name}, in a batch", read.astype(np.float32), read)


class _Targets(_Column):
    """The targets: labels are int64, the others float32."""

    def __init__(self, name: str, array: Any, device: torch.device, kind: Kind, classes: int | None) -> None:
        super().__init__(name, array, device, None)
        self._kind, self._classes = kind, classes

    @override
    def rows(self, rows: Tensor | slice) -> Tensor:
        """Return the rows."""
        chosen = super().rows(rows)
        return chosen if self._kind == "classification" else chosen.float()

    def check_labels(self, outputs: int) -> None:
        """See `Samples.check_labels`; those of a stored array are checked batch by batch."""
        self._classes = outputs
        if self._values is not None:
            check_labels(self.name, self._values.cpu().numpy(), self._kind, outputs)

    @override
    def _check(self, read: Any) -> None:
        super()._check(read)
        if self._kind != "regression":
            check_labels(f"{self.name}, in a batch", read, self._kind, self._classes)


class _Scale:
    """`Preprocessing.apply` for a tensor, with the same bits: (raw / divisor - mean) / std."""

    def __init__(self, scaling: Preprocessing, device: torch.device, dtype: type[np.floating]) -> None:
        self._divisor, self._mean, self._std = (
            torch.tensor(np.array(value, dtype), device=device)
            for value in (scaling.divisor, scaling.mean, scaling.std)
        )
        self._centered = bool(self._mean.any() or (self._std != 1).any())

    def __call__(self, raw: Tensor) -> Tensor:
        """Return float32."""
        scaled = raw.to(self._divisor.dtype) / self._divisor
        return (scaled.sub_(self._mean).div_(self._std) if self._centered else scaled).float()


def _chosen(values: Tensor, rows: Tensor | slice) -> Tensor:
    return values[rows] if isinstance(rows, slice) else values.index_select(0, rows)


def _tensor(values: Any, device: torch.device) -> Tensor:
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "u" and native.dtype.itemsize > 1:
        native = native.astype(np.int64)
    # torch warns about read-only arrays, so they are copied
    return torch.from_numpy(native if native.flags.writeable else native.copy()).to(device)

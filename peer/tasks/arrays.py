"""Samples as arrays: one array, or several by name, in memory or on disk. The first axis of each counts samples.

An array on disk is a `numpy.memmap`, or any object with `Stored`'s three members. Its rows are read when a batch needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ShardError
from coordinator_free_bootstrap.strict_json import of_type
from peer.tasks.in_numpy import refuse_masked

Array = np.ndarray
UNREADABLE = (ValueError, RuntimeError, OSError)  # what h5py raises where a file has been closed


class Stored(Protocol):
    """An array whose rows are read on demand, such as a data set of HDF5, or a class of a user that reads files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[samples, ...]."""

    @property
    def dtype(self) -> np.dtype:
        """Of the rows."""

    def __getitem__(self, rows: NDArray[np.int64]) -> Array:
        """Return the rows with these indices, ascending and each once, [len(rows), ...], as an array in memory."""


Inputs = Any  # an array, a Stored, or a mapping of names to them: the arguments of the model's ``forward``


def is_stored(array: object) -> bool:
    """Return whether an array stays on disk: a memory-mapped one, or another object than an array that has its members.

    Raises:
        ShardError: the file that it is part of has been closed.
    """
    if isinstance(array, np.ndarray):
        return isinstance(array, np.memmap)
    try:
        return all(
            hasattr(array, name) for name in ("shape", "dtype", "__getitem__")
        )  # reads them, so a closed file is noticed
    except UNREADABLE as error:
        raise _unreadable(array, error) from error


def _unreadable(array: object, error: Exception) -> ShardError:
    return ShardError(
        f"shard: {of_type(array)} cannot be read: {error}. Keep its file open after load_shard, or "
        "return an array in memory, as array[:]."
    )


def read_rows(array: Any, rows: NDArray[np.int64]) -> Array:
    """Return rows of an array of any kind, in memory; rows of a stored one are read in ascending order, each once.

    Raises:
        ShardError: the rows have masked values, or cannot be read.
    """
    if isinstance(array, np.ndarray):
        return np.asarray(array[rows])
    if not len(rows):
        return np.empty((0, *array.shape[1:]), array.dtype)
    ascending, place = np.unique(rows, return_inverse=True)
    try:
        chosen = array[ascending]
    except UNREADABLE as error:
        raise _unreadable(array, error) from error
    refuse_masked("rows of a stored array", chosen)
    return np.asarray(chosen)[place]


def by_name(inputs: Inputs) -> dict[str, Any]:
    """Return the arrays of the inputs by name; a single one is called ""."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}


def each(function: Callable[[Any], Any], inputs: Inputs) -> Inputs:
    """Return the inputs with the function applied to each array."""
    return (
        {name: function(array) for name, array in inputs.items()} if isinstance(inputs, Mapping) else function(inputs)
    )


def count(inputs: Inputs) -> int:
    """Return the number of samples."""
    return int(next(iter(by_name(inputs).values())).shape[0])


def sample_shape(inputs: Inputs) -> Any:
    """Return the shape of one sample as a list, or a list for each name."""
    return each(lambda array: list(array.shape[1:]), inputs)


def take(array: Any, rows: NDArray[np.int64]) -> Any:
    """Return the rows of an array; those of a stored one stay where they are."""
    return Rows(array, rows) if is_stored(array) else array[rows]


def take_all(array: Any) -> Array:
    """Return an array in memory."""
    return read_rows(array, np.arange(count(array))) if is_stored(array) else np.asarray(array)


@dataclass(frozen=True, eq=False)
class Rows:
    """Chosen rows of a stored array, itself `Stored`."""

    array: Any
    rows: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, ...]."""
        return (len(self.rows), *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Of the array."""
        dtype: np.dtype = self.array.dtype
        return dtype

    def __getitem__(self, rows: NDArray[np.int64]) -> Array:
        """Return rows of the chosen ones, in memory."""
        return read_rows(self.array, self.rows[rows])

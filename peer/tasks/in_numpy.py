"""Arrays of torch, pandas and scipy, and masked arrays, as NumPy's: values keep their meaning, or are refused."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ShardError

# bytes of a sparse matrix as an array; rows of a larger one are made dense when a batch needs them
DENSE_MAX = 256 << 20
MISSING_TYPES = frozenset({"NoneType", "NAType", "NaTType"})  # the last two are those of pandas


def in_numpy(name: str, array: Any) -> Any:
    """Return a tensor, a column or table, a sparse matrix or a masked array without masked values as a NumPy array.

    Columns that may lack values get NaN for those, objects that are numbers become numbers. Another object is returned as it is.

    Raises:
        ShardError: values are masked.
    """
    if hasattr(array, "detach"):
        return _of_torch(array)
    if hasattr(array, "tocsr"):
        return _of_scipy(array)
    if hasattr(array, "to_numpy"):
        array = array.to_numpy()
    if isinstance(array, np.ma.MaskedArray):
        refuse_masked(name, array)
        return np.asarray(array)
    if isinstance(array, np.matrix):
        return np.asarray(array)
    return _numbers(array) if isinstance(array, np.ndarray) and array.dtype == object else array


def refuse_masked(name: str, array: Any) -> None:
    """Refuse an array with masked values, which have no reading: their numbers are fill values.

    Raises:
        ShardError: values are masked; the first is named.
    """
    if np.ma.is_masked(array):
        masked = np.argwhere(np.ma.getmaskarray(array))
        remedy = "Leave" if name.endswith("_y") else "Fill them, as array.filled(0.0) after scaling, or leave"
        raise ShardError(
            f"shard: {name}[{', '.join(map(str, masked[0]))}]: expected values, got a masked value ({len(masked)} of "
            f"{array.size} are masked). {remedy} these samples out."
        )


def is_missing(value: object) -> bool:
    """Return whether a value of an array says that there is none: None, NA or NaT of pandas, NaN, or an empty text."""
    return type(value).__name__ in MISSING_TYPES or value == "" or (isinstance(value, float) and math.isnan(value))


def _of_torch(tensor: Any) -> Any:
    """Return a tensor of any layout; types that NumPy lacks, such as bfloat16, become float32 with the same values."""
    dense = tensor.detach().cpu()
    if dense.is_quantized:
        dense = dense.dequantize()
    if str(dense.layout) != "torch.strided":
        dense = dense.to_dense()
    dense = dense.resolve_conj().resolve_neg()
    try:
        return dense.numpy()
    except TypeError:
        return dense.float().numpy()


def _of_scipy(matrix: Any) -> Any:
    """Return a sparse matrix as an array, or as rows that are made dense on demand."""
    if np.prod(matrix.shape, dtype=float) * matrix.dtype.itemsize <= DENSE_MAX:
        return np.asarray(matrix.toarray())
    return SparseRows(matrix.tocsr())


def _numbers(array: np.ndarray) -> np.ndarray:
    """Return an array of objects as int64, or as float64 with NaN for what is missing; others than numbers stay objects."""
    values = array.ravel().tolist()
    missing = [is_missing(value) for value in values]
    if not all(
        isinstance(value, numbers.Real) or (missing[n] and not isinstance(value, str)) for n, value in enumerate(values)
    ):
        return array
    if any(missing) or not all(isinstance(value, numbers.Integral) for value in values):
        values = [float("nan") if absent else float(value) for value, absent in zip(values, missing, strict=True)]
        return np.array(values, np.float64).reshape(array.shape)
    return np.array([int(value) for value in values], np.int64).reshape(array.shape)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse matrix [samples, features] whose rows are made dense when they are read; a `Stored` array."""

    matrix: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """[samples, features]."""
        return tuple(self.matrix.shape)

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        dtype: np.dtype = self.matrix.dtype
        return dtype

    def __getitem__(self, rows: NDArray[np.int64]) -> np.ndarray:
        """Return the rows as an array [len(rows), features]."""
        return np.asarray(self.matrix[rows].toarray())

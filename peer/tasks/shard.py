"""The data of one peer: arrays for training, validation and test, with their checks."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ShardError
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import counted
from peer.tasks.arrays import Inputs, count, each, is_stored, read_rows, sample_shape, take
from peer.tasks.in_numpy import in_numpy, is_missing
from peer.tasks.preprocessing import Preprocessing

Kind = Literal["classification", "multilabel", "regression"]
Part = Literal["train", "validation", "test"]
_PARTS: tuple[tuple[str, Part], ...] = (("train", "train"), ("val", "validation"), ("test", "test"))  # by name in files
PARTS: tuple[Part, ...] = ("train", "validation", "test")
TRAIN_SAMPLES_MIN = 2  # BatchNorm needs two samples
TEST_SAMPLES_MIN = 1
IGNORED = -100  # the label of an element that does not count, such as padding; the number is that of torch
TORCH_INTEGERS = frozenset({"uint8", "int8", "int16", "int32", "int64"})
ARRAYS = ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y")
# clusters are counted in an array of this length
PER_SAMPLE_MAX = {"true_cluster": 4095, "test_cluster": 4095, "turns": 3}


@dataclass(frozen=True, eq=False, kw_only=True)
class Shard:
    """The samples of one peer; the first axis of every array is the sample.

    Arrays are NumPy's. Tensors of torch, columns or tables of pandas, and sparse matrices of scipy become such arrays.

    Attributes:
        train_x: inputs [n, ...]: floating point; integers for models that embed tokens; or raw integers, such as the bytes
            of pictures, where ``preprocessing`` scales them. Several inputs are a dict of arrays by the names of
            ``forward``'s arguments. Arrays on disk (`peer.tasks.arrays.Stored`, memory-mapped ones) stay there.
        train_y: targets: integer labels [n], or [n, ...] with a label for each element (pixel, token), of which `IGNORED` ones
            do not count; 0 or 1 [n, m] for multilabel; floating point [n] or [n, m] for regression.
        test_x: as ``train_x``, of the same distribution.
        test_y: as ``train_y``.
        val_x: as ``train_x``; None without validation data.
        val_y: as ``train_y``.
        true_cluster: int64 [n], 0..4095, the true distribution of each training sample; only for metrics; None if unknown.
        test_cluster: the same of each test sample, int64 [m].
        turns: int64 [n], 0..3 quarter turns (counter-clockwise) of each training image; only for plots.
        preprocessing: how the inputs were scaled from raw ones; None: as the `Task` says.
        class_names: name of each label; None: as the `Task` says.
        metadata: text about the origin (task, split, peer), saved in shard files.

    >>> x, y = np.zeros((10, 3)), np.arange(10) % 2
    >>> shard = Shard(train_x=x[:8], train_y=y[:8], test_x=x[8:], test_y=y[8:])
    >>> inputs, labels = shard.part("test")
    >>> inputs.shape, labels.tolist()
    ((2, 3), [0, 1])
    """

    train_x: Inputs
    train_y: Any
    test_x: Inputs
    test_y: Any
    val_x: Inputs | None = None
    val_y: Any | None = None
    true_cluster: np.ndarray | None = None
    test_cluster: np.ndarray | None = None
    turns: np.ndarray | None = None
    preprocessing: Preprocessing | None = None
    class_names: tuple[str, ...] | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take tensors, columns of pandas and sparse matrices as arrays.

        Raises:
            ShardError: an array has masked values.
        """
        for name in (*ARRAYS, *PER_SAMPLE_MAX):
            value = getattr(self, name)
            if isinstance(value, Mapping) and not hasattr(
                value, "tocsr"
            ):  # a sparse matrix may be a mapping of its values
                arrays: Any = {key: in_numpy(f"{name}[{key!r}]", array) for key, array in value.items()}
            else:
                arrays = in_numpy(name, value)
            object.__setattr__(self, name, arrays)

    def part(self, part: Part) -> tuple[Inputs, Any]:
        """Return inputs and targets of one part; without validation data that part has zero samples."""
        if part == "train":
            return self.train_x, self.train_y
        if part == "test":
            return self.test_x, self.test_y
        if self.val_x is None or self.val_y is None:
            none = np.empty(0, np.int64)
            return each(lambda array: read_rows(array, none), self.train_x), read_rows(self.train_y, none)
        return self.val_x, self.val_y

    def training_on(self, indices: NDArray[np.int64]) -> Shard:
        """Return the shard with some of its training samples, int64 [m], in this order, some maybe twice."""
        return replace(
            self,
            train_x=each(lambda array: take(array, indices), self.train_x),
            train_y=take(self.train_y, indices),
            true_cluster=None if self.true_cluster is None else self.true_cluster[indices],
            turns=None if self.turns is None else self.turns[indices],
        )

    def holding_out(self, share: float, seed: int) -> Shard:
        """Return the shard with validation data: its own, or a share of its training samples, drawn by ``seed``.

        Args:
            share: in [0, 1); 0 changes nothing. At least one sample is held out if `TRAIN_SAMPLES_MIN` remain.
            seed: of the draw; the same at each start of a peer.
        """
        samples = count(self.train_x)
        held = min(max(1, round(share * samples)), samples - TRAIN_SAMPLES_MIN)
        if not share or held < 1 or count(self.part("validation")[0]):
            return self
        order = generator(seed, "validation").permutation(samples)
        kept, out = np.sort(order[held:]), np.sort(order[:held])
        held_out = {"val_x": each(lambda array: take(array, out), self.train_x), "val_y": take(self.train_y, out)}
        return replace(self.training_on(kept), **held_out)

    def checked(self, kind: Kind, classes: int | None) -> Shard:
        """Return the shard with checked arrays: float32, or integers that torch has.

        Stored arrays stay as they are; their values are checked when they are read. While scaling is pending, float64 inputs stay
        float64.

        Args:
            kind: labels of samples become int64, targets of regression and multilabel float32.
            classes: number of labels, 0..classes-1; None: labels must not be negative.

        Raises:
            ShardError: wrong shapes, NaN or Inf, labels out of range, or too few samples.
        """
        if (self.val_x is None) != (self.val_y is None):
            raise ShardError("shard: expected both val_x and val_y or neither, got one of them")
        if self.class_names is not None and classes not in (None, len(self.class_names)):
            raise ShardError(
                f"shard: class_names: expected one name for each of the {classes} classes, got {len(self.class_names)}"
            )
        arrays: dict[str, Any] = {}
        wide = self.preprocessing is not None and self.preprocessing.is_pending
        for name, part in _PARTS:
            x, y = self.part(part)
            arrays[f"{name}_x"] = _inputs(f"{name}_x", x, wide)
            arrays[f"{name}_y"] = _targets(f"{name}_y", y, kind, classes)
            if count(x) != count(y):
                raise ShardError(
                    f"shard: expected as many samples in {name}_y as in {name}_x ({count(x)}), got {count(y)}"
                )
            if sample_shape(x) != sample_shape(self.train_x):
                raise ShardError(
                    f"shard: {name}_x: expected samples of shape {sample_shape(self.train_x)}, as in train_x, got "
                    f"{sample_shape(x)}"
                )
            if y.shape[1:] != self.train_y.shape[1:]:
                raise ShardError(
                    f"shard: {name}_y: expected targets of shape {list(self.train_y.shape[1:])}, as in train_y, got "
                    f"{list(y.shape[1:])}"
                )
        for name, least in (("train", TRAIN_SAMPLES_MIN), ("test", TEST_SAMPLES_MIN)):
            if count(arrays[f"{name}_x"]) < least:
                raise ShardError(
                    f"shard: {name}_x: expected at least {counted(least, 'sample')}, got {count(arrays[f'{name}_x'])}. Give this "
                    "peer more data, or use fewer peers."
                )
        arrays |= {name: self._per_sample(name) for name in PER_SAMPLE_MAX}
        return replace(self, **arrays)

    def _per_sample(self, name: str) -> NDArray[np.int64] | None:
        if getattr(self, name) is None:
            return None
        values, most = np.asarray(getattr(self, name)), PER_SAMPLE_MAX[name]
        samples = count(self.test_x if name == "test_cluster" else self.train_x)
        if values.shape != (samples,):
            raise ShardError(f"shard: {name}: expected shape ({samples},), got {values.shape}")
        if not np.issubdtype(values.dtype, np.integer):
            raise ShardError(f"shard: {name}: expected integers 0..{most}, got dtype {values.dtype}")
        bad = np.flatnonzero((values < 0) | (values > most))
        if len(bad):
            raise ShardError(f"shard: {name}[{bad[0]}]: expected integers 0..{most}, got {values[bad[0]]}")
        return values.astype(np.int64)


def _inputs(name: str, x: Inputs, wide: bool) -> Inputs:
    if isinstance(x, Mapping):
        if not x or not all(isinstance(key, str) and key.isidentifier() for key in x):
            raise ShardError(f"shard: {name}: expected arguments of the model's forward, got the names {list(x)}")
        arrays = {key: _array(f"{name}[{key!r}]", array, 1) for key, array in x.items()}
        counts = {key: count(array) for key, array in arrays.items()}
        if len(set(counts.values())) > 1:
            raise ShardError(f"shard: {name}: expected equally many samples under each name, got {counts}")
        return arrays
    checked = _array(name, x, 2)
    return np.asarray(x) if wide and getattr(x, "dtype", None) == np.float64 else checked


def _array(name: str, x: Any, axes: int) -> Any:
    if not isinstance(x, np.ndarray) and not is_stored(x):
        raise ShardError(f"shard: {name}: expected an array [samples, features...], got {type(x).__name__}")
    if len(x.shape) < axes:
        raise ShardError(f"shard: {name}: expected an array [samples, features...], got shape {list(x.shape)}")
    floating = np.issubdtype(x.dtype, np.floating)
    if not floating and not np.issubdtype(x.dtype, np.integer):
        raise ShardError(f"shard: {name}: expected floating point or integers, got {_seen(x)}. {_remedy(x)}.")
    if is_stored(x):
        return x
    return _finite(name, x) if floating else _integers(name, x)


def _seen(x: Any) -> str:
    """Return the dtype, of objects with the first that is no number."""
    if x.dtype != object or is_stored(x):
        return f"dtype {x.dtype}"
    other = next((value for value in x.ravel().tolist() if not isinstance(value, numbers.Real)), None)
    return f"dtype object with {other!r}"


def _remedy(x: Any) -> str:
    if x.dtype == bool:
        return "Convert them with astype(np.float32) for features, or astype(np.int64) for a mask"
    if x.dtype.kind == "c":
        return "Give real and imaginary part as two features"
    if x.dtype.kind in "mM":
        return "Convert times to numbers, such as days since a date"
    return "Convert texts and other values to numbers, such as one column of 0 and 1 for each text"


def _integers(name: str, values: np.ndarray) -> np.ndarray:
    """Return integers in their own type where torch has it, else as int64; a batch becomes int64 when it is used.

    Raises:
        ShardError: an integer is too large for int64.
    """
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        raise ShardError(f"shard: {name}: expected integers below 2^63, got {values.max()}")
    kept = values.dtype.newbyteorder("=") if values.dtype.name in TORCH_INTEGERS else np.dtype(np.int64)
    return np.ascontiguousarray(values, dtype=kept)


def _targets(name: str, y: Any, kind: Kind, classes: int | None) -> Any:
    if (not isinstance(y, np.ndarray) and not is_stored(y)) or len(y.shape) < 1:
        raise ShardError(f"shard: {name}: expected an array [samples], got {type(y).__name__}")
    if is_stored(y) and len(y.shape) == 1:
        y = read_rows(y, np.arange(count(y)))  # eight bytes a sample
    if kind == "regression":
        if not np.issubdtype(y.dtype, np.number) or np.issubdtype(y.dtype, np.complexfloating):
            raise ShardError(f"shard: {name}: expected real numbers for regression, got dtype {y.dtype}")
        return y if is_stored(y) else _finite(name, y)
    if kind == "multilabel":
        if len(y.shape) != 2 or classes not in (None, y.shape[1]):
            wanted = "labels" if classes is None else classes
            raise ShardError(f"shard: {name}: expected shape [samples, {wanted}] for multilabel, got {list(y.shape)}")
        if not is_stored(y):
            check_labels(name, y, kind, classes)
        return y if is_stored(y) else _finite(name, y)
    if y.dtype == bool and not is_stored(y):
        y = y.astype(np.int64)  # False is label 0, True is label 1
    if not np.issubdtype(y.dtype, np.integer):
        raise ShardError(
            f"shard: {name}: expected as labels integers of shape [samples], or [samples, ...] for a label of each element, got "
            f"{y.dtype} {list(y.shape)}{_without_label(name, y)}. Number the classes, or leave out samples without a label."
        )
    if is_stored(y):
        return y
    check_labels(name, y, kind, classes)
    return _integers(name, y).astype(np.int64, copy=False) if y.ndim == 1 else _integers(name, y)


def _without_label(name: str, y: Any) -> str:
    """Return how many labels are missing, and the first of them."""
    if is_stored(y):
        return ""
    absent = [n for n, label in enumerate(y.ravel().tolist()) if is_missing(label)]
    return f", {len(absent)} of them missing, the first at {name}[{absent[0]}]" if absent else ""


def check_labels(name: str, y: np.ndarray, kind: Kind, classes: int | None) -> None:
    """Check the values of labels [n] or [n, ...]; `IGNORED` elements of the second form do not count.

    Raises:
        ShardError: a label is out of range.
    """
    if kind == "multilabel":
        wrong = (y != 0) & (y != 1)
    else:
        wrong = (y < 0) | (y >= (np.inf if classes is None else classes))
        if y.ndim > 1:
            wrong &= y != IGNORED
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        allowed = "0 or 1" if kind == "multilabel" else "0 or more" if classes is None else f"0..{classes - 1}"
        allowed += (
            f", or {IGNORED} for an element that does not count" if kind == "classification" and y.ndim > 1 else ""
        )
        where = ", ".join(map(str, place))
        raise ShardError(
            f"shard: {name}[{where}]: expected {allowed}, got label {y[place]} ({int(wrong.sum())} are wrong)"
        )


def _finite(name: str, values: np.ndarray) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is reported below
        converted = np.ascontiguousarray(values, dtype=np.float32)
    check_finite(name, converted, values)
    return converted


def check_finite(name: str, converted: NDArray[np.float32], values: np.ndarray) -> None:
    """Check values that are converted to float32.

    Raises:
        ShardError: one is NaN or Inf.
    """
    if not np.isfinite(converted).all():
        where = np.argwhere(~np.isfinite(converted))[0]
        raise ShardError(
            f"shard: {name}[{', '.join(map(str, where))}]: expected finite float32 numbers, got "
            f"{values[tuple(where)]}. Correct or remove the sample."
        )

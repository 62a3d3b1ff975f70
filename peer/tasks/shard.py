"""One peer's data: arrays for training, validation and test, checked before anything trains on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ShardError

Kind = Literal["classification", "regression"]
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
TRAIN_SAMPLES_MIN = 2  # BatchNorm cannot normalize a batch of one
TEST_SAMPLES_MIN = 1
PER_SAMPLE_MAX = {"true_cluster": 4095, "turns": 3}  # clusters are counted in an array as long as the highest


@dataclass(frozen=True, eq=False, kw_only=True)
class Shard:
    """A peer's own samples; first axis = sample, in every array.

    Attributes:
        train_x: inputs [n, ...], floating point, or integers for models that embed tokens.
        train_y: targets [n]: integer labels, or floating point [n] / [n, m] for regression.
        test_x: as ``train_x``. Follows the peer's own training distribution.
        test_y: as ``train_y``.
        val_x: as ``train_x``; None where no algorithm asks for validation data.
        val_y: as ``train_y``.
        true_cluster: int64 [n], 0..4095, the true distribution of each training sample, for metrics only; None if unknown.
        turns: int64 [n], 0..3 quarter turns (counter-clockwise) of each training image; for pictures only.
        metadata: text about the origin (task, split, peer), kept in shard files.
    """

    train_x: NDArray[Any]
    train_y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]
    val_x: NDArray[Any] | None = None
    val_y: NDArray[Any] | None = None
    true_cluster: NDArray[Any] | None = None
    turns: NDArray[Any] | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def part(self, part: Part) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return inputs and targets of one part; a missing validation part has zero samples."""
        if part == "train":
            return self.train_x, self.train_y
        if part == "test":
            return self.test_x, self.test_y
        if self.val_x is None or self.val_y is None:
            return self.train_x[:0], self.train_y[:0]
        return self.val_x, self.val_y

    def checked(self, kind: Kind, classes: int | None) -> Shard:
        """Return the same shard as float32 or int64 arrays, or say what is wrong with it.

        Args:
            kind: classification makes targets int64, regression float32.
            classes: number of labels, 0..classes-1; None checks only that labels are not negative.

        Raises:
            ShardError: wrong shapes, not a number, labels out of range, or too few samples.
        """
        if (self.val_x is None) != (self.val_y is None):
            raise ShardError("shard: val_x and val_y must both be given, or neither")
        arrays: dict[str, Any] = {}
        for name, part in (("train", "train"), ("val", "validation"), ("test", "test")):
            x, y = self.part(part)  # type: ignore[arg-type]
            arrays[f"{name}_x"] = _inputs(f"{name}_x", x)
            arrays[f"{name}_y"] = _targets(f"{name}_y", y, kind, classes)
            if len(x) != len(y):
                raise ShardError(f"shard: {name}_x has {len(x)} samples and {name}_y has {len(y)}; they must agree")
            if x.shape[1:] != self.train_x.shape[1:]:
                raise ShardError(
                    f"shard: a sample of {name}_x has shape {list(x.shape[1:])}, "
                    f"one of train_x {list(self.train_x.shape[1:])}"
                )
        for name, least in (("train", TRAIN_SAMPLES_MIN), ("test", TEST_SAMPLES_MIN)):
            if len(arrays[f"{name}_x"]) < least:
                raise ShardError(
                    f"shard: {len(arrays[f'{name}_x'])} samples in {name}_x, {least} or more are needed; "
                    "give this peer more data, or use fewer peers"
                )
        arrays |= {name: self._per_sample(name) for name in ("true_cluster", "turns")}
        return replace(self, **arrays)

    def _per_sample(self, name: str) -> NDArray[np.int64] | None:
        if getattr(self, name) is None:
            return None
        values, most = np.asarray(getattr(self, name)), PER_SAMPLE_MAX[name]
        if values.shape != (len(self.train_x),):
            raise ShardError(f"shard: {name} has shape {values.shape}, expected ({len(self.train_x)},)")
        if not np.issubdtype(values.dtype, np.integer):
            raise ShardError(f"shard: {name} has dtype {values.dtype}; integers 0..{most} are allowed")
        bad = np.flatnonzero((values < 0) | (values > most))
        if len(bad):
            raise ShardError(f"shard: {name}[{bad[0]}] is {values[bad[0]]}; integers 0..{most} are allowed")
        return values.astype(np.int64)


def _inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    if not isinstance(x, np.ndarray) or x.ndim < 2:
        found = f"shape {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
        raise ShardError(f"shard: {name} must be an array [samples, features...], found {found}")
    if np.issubdtype(x.dtype, np.floating):
        return _finite(name, x)
    if np.issubdtype(x.dtype, np.integer):
        return np.ascontiguousarray(x, dtype=np.int64)
    raise ShardError(f"shard: {name} has dtype {x.dtype}; floating point or integers are allowed")


def _targets(name: str, y: NDArray[Any], kind: Kind, classes: int | None) -> NDArray[Any]:
    if not isinstance(y, np.ndarray) or y.ndim < 1:
        raise ShardError(f"shard: {name} must be an array [samples], found {type(y).__name__}")
    if kind == "regression":
        if not np.issubdtype(y.dtype, np.number) or np.issubdtype(y.dtype, np.complexfloating):
            raise ShardError(f"shard: {name} has dtype {y.dtype}; regression targets are real numbers")
        return _finite(name, y)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ShardError(f"shard: {name} is {y.dtype} {list(y.shape)}; class labels are integers of shape [samples]")
    upper = np.inf if classes is None else classes
    bad = np.flatnonzero((y < 0) | (y >= upper))
    if len(bad):
        allowed = "0 or more" if classes is None else f"0..{classes - 1}"
        raise ShardError(f"shard: {name}[{bad[0]}] is {y[bad[0]]}; labels must be {allowed} ({len(bad)} are not)")
    return np.ascontiguousarray(y, dtype=np.int64)


def _finite(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a double beyond float32 becomes inf and is reported below
        converted = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(converted).all():
        where = np.argwhere(~np.isfinite(converted))[0]
        raise ShardError(
            f"shard: {name}[{', '.join(map(str, where))}] is {values[tuple(where)]}, not a finite float32 number; "
            "clean the data first"
        )
    return converted

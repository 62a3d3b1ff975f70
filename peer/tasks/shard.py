"""The data of one peer: arrays for training, validation and test, with their checks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ShardError
from coordinator_free_bootstrap.seeds import generator
from peer.tasks.preprocessing import Preprocessing

Kind = Literal["classification", "regression"]
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
TRAIN_SAMPLES_MIN = 2  # BatchNorm needs two samples
TEST_SAMPLES_MIN = 1
PER_SAMPLE_MAX = {
    "true_cluster": 4095,
    "test_cluster": 4095,
    "turns": 3,
}  # clusters are counted in an array of this length


@dataclass(frozen=True, eq=False, kw_only=True)
class Shard:
    """The samples of one peer; the first axis of every array is the sample.

    Attributes:
        train_x: inputs [n, ...], floating point; integers for models that embed tokens.
        train_y: targets [n]: integer labels, or floating point [n] / [n, m] for regression.
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
    """

    train_x: NDArray[Any]
    train_y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]
    val_x: NDArray[Any] | None = None
    val_y: NDArray[Any] | None = None
    true_cluster: NDArray[Any] | None = None
    test_cluster: NDArray[Any] | None = None
    turns: NDArray[Any] | None = None
    preprocessing: Preprocessing | None = None
    class_names: tuple[str, ...] | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def part(self, part: Part) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return inputs and targets of one part; without validation data that part has zero samples."""
        if part == "train":
            return self.train_x, self.train_y
        if part == "test":
            return self.test_x, self.test_y
        if self.val_x is None or self.val_y is None:
            return self.train_x[:0], self.train_y[:0]
        return self.val_x, self.val_y

    def holding_out(self, share: float, seed: int) -> Shard:
        """Return the shard with validation data: its own, or a share of its training samples, drawn by ``seed``.

        Args:
            share: in [0, 1); 0 changes nothing. At least one sample is held out if `TRAIN_SAMPLES_MIN` remain.
            seed: of the draw; the same at each start of a peer.
        """
        count = len(self.train_x)
        held = min(max(1, round(share * count)), count - TRAIN_SAMPLES_MIN)
        if not share or held < 1 or len(self.part("validation")[0]):
            return self
        order = generator(seed, "validation").permutation(count)
        kept, out = np.sort(order[held:]), np.sort(order[:held])
        return replace(
            self,
            train_x=self.train_x[kept],
            train_y=self.train_y[kept],
            val_x=self.train_x[out],
            val_y=self.train_y[out],
            true_cluster=None if self.true_cluster is None else self.true_cluster[kept],
            turns=None if self.turns is None else self.turns[kept],
        )

    def checked(self, kind: Kind, classes: int | None) -> Shard:
        """Return the shard with float32 or int64 arrays.

        Args:
            kind: targets become int64 for classification, float32 for regression.
            classes: number of labels, 0..classes-1; None: labels must not be negative.

        Raises:
            ShardError: wrong shapes, NaN or Inf, labels out of range, or too few samples.
        """
        if (self.val_x is None) != (self.val_y is None):
            raise ShardError("shard: found one of val_x and val_y; allowed: both or none")
        arrays: dict[str, Any] = {}
        for name, part in (("train", "train"), ("val", "validation"), ("test", "test")):
            x, y = self.part(part)  # type: ignore[arg-type]
            arrays[f"{name}_x"] = _inputs(f"{name}_x", x)
            arrays[f"{name}_y"] = _targets(f"{name}_y", y, kind, classes)
            if len(x) != len(y):
                raise ShardError(f"shard: found {len(x)} samples in {name}_x, {len(y)} in {name}_y; allowed: equal")
            if x.shape[1:] != self.train_x.shape[1:]:
                raise ShardError(
                    f"shard: {name}_x: found samples of shape {list(x.shape[1:])}; "
                    f"allowed: {list(self.train_x.shape[1:])}, as in train_x"
                )
        for name, least in (("train", TRAIN_SAMPLES_MIN), ("test", TEST_SAMPLES_MIN)):
            if len(arrays[f"{name}_x"]) < least:
                raise ShardError(
                    f"shard: {name}_x: found {len(arrays[f'{name}_x'])} samples; allowed: {least} or more; "
                    "give this peer more data, or use fewer peers"
                )
        arrays |= {name: self._per_sample(name) for name in PER_SAMPLE_MAX}
        return replace(self, **arrays)

    def _per_sample(self, name: str) -> NDArray[np.int64] | None:
        if getattr(self, name) is None:
            return None
        values, most = np.asarray(getattr(self, name)), PER_SAMPLE_MAX[name]
        count = len(self.test_x if name == "test_cluster" else self.train_x)
        if values.shape != (count,):
            raise ShardError(f"shard: {name}: found shape {values.shape}; allowed: ({count},)")
        if not np.issubdtype(values.dtype, np.integer):
            raise ShardError(f"shard: {name}: found dtype {values.dtype}; allowed: integers 0..{most}")
        bad = np.flatnonzero((values < 0) | (values > most))
        if len(bad):
            raise ShardError(f"shard: {name}[{bad[0]}]: found {values[bad[0]]}; allowed: integers 0..{most}")
        return values.astype(np.int64)


def _inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    if not isinstance(x, np.ndarray) or x.ndim < 2:
        found = f"shape {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
        raise ShardError(f"shard: {name}: found {found}; allowed: an array [samples, features...]")
    if np.issubdtype(x.dtype, np.floating):
        return _finite(name, x)
    if np.issubdtype(x.dtype, np.integer):
        return np.ascontiguousarray(x, dtype=np.int64)
    raise ShardError(f"shard: {name}: found dtype {x.dtype}; allowed: floating point or integers")


def _targets(name: str, y: NDArray[Any], kind: Kind, classes: int | None) -> NDArray[Any]:
    if not isinstance(y, np.ndarray) or y.ndim < 1:
        raise ShardError(f"shard: {name}: found {type(y).__name__}; allowed: an array [samples]")
    if kind == "regression":
        if not np.issubdtype(y.dtype, np.number) or np.issubdtype(y.dtype, np.complexfloating):
            raise ShardError(f"shard: {name}: found dtype {y.dtype}; allowed for regression: real numbers")
        return _finite(name, y)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ShardError(
            f"shard: {name}: found {y.dtype} {list(y.shape)}; allowed as labels: integers of shape [samples]"
        )
    upper = np.inf if classes is None else classes
    bad = np.flatnonzero((y < 0) | (y >= upper))
    if len(bad):
        allowed = "0 or more" if classes is None else f"0..{classes - 1}"
        raise ShardError(f"shard: {name}[{bad[0]}]: found label {y[bad[0]]}; allowed: {allowed} ({len(bad)} are wrong)")
    return np.ascontiguousarray(y, dtype=np.int64)


def _finite(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is reported below
        converted = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(converted).all():
        where = np.argwhere(~np.isfinite(converted))[0]
        raise ShardError(
            f"shard: {name}[{', '.join(map(str, where))}]: found {values[tuple(where)]}; allowed: finite float32 numbers; "
            "correct or remove the sample"
        )
    return converted

"""From raw inputs (table rows, pixels) to inputs of a model: one implementation for the loaders and for `peer predict`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks.columns import Columns
from peer.tasks.pictures import read_picture

__all__ = ["PIXELS", "RAW", "SHARED", "Nested", "Preprocessing", "Shared", "of_channels", "precision", "read_picture"]
SAMPLES_MIN = 10  # of a site: the sums of fewer samples say much about each of them
FLOAT32_INTEGER_MAX = 2**24  # float32 has every integer up to it
Nested = float | Sequence[Any]  # a number, or nested lists of numbers, of a shape that broadcasts to one sample


@dataclass(frozen=True)
class Shared:
    """That mean and deviation are those of the training samples of all sites (`peer.tasks.sites`).

    Attributes:
        samples_min: training samples that each site has at least; a site with fewer does not start.
        sites: whose numbers they are; 0: the peers have not agreed yet, and inputs are raw.
        samples: of these sites.
    """

    samples_min: int = SAMPLES_MIN
    sites: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            TaskError: one is no count, or ``samples_min`` is below 2.
        """
        for name, least in (("samples_min", 2), ("sites", 0), ("samples", 0)):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TaskError(f"preprocessing: {name}: expected an integer of {least} or more, got {value!r}")


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """The function ``(raw / divisor - mean) / std``; without arguments the raw inputs are the inputs of the model.

    Attributes:
        divisor: a raw value of this size becomes 1; 255 for pixels. Bytes of pictures are scaled to 0..divisor first.
        mean: subtracted; [features] of rows, [channels, 1, 1] of images.
        std: divisor after the subtraction, as ``mean``.
        columns: names of the columns of a table, in the order of the model's inputs; None for other inputs.
        table: how the cells of a table's raw columns became these columns; None: they are numbers, or there is no table.
        reading: what was detected or converted when the raw data were read, for people; None: nothing.
        of_samples: whether mean and deviation were computed from training samples; each of them then depends on the others.
        shared: set where mean and deviation are those of all sites; None: they are the task's, or of one site's samples.

    Raises:
        TaskError: a value is not a finite number, or a divisor is not positive.

    >>> scaling = Preprocessing.standardizing(np.array([[10.0, 0.0], [30.0, 4.0]]))
    >>> scaling.apply(np.array([[40.0, 2.0]])).tolist()
    [[2.0, 0.0]]
    """

    divisor: float = 1.0
    mean: Nested = 0.0
    std: Nested = 1.0
    columns: tuple[str, ...] | None = None
    table: Columns | None = None
    reading: str | None = None
    shared: Shared | None = None
    of_samples: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        try:
            lists = {name: np.array(getattr(self, name), np.float32).tolist() for name in ("divisor", "mean", "std")}
        except (TypeError, ValueError, OverflowError) as error:
            raise TaskError(
                f"preprocessing: expected numbers, or nested lists of numbers, got other values: {error}"
            ) from error
        for name, found in lists.items():
            wrong = ~np.isfinite(found) if name == "mean" else ~(np.isfinite(found) & (np.array(found) > 0))
            if wrong.any() or (name == "divisor" and not isinstance(found, float)):
                allowed = "finite numbers" if name == "mean" else "positive finite numbers"
                raise TaskError(f"preprocessing: {name}: expected {allowed}, got {getattr(self, name)}")
            object.__setattr__(self, name, found)
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(map(str, self.columns)))

    @classmethod
    def standardizing(cls, train_x: np.ndarray, columns: Sequence[str] | None = None) -> Preprocessing:
        """Return the scaling of each feature of ``train_x`` [n, ...] to mean 0 and deviation 1; constants become 0.

        Raises:
            TaskError: a value is NaN or Inf, or a feature has masked values only.
        """
        train = train_x.astype(precision(train_x))
        deviation = train.std(0)
        names = None if columns is None else tuple(columns)
        if len(wrong := np.argwhere(~np.ma.filled(np.isfinite(deviation), False))):
            feature = wrong[0].tolist() if len(wrong[0]) != 1 else int(wrong[0][0])
            name = f" ({names[feature]!r})" if names is not None and isinstance(feature, int) else ""
            raise TaskError(
                f"preprocessing: feature {feature}{name}: expected finite numbers, got NaN or Inf in the training "
                "samples, or no value. Fill them in, or leave the feature out."
            )
        return cls(
            1.0, train.mean(0).tolist(), np.where(deviation > 0, deviation, 1.0).tolist(), names, of_samples=True
        )

    @override
    def __str__(self) -> str:
        """Return the function as text."""
        if self.shared is not None:
            of = f"{self.shared.samples} samples of {self.shared.sites} sites"
            when = "all sites, agreed before round 0" if self.is_pending else of
            return f"(raw - mean) / std, mean and deviation of {when}"
        if not self.changes_values:
            return "none: raw samples are the inputs of the model"
        divided = "raw" if self.divisor == 1.0 else f"raw / {self.divisor:g}"
        centered = np.any(self.mean) or not np.all(np.equal(self.std, 1.0))
        return f"({divided} - mean) / std" if centered else divided

    @property
    def is_pending(self) -> bool:
        """Whether the peers have still to agree on mean and deviation; until then `apply` leaves the inputs raw."""
        return self.shared is not None and not self.shared.sites

    @property
    def changes_values(self) -> bool:
        """Whether `apply` is more than a conversion to float32."""
        return self.divisor != 1.0 or bool(np.any(self.mean)) or not np.all(np.equal(self.std, 1.0))

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """Return inputs of the model for raw inputs [n, ...], as a new float32 array.

        Integers whose values do not change (token ids) stay integers, int64. Masked values stay masked. While mean and
        deviation are pending, the raw values are returned, in float64 where float32 could not distinguish them.

        Raises:
            TaskError: mean or std do not fit the shape of a sample.
        """
        if not self.changes_values and not self.is_pending and np.issubdtype(raw.dtype, np.integer):
            return np.array(raw, np.int64)
        self.check_shape(raw.shape[1:])
        dtype = precision(raw)
        make: Any = np.ma.array if isinstance(raw, np.ma.MaskedArray) else np.array
        inputs: np.ndarray = make(raw, dtype=dtype)
        if self.is_pending:
            return inputs
        if self.divisor != 1.0:
            inputs /= dtype(self.divisor)
        if np.any(self.mean) or not np.all(np.equal(self.std, 1.0)):
            inputs -= np.array(self.mean, dtype)
            inputs /= np.array(self.std, dtype)
        with np.errstate(over="ignore"):  # a value beyond float32 becomes inf, which the shard refuses
            return inputs.astype(np.float32, copy=False)

    def replacing(self, other: Preprocessing, inputs: np.ndarray) -> np.ndarray:
        """Return ``inputs`` [n, ...], which ``other`` has scaled, as this preprocessing scales them."""
        if self.scale() == other.scale():
            return inputs
        raw = (inputs.astype(np.float64) * np.array(other.std) + np.array(other.mean)) * other.divisor
        return self.apply(raw)

    def check_shape(self, sample_shape: tuple[int, ...]) -> None:
        """Compare the shapes of mean and std with the shape of a sample.

        Raises:
            TaskError: they do not broadcast to it.
        """
        for name in ("mean", "std"):
            shape = np.shape(getattr(self, name))
            try:
                fits = np.broadcast_shapes(shape, sample_shape) == tuple(sample_shape)
            except ValueError:
                fits = False
            if not fits:
                raise TaskError(
                    f"preprocessing: {name}: expected a shape that broadcasts to a sample, {list(sample_shape)}, got "
                    f"shape {list(shape)}"
                )

    def scale(self) -> dict[str, Any]:
        """Return the numbers as JSON values; each number is exact in float32."""
        return {"divisor": self.divisor, "mean": self.mean, "std": self.std}

    def to_json(self) -> str:
        """Return the JSON object that `from_json` reads."""
        more: dict[str, Any] = {} if self.reading is None else {"reading": self.reading}
        if self.table is not None:
            more["table"] = self.table.to_json()
        if self.shared is not None:
            more["shared"] = asdict(self.shared)
        if self.of_samples:
            more["of_samples"] = True
        return json.dumps({**self.scale(), "columns": self.columns, **more})

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """Read the result of `to_json`.

        Raises:
            TaskError: the text is not such an object.
        """
        try:
            fields: Any = json.loads(text)
            needed = {"divisor", "mean", "std", "columns"}
            if not isinstance(fields, dict) or not needed <= fields.keys() <= needed | {
                "table",
                "reading",
                "shared",
                "of_samples",
            }:
                raise ValueError("other keys")
            if fields["columns"] is not None and not isinstance(fields["columns"], list):
                raise ValueError("columns that are no list")
            if "table" in fields:
                fields["table"] = Columns.from_json(fields["table"])
            if "shared" in fields:
                fields["shared"] = Shared(**fields["shared"])
        except (TypeError, ValueError, RecursionError) as error:
            raise TaskError(
                f"preprocessing: expected an object with divisor, mean, std, columns, got {text[:80]!r} ({error})"
            ) from error
        return cls(**fields)


def precision(raw: np.ndarray) -> type[np.floating]:
    """Return float64 for values that float32 cannot distinguish from adjacent ones, such as times in seconds; else float32."""
    wide = raw.dtype.kind in "fiu" and raw.dtype.itemsize >= np.dtype(np.int32).itemsize and raw.dtype != np.float32
    return np.float64 if wide and raw.size and not np.abs(raw).max() <= FLOAT32_INTEGER_MAX else np.float32


RAW = Preprocessing()
SHARED = Preprocessing(shared=Shared())
PIXELS = Preprocessing(divisor=255.0)


def of_channels(mean: Sequence[float], std: Sequence[float]) -> Preprocessing:
    """Return the preprocessing of pixels 0..255 by mean and deviation of each channel of the images / 255."""
    return Preprocessing(255.0, [[[value]] for value in mean], [[[value]] for value in std])

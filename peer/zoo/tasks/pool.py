"""A data set: its entry in the table (`DataSet`), and its samples in memory (`Pool`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.options import parsed
from peer.tasks.preprocessing import RAW, Preprocessing
from peer.zoo.tasks.data_options import DataOptions

Settings = Mapping[str, Any]  # task_options by name
Loader = Callable[["DataSet", Settings, Path, bool], "Pool"]


class Facts(NamedTuple):
    """Facts about a data set that follow from its name and options; None: known only from its files."""

    sample_shape: tuple[int, ...] | None = None
    classes: int | None = None
    regression: bool = False


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One entry of `peer.zoo.tasks.datasets.DATASETS`; the only place where a data set is described.

    Attributes:
        name: the manifest's ``task``.
        load: returns the samples; arguments: this entry, the task_options, the data root, whether to download.
        facts: shape of a sample and number of labels, by the task_options.
        model: name and options of the default model.
        about: one sentence for people.
        options: class of its task_options; the loader gets all of them, by name.
        reads_files: whether a data root is required.
        files: an example of the data root.
        layout: its files, as a glob below the data root; ``{split}`` is that key of task_options.
        has_columns: whether split by_column can group its samples: ``load`` then reads the option ``by``, a column.
        torchvision: its class in ``torchvision.datasets``; "" for other data sets.
        mean: of each channel of the training images / 255, for ``normalize``.
        std: standard deviation, as ``mean``.
    """

    name: str
    load: Loader
    facts: Callable[[Settings], Facts]
    model: tuple[str, dict[str, object]]
    about: str
    options: type[DataOptions] = DataOptions
    reads_files: bool = True
    files: str = "DIR"
    layout: str = "**/*"
    has_columns: bool = False
    torchvision: str = ""
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def read(self, given: Settings) -> dict[str, Any]:
        """Return all options: those of the manifest, and the defaults of the others.

        Raises:
            TaskError: an option is unknown, out of range or without effect.
        """
        read = parsed(self.options, given, "run.task_options.{}".format, TaskError, f"task {self.name!r}")
        return {name: getattr(read, name) for name in self.options.model_fields}

    @property
    def local_options(self) -> frozenset[str]:
        """The options of a command line that it uses."""
        used = {"shard"} | ({"data_root"} if self.reads_files else set())
        return frozenset(used | ({"download"} if self.torchvision else set()))


@dataclass(frozen=True, eq=False, kw_only=True)
class Pool:
    """All samples of a data set: [0, train_count) is the published training set, the rest the published test set.

    Samples stay raw, images as bytes; `gather` preprocesses the samples of one peer.

    Attributes:
        x: raw inputs: uint8 images [n, channels, height, width], or float32 [n, ...].
        y: int64 labels [n], or float32 targets.
        train_count: number of training samples.
        classes: number of labels; None for regression.
        source: int64 [n], the distribution of each sample, if the data set has several; else None.
        preprocessing: from ``x`` to inputs of a model.
        class_names: name of each label; None if unknown.
        group: int64 [n], the writer of each sample (FEMNIST), or its value in a column (split by_column); else None.
        about: metadata for the shards, such as the name of a table's ``target``.
    """

    x: np.ndarray
    y: np.ndarray
    train_count: int
    classes: int | None
    source: NDArray[np.int64] | None = None
    preprocessing: Preprocessing = RAW
    class_names: tuple[str, ...] | None = None
    group: NDArray[np.int64] | None = None
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.x.shape[1:]

    def gather(self, index: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the samples ``index`` preprocessed, float32 [m, ...], each rotated counter-clockwise by its quarter turns.

        Raises:
            TaskError: samples to rotate are not square images.
        """
        return rotated(self.preprocessing.apply(self.x[index]), turns)


def rotated(images: NDArray[np.float32], turns: NDArray[np.int64]) -> NDArray[np.float32]:
    """Rotate each image [m, ..., height, width] by its quarter turns, in place, without interpolation."""
    if not turns.any():
        return images
    if images.ndim < 3 or images.shape[-1] != images.shape[-2]:
        raise TaskError(f"split: expected square images for rotations, got samples of shape {list(images.shape[1:])}")
    for quarter in (1, 2, 3):
        chosen = np.flatnonzero(turns == quarter)
        if len(chosen):
            images[chosen] = np.rot90(images[chosen], quarter, axes=(-2, -1))
    return images

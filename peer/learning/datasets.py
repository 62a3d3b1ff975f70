"""The samples of a PyTorch data set, or of a loader over one, with the members of `Samples`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler, Subset, default_collate

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.strict_json import of_type
from peer.learning.samples import Batch
from peer.tasks.shard import PARTS, Part

Loadable = Any  # a DataLoader, or a Dataset with a length


def parts_of(data: object) -> dict[Part, Loadable]:
    """Return the data sets and loaders by part, where data are a dict of them, ``{"train": ..., "test": ...}``; else nothing."""
    if not isinstance(data, Mapping) or "train" not in data or not set(data) <= set(PARTS):
        return {}
    return {part: data[part] for part in PARTS if part in data} if all(map(_is_source, data.values())) else {}


def _is_source(value: object) -> bool:
    dataset = value.dataset if isinstance(value, DataLoader) else value
    return isinstance(dataset, Dataset) and hasattr(dataset, "__len__")


def subset_of(source: Loadable, indices: NDArray[np.int64]) -> Loadable:
    """Return a data set or loader with only some of the samples, in the given order, with repetitions if they have some.

    Raises:
        TaskError: a loader has a sampler of its own.
    """
    chosen = [int(index) for index in indices]
    if not isinstance(source, DataLoader):
        return Subset(source, chosen)
    shuffle = isinstance(source.sampler, RandomSampler)
    if source.batch_size is None or not (shuffle or isinstance(source.sampler, SequentialSampler)):
        raise TaskError(
            "load_data: expected a DataLoader with or without shuffle, to train on some samples, got one with "
            f"{of_type(source.sampler)}. Write Task.subset(data, indices), or choose an algorithm that trains on all samples."
        )
    return DataLoader(
        Subset(source.dataset, chosen),
        batch_size=source.batch_size,
        shuffle=shuffle,
        num_workers=source.num_workers,
        collate_fn=source.collate_fn,
        pin_memory=source.pin_memory,
        drop_last=source.drop_last and len(chosen) >= source.batch_size,
        worker_init_fn=source.worker_init_fn,
    )


class DatasetSamples:
    """See `peer.learning.samples.Samples`; a sample is read, with its augmentation, when a batch needs it.

    Args:
        name: of the part.
        source: a loader, whose collate function is used, or a data set; its batches are pairs (inputs, targets).
        device: of the batches.
    """

    stored, stackable = True, False

    def __init__(self, name: str, source: Loadable, device: torch.device) -> None:
        self._name, self._device = name, device
        loader = source if isinstance(source, DataLoader) else None
        self._dataset: Any = source if loader is None else loader.dataset
        self._collate = default_collate if loader is None else loader.collate_fn

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._dataset)

    def check_labels(self, outputs: int) -> None:
        """Labels are not checked: they are read batch by batch."""

    def batch(self, rows: Tensor | slice) -> tuple[Batch, Tensor]:
        """Return inputs and targets of the rows.

        Raises:
            TaskError: a batch is no pair.
        """
        numbers = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        found: Any = self._collate([self._dataset[number] for number in numbers])
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TaskError(
                f"load_data: {self._name}: expected batches (inputs, targets), got {of_type(found)}. Give the task own evaluate "
                "and losses."
            )
        inputs, targets = (_moved(each, self._device) for each in found)
        return inputs, targets

    def inputs(self, rows: Tensor | slice) -> Batch:
        """Return the inputs of the rows."""
        return self.batch(rows)[0]

    def targets(self, rows: Tensor | slice) -> Tensor:
        """Return the targets of the rows."""
        return self.batch(rows)[1]

    def whole(self) -> tuple[Tensor, Tensor]:
        """Return all samples at once; of several inputs it is not asked."""
        inputs, targets = self.batch(slice(None))
        assert isinstance(inputs, Tensor)
        return inputs, targets

    def slices(self, size: int) -> Iterator[slice]:
        """Return the rows in order, ``size`` at a time."""
        return (slice(start, start + size) for start in range(0, len(self), size))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _moved(each, device) for name, each in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value

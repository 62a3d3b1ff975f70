"""Built-in tasks: data set, split and model by name, with the interface of a user's task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn
from typing_extensions import override

from coordinator_free_bootstrap.errors import ShardError
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.dealt import DealtTask
from peer.tasks.shard import Shard
from peer.tasks.shard_file import load_shard_file
from peer.tasks.sources import DataSource
from peer.zoo.tasks.datasets import DATASETS, facts_of, group_column, load_pool
from peer.zoo.tasks.dealing import Deal, outputs_for
from peer.zoo.tasks.models import check_model_name, model_of
from peer.zoo.tasks.pool import DataSet, Pool
from peer.zoo.tasks.splits import PeerSplit, check_split, splits

OPEN = ("target", "columns", "categories", "classes")  # in the order in which a reader of a table decides them


class NamedModelTask(DealtTask):
    """A task with a model by name: `BuiltinTask` and `ShardTask`.

    Args:
        manifest: keys task, model and model_options are read.
        sample_shape: of one input.
        classes: number of labels; None for regression.
        outputs: of the model; equal to ``classes`` in classification.
    """

    def __init__(self, manifest: Manifest, sample_shape: tuple[int, ...], classes: int | None, outputs: int) -> None:
        self._manifest = manifest
        self._sample_shape = sample_shape
        self._outputs = outputs
        self.classes = classes
        self.kind = "regression" if classes is None else "classification"

    @property
    @override
    def open_options(self) -> tuple[str, ...]:
        known = DATASETS[self._manifest.task].options.model_fields
        return tuple(name for name in OPEN if name in known and name not in self._manifest.task_options)

    @override
    def make_model(self) -> nn.Module:
        return SOURCES[self._manifest.task].make_model(self._manifest, self._sample_shape, self._outputs)


class BuiltinTask(NamedModelTask):
    """A data set of `DATASETS`, split between the peers as the manifest says.

    Args:
        manifest: keys task, task_options, model, model_options, split, split_options and data_seed are read.
        peers: N, the number of peers in the graph.
        data_root: folder of the data sets.
        download: whether torchvision may download missing files.

    Raises:
        TaskError: unknown name or option in the manifest, or missing files.
    """

    def __init__(self, manifest: Manifest, peers: int, data_root: Path | None, download: bool) -> None:
        pool = load_pool(manifest.task, manifest.task_options, data_root, download, group_column(manifest))
        self._deal = Deal(pool, manifest, peers)
        super().__init__(manifest, pool.sample_shape, self._deal.classes, self._deal.outputs)

    @property
    @override
    def pool_names(self) -> tuple[str, ...] | None:
        return self._deal.pool.class_names

    def split(self) -> list[PeerSplit]:
        """Return the samples of all peers; computed once per process."""
        return self._deal.split()

    @override
    def load_shard(self, peer_id: int) -> Shard:
        return self._deal.shard(peer_id)


class ShardTask(NamedModelTask):
    """A built-in task with the data of this device, which replace the data set and the split.

    Args:
        manifest: keys task, task_options, model and model_options are read.
        path: a shard file, or a folder (image-folder), or a CSV or Parquet file (tabular).

    Raises:
        ShardError: the shard file is wrong or of another task.
        TaskError: the folder or table is wrong.
    """

    def __init__(self, manifest: Manifest, path: Path) -> None:
        self._is_file = path.suffix == ".safetensors"
        if self._is_file:
            self._shard = load_shard_file(path)
            classes = classes_of(self._shard, path)
            _check_origin(self._shard, classes, manifest, path)
        else:
            pool = load_pool(manifest.task, manifest.task_options, path, False, group_column(manifest))
            self._shard, classes = _whole(pool), pool.classes
        shape = self._shard.train_x.shape[1:]
        super().__init__(manifest, shape, classes, outputs_for(self._shard.train_y, classes))

    @property
    @override
    def open_options(self) -> tuple[str, ...]:
        return () if self._is_file else super().open_options

    @override
    def load_shard(self, peer_id: int) -> Shard:
        return self._shard


def classes_of(shard: Shard, path: Path) -> int | None:
    """Return the number of labels in the metadata of a file, None for regression; the labels may lack the highest one.

    Raises:
        ShardError: the metadata have no such number.
    """
    text = shard.metadata.get("classes", "")
    if shard.metadata.get("kind") == "regression":
        return None
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < 2:
        raise ShardError(f"shard: {path}: expected the number of labels, got classes {text!r} in the metadata")
    return int(text)


def _check_origin(shard: Shard, classes: int | None, manifest: Manifest, path: Path) -> None:
    """Compare a shard file with the manifest's task.

    Raises:
        ShardError: another task, kind, number of labels or shape of a sample.
    """
    facts = facts_of(manifest)
    dealt = [splits()[name] for name in (manifest.split, shard.metadata.get("split", "")) if name in splits()]
    labels = next((split.classes for split in dealt if split.classes is not None), facts.classes)
    shape = shard.train_x.shape[1:]
    kind, wanted_kind = (
        "regression" if regression else "classification" for regression in (classes is None, facts.regression)
    )
    rows = [
        ("task", shard.metadata.get("task", manifest.task), manifest.task),
        ("kind", kind, wanted_kind),
        ("classes", classes, labels if labels is not None and classes is not None else classes),
        ("samples of shape", list(shape), list(shape if facts.sample_shape is None else facts.sample_shape)),
    ]
    columns = shard.preprocessing.columns if shard.preprocessing is not None else None
    for what, found in (("class names", shard.class_names), ("columns", columns)):
        given = manifest.task_options.get("classes" if what == "class names" else what)
        if found is not None and isinstance(given, list | tuple):
            rows.append((what, list(found), [str(name) for name in given]))
    wrong = [f"expected {what} {wanted}, got {found}" for what, found, wanted in rows if found != wanted]
    if wrong:
        raise ShardError(
            f"shard: {path}: {'; '.join(wrong)}. The task of the manifest is {manifest.task!r} with task_options "
            f"{manifest.task_options}. Give a shard of that task, or change run.task or run.task_options."
        )


def _whole(pool: Pool) -> Shard:
    """Return all samples of a pool as one shard."""
    train, test = np.arange(pool.train_count), np.arange(pool.train_count, len(pool.y))
    return Shard(
        train_x=pool.gather(train, np.zeros_like(train)),
        train_y=pool.y[train],
        test_x=pool.gather(test, np.zeros_like(test)),
        test_y=pool.y[test],
        preprocessing=pool.preprocessing,
        class_names=pool.class_names,
        metadata=dict(pool.about),
    )


@dataclass(frozen=True)
class NamedData(DataSource):
    """A data set of `DATASETS` as the kernel finds it by name."""

    dataset: DataSet

    @property
    @override
    def local_options(self) -> frozenset[str]:
        """As the entry says."""
        return self.dataset.local_options

    @property
    @override
    def reads_files(self) -> bool:
        """As the entry says."""
        return self.dataset.reads_files

    @override
    def check(self, manifest: Manifest) -> None:
        dataset = self.dataset
        dataset.read(manifest.task_options)
        check_split(manifest)
        group_column(manifest)
        check_model_name(manifest.model or dataset.model[0], manifest.model_options)

    @override
    def dealt(self, manifest: Manifest, peers: int, data_root: Path | None, download: bool) -> BuiltinTask:
        return BuiltinTask(manifest, peers, data_root, download)

    @override
    def of_device(self, manifest: Manifest, path: Path) -> ShardTask:
        """Return the task with a device's own file or folder."""
        return ShardTask(manifest, path)

    @override
    def preload(self, manifest: Manifest, peers: int, data_root: Path | None) -> None:
        BuiltinTask(manifest, peers, data_root, download=False).split()

    @override
    def make_model(self, manifest: Manifest, sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return model_of(manifest, self.dataset.model, sample_shape, outputs)


SOURCES = {name: NamedData(dataset) for name, dataset in DATASETS.items()}

"""Built-in tasks: a pool, a split and a model by name, behind the same interface as a user's own file."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from coordinator_free_bootstrap.errors import ShardError, TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.learning import models
from peer.tasks.datasets import load_pool
from peer.tasks.pool import Pool
from peer.tasks.shard import Shard
from peer.tasks.shard_file import load_shard_file
from peer.tasks.splits import PeerSplit, Samples, SplitInput, make_split
from peer.tasks.splits.mixtures import LETTERS
from peer.tasks.splits.plan import UNKNOWN
from peer.tasks.task import Task
from peer.tasks.vision import EMNIST_SPLITS

# task -> shape of a sample, number of labels; the other tasks have theirs from their options, or from the user's files
PUBLISHED: dict[str, tuple[tuple[int, ...], int]] = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fmnist": ((1, 28, 28), 10),
    "femnist": ((1, 28, 28), 62),
    "emnist": ((1, 28, 28), EMNIST_SPLITS["balanced"]),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
}
DEFAULT_MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "digits": ("mlp", {"hidden": 256}),
    "mnist": ("mlp2048", {}),
    "fmnist": ("mlp2048", {}),
    "femnist": ("mlp2048", {}),
    "emnist": ("dfca_cnn", {}),
    "cifar10": ("dpfl_cnn", {}),
    "cifar100": ("dpfl_cnn", {}),
    "image-folder": ("dfca_cnn", {}),
    "linear": ("mlr", {}),
    "tabular": ("mlp", {"hidden": 64}),
}


class NamedModelTask(Task):
    """A task whose model is chosen by name: `BuiltinTask` and `ShardTask`.

    Args:
        manifest: keys task, model and model_options are read.
        sample_shape: of one input.
        classes: number of labels; None for regression.
        outputs: of the model; equals ``classes`` in classification.
    """

    def __init__(self, manifest: Manifest, sample_shape: tuple[int, ...], classes: int | None, outputs: int) -> None:
        self._manifest = manifest
        self._sample_shape = sample_shape
        self._outputs = outputs
        self.classes = classes
        self.kind = "regression" if classes is None else "classification"

    def make_model(self) -> nn.Module:
        """Return the manifest's model, or the data set's default one."""
        return self.build(self._manifest, self._sample_shape, self._outputs)

    @staticmethod
    def build(manifest: Manifest, sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the model of a manifest with a built-in task, without its data."""
        name, options = DEFAULT_MODELS[manifest.task]
        if manifest.model is not None and manifest.model != name:
            name, options = manifest.model, {}
        return models.make_model(name, sample_shape, outputs, {**options, **manifest.model_options})


class BuiltinTask(NamedModelTask):
    """One of the project's own data sets, dealt to ``peers`` peers as the manifest says.

    Args:
        manifest: keys task, task_options, model, model_options, split, split_options and data_seed are read.
        peers: N of the graph.
        data_root: folder of the data sets.
        download: whether missing files may be fetched.

    Raises:
        TaskError: the manifest names something unknown, or the files are missing.
    """

    def __init__(self, manifest: Manifest, peers: int, data_root: Path | None, download: bool) -> None:
        self._peers = peers
        self._pool = load_pool(manifest.task, manifest.task_options, data_root, download)
        # EMNIST by-class has 62 labels; splitting by case merges them into the 26 of the alphabet.
        classes = LETTERS if manifest.split == "letters_case" else self._pool.classes
        super().__init__(manifest, self._pool.sample_shape, classes, _outputs(self._pool.y, classes))

    def split(self) -> list[PeerSplit]:
        """Return the plan for all peers, computed once per process."""
        if self._manifest.split == "shard":
            raise TaskError("split is 'shard', so each peer needs its own data: give --shard FILE")
        options = json.dumps(self._manifest.split_options, sort_keys=True)
        return _split(_Same(self._pool), self._peers, self._manifest.split, options, self._manifest.data_seed)

    def load_shard(self, peer_id: int) -> Shard:
        """Gather the samples of one peer out of the pool."""
        if not 0 <= peer_id < self._peers:
            raise TaskError(f"peer {peer_id} does not exist: the data are dealt to peers 0..{self._peers - 1}")
        mine = self.split()[peer_id]
        parts = {name: self._gather(getattr(mine, name), mine) for name in ("train", "test", "validation")}
        has_validation = len(mine.validation) > 0
        truth = mine.train.cluster
        return Shard(
            train_x=parts["train"][0],
            train_y=parts["train"][1],
            test_x=parts["test"][0],
            test_y=parts["test"][1],
            val_x=parts["validation"][0] if has_validation else None,
            val_y=parts["validation"][1] if has_validation else None,
            true_cluster=None if (truth == UNKNOWN).all() else truth,
            turns=mine.train.turns,
            metadata=self._metadata(peer_id),
        )

    def _gather(self, samples: Samples, split: PeerSplit) -> tuple[NDArray[Any], NDArray[Any]]:
        labels = self._pool.y[samples.index]
        if split.label_map is not None:
            labels = split.label_map[labels]
        return self._pool.gather(samples.index, samples.turns), labels

    def _metadata(self, peer_id: int) -> dict[str, str]:
        m = self._manifest
        settings: Mapping[str, object] = {
            "task": m.task,
            "task_options": m.task_options,
            "split": m.split,
            "split_options": m.split_options,
            "data_seed": m.data_seed,
            "peers": self._peers,
            "peer": peer_id,
            "kind": self.kind,
            "classes": self.classes,
        }
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}


class ShardTask(NamedModelTask):
    """A built-in task on this device's own data, which replace the data set and the split.

    Args:
        manifest: keys task, task_options, model and model_options are read.
        path: a shard file; for image-folder a folder, for tabular a CSV or Parquet file.

    Raises:
        ShardError: the shard file cannot be used, or is of another task.
        TaskError: the folder or table cannot be used.
    """

    def __init__(self, manifest: Manifest, path: Path) -> None:
        if path.suffix == ".safetensors":
            self._shard = load_shard_file(path)
            classes = classes_of(self._shard, path)
            _check_origin(self._shard, classes, manifest, path)
        else:
            pool = load_pool(manifest.task, manifest.task_options, path, download=False)
            self._shard, classes = _whole(pool), pool.classes
        shape = self._shard.train_x.shape[1:]
        super().__init__(manifest, shape, classes, _outputs(self._shard.train_y, classes))

    def load_shard(self, peer_id: int) -> Shard:
        """Return the shard, whoever asks."""
        return self._shard


def _outputs(targets: NDArray[Any], classes: int | None) -> int:
    return math.prod(targets.shape[1:]) if classes is None else classes


def classes_of(shard: Shard, path: Path) -> int | None:
    """Return the number of labels that the file's metadata gives, None for regression; labels alone may lack the highest.

    Raises:
        ShardError: the metadata gives none.
    """
    text = shard.metadata.get("classes", "")
    if shard.metadata.get("kind") == "regression":
        return None
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < 2:
        raise ShardError(f"shard: {path} has classes = {text!r} in its metadata; it must be the number of labels")
    return int(text)


def _check_origin(shard: Shard, classes: int | None, manifest: Manifest, path: Path) -> None:
    """Hold a shard file against the manifest's task.

    Raises:
        ShardError: it is of another task, kind, number of labels or shape of a sample.
    """
    shape, labels = _facts(manifest)
    if "letters_case" in (manifest.split, shard.metadata.get("split")):
        labels = LETTERS
    regression = manifest.task == "linear" or manifest.task_options.get("kind") == "regression"
    found_shape, name = shard.train_x.shape[1:], shard.metadata.get("task", manifest.task)
    rows = [
        ("task", name, manifest.task),
        (
            "kind",
            *("regression" if is_regression else "classification" for is_regression in (classes is None, regression)),
        ),
        ("classes", classes, labels if labels is not None and classes is not None else classes),
        ("samples of shape", list(found_shape), list(found_shape if shape is None else shape)),
    ]
    wrong = [f"{what} {found} instead of {wanted}" for what, found, wanted in rows if found != wanted]
    if wrong:
        raise ShardError(
            f"shard: {path} has {', '.join(wrong)}: the manifest's task is {manifest.task!r} with task_options "
            f"{manifest.task_options}; give a shard of that task, or change run.task or run.task_options"
        )


def _facts(manifest: Manifest) -> tuple[tuple[Any, ...] | None, int | None]:
    """Return the shape of a sample and the number of labels that a task has by its name and options; None: unknown."""
    options, task = manifest.task_options, manifest.task
    if task in PUBLISHED:
        shape, labels = PUBLISHED[task]
        labels = EMNIST_SPLITS.get(str(options.get("split")), labels) if task == "emnist" else labels
        if (second := str(options.get("second"))) in PUBLISHED:  # as `vision.joined` frames and counts them
            other_shape, other_labels = PUBLISHED[second]
            shape, labels = tuple(map(max, shape, other_shape)), max(labels, other_labels)
        return shape, labels
    if task == "linear":
        return (options.get("features", 10),), None
    names, size = options.get("classes"), options.get("size", 32)
    images = (options.get("channels", 3), size, size) if task == "image-folder" else None
    return images, len(names) if isinstance(names, list) else None


def _whole(pool: Pool) -> Shard:
    """Return a whole pool as one shard."""
    train, test = np.arange(pool.train_count), np.arange(pool.train_count, len(pool.y))
    return Shard(
        train_x=pool.gather(train, np.zeros_like(train)),
        train_y=pool.y[train],
        test_x=pool.gather(test, np.zeros_like(test)),
        test_y=pool.y[test],
    )


class _Same:
    """A pool as a cache key: equal only to itself."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.pool is self.pool

    def __hash__(self) -> int:
        return id(self.pool)


@functools.lru_cache(maxsize=4)
def _split(same: _Same, peers: int, name: str, options: str, data_seed: int) -> list[PeerSplit]:
    pool = same.pool
    labels = pool.y if pool.classes is not None else np.zeros(len(pool.y), dtype=np.int64)
    data = SplitInput(labels, pool.train_count, peers, pool.source, pool.writer)
    return make_split(name, data, json.loads(options), data_seed)

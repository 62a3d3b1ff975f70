"""From the manifest's ``task`` to a `Task`: built in, an installed entry point, or a user's own file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.builtin import BuiltinTask, ShardTask
from peer.tasks.datasets import LOADERS
from peer.tasks.shard import Kind, Shard
from peer.tasks.shard_file import load_shard_file
from peer.tasks.task import Task

ENTRY_POINTS = "coordinator_free.tasks"


def load_task(
    manifest: Manifest,
    peers: int,
    *,
    data_root: Path | None = None,
    shard_path: Path | None = None,
    download: bool = False,
) -> Task:
    """Return the task that the manifest names.

    Args:
        manifest: its task, model and split keys are read.
        peers: N, to which built-in data sets are dealt.
        data_root: folder of the built-in data sets.
        shard_path: a shard file or folder of this device, which replaces what the task would load.
        download: whether torchvision may fetch missing files.

    Raises:
        TaskError: the task is unknown, cannot be imported, or is not a task.
        ShardError: the shard file cannot be used.
    """
    if manifest.task in LOADERS:
        if shard_path is not None:
            return ShardTask(manifest, shard_path)
        return BuiltinTask(manifest, peers, data_root, download)
    task = _from_file(manifest) if ":" in manifest.task else _from_entry_point(manifest)
    if shard_path is not None:
        return OwnDataTask(task, load_shard_file(shard_path))
    return task


class OwnDataTask(Task):
    """A user's task on a shard file of this device instead of what its `load_shard` would read."""

    def __init__(self, task: Task, shard: Shard) -> None:
        self._task, self._shard = task, shard
        self.kind, self.classes = task.kind, task.classes

    @property
    def metric_name(self) -> str:
        """Name of what `metric` returns."""
        return self._task.metric_name

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger metric is better."""
        return self._task.higher_is_better

    def make_model(self) -> nn.Module:
        """Return the user's model."""
        return self._task.make_model()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the user's loss."""
        return self._task.loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the user's metric."""
        return self._task.metric(outputs, targets)

    def make_optimizer(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer | None:
        """Return the user's optimizer, or None."""
        return self._task.make_optimizer(parameters, learning_rate)

    def load_shard(self, peer_id: int) -> Shard:
        """Return the shard, whoever asks."""
        return self._shard


def preload(manifest: Manifest, peers: int, data_root: Path | None = None) -> None:
    """Decode a built-in data set and deal it, once, so that processes forked afterwards share these pages.

    Each then only gathers its own samples. Does nothing for a user's own task, whose `load_shard` reads what it wants.
    """
    if manifest.task in LOADERS and manifest.split != "shard":
        BuiltinTask(manifest, peers, data_root, download=False).split()


def _from_entry_point(manifest: Manifest) -> Task:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS, name=manifest.task)
    if not found:
        installed = sorted(importlib.metadata.entry_points(group=ENTRY_POINTS).names)
        raise TaskError(
            f"task: {manifest.task!r} is unknown; built in are {', '.join(sorted(LOADERS))}; "
            f"installed are {', '.join(installed) or 'none'}; a file of your own is path/to/file.py:object"
        )
    try:
        loaded = next(iter(found)).load()
    except Exception as error:  # the package's own code may raise anything
        raise TaskError(f"task: {manifest.task} cannot be imported: {type(error).__name__}: {error}") from error
    return _instance(loaded, manifest)


def _from_file(manifest: Manifest) -> Task:
    path_text, _, name = manifest.task.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise TaskError(f"task: there is no file {path_text!r}; write path/to/file.py:object")
    module_name = f"coordinator_free_task_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise TaskError(f"task: {path} is not a Python file; its name must end in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and typing look modules up while the file runs
        if (beside := str(path.resolve().parent)) not in sys.path:
            sys.path.append(beside)  # last: a user's file must not hide an installed module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the user's own code may raise anything; say where it came from
            del sys.modules[module_name]
            raise TaskError(f"task: {path} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise TaskError(f"task: {path} has no {name!r}; write {path_text}:task for an object named task")
    return _instance(getattr(module, name), manifest)


def _instance(found: object, manifest: Manifest) -> Task:
    """Return a task object; a class is called with the manifest's ``task_options``."""
    if isinstance(found, type) and issubclass(found, Task):
        try:
            found = found(**manifest.task_options)
        except Exception as error:  # the user's own code may raise anything
            raise TaskError(
                f"task: {manifest.task} cannot be made with task_options {manifest.task_options}: "
                f"{type(error).__name__}: {error}"
            ) from error
    elif manifest.task_options:
        raise TaskError(
            f"task: {manifest.task} is an object, so task_options must be empty; name its class to pass options"
        )
    if not isinstance(found, Task):
        raise TaskError(
            f"task: {manifest.task} is a {type(found).__name__}; it must be an object or subclass of peer.tasks.Task "
            "with make_model and load_shard"
        )
    if found.kind not in get_args(Kind):
        raise TaskError(f"task: {manifest.task} has kind {found.kind!r}; allowed: {', '.join(get_args(Kind))}")
    classes: object = found.classes
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 2):
        raise TaskError(f"task: {manifest.task} has classes {classes!r}; allowed: an integer of 2 or more, or None")
    return found

"""Load the `Task` that the manifest names: a built-in data set, an installed entry point, or a user's file."""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import get_args

import numpy as np

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.builtin import BuiltinTask, ShardTask
from peer.tasks.datasets import DATASETS
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import Kind
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
        peers: N, the number of peers that share a built-in data set.
        data_root: folder of the built-in data sets.
        shard_path: shard file or folder of this device, used in place of the data of the task.
        download: whether torchvision may download missing files.

    Raises:
        TaskError: the task is unknown, cannot be imported, or is not a `Task`.
        ShardError: the shard file cannot be used.
    """
    if manifest.task in DATASETS:
        if shard_path is not None:
            return ShardTask(manifest, shard_path)
        return BuiltinTask(manifest, peers, data_root, download)
    task = _from_file(manifest) if ":" in manifest.task else _from_entry_point(manifest)
    if shard_path is not None:
        task, shard = copy.copy(task), load_shard_file(shard_path)  # a copy: the user's object may be loaded again
        object.__setattr__(task, "load_shard", lambda peer_id: shard)  # also where the class is a frozen dataclass
    return task


def find_task_file(task: str, model_file: Path) -> str:
    """Return ``path/to/file.py:object`` with a path that exists: as it is, or from a folder that holds the model file.

    A run directory is made where the task file's path is valid, so the folders of ``models``, of the peer, of the run, and
    the one above are searched. Names of built-in and installed tasks are returned as they are.

    Raises:
        TaskError: the file is in none of these folders.
    """
    path_text, separator, name = task.rpartition(":")
    if not separator or Path(path_text).is_file():
        return task
    folders = model_file.resolve().parents[:4]
    for folder in folders:
        if (folder / path_text).is_file():
            return f"{folder / path_text}:{name}"
    searched = ", ".join(map(str, (Path.cwd(), *folders)))
    raise TaskError(
        f"task: found no file {path_text!r} in {searched}; {model_file} was trained with it; "
        f"give its place: --task path/to/{Path(path_text).name}:{name}"
    )


def same_task(first: str, second: str) -> bool:
    """Return whether two values of ``task`` are equal, or name the same object of a file of the same name."""
    return first == second or (":" in first and Path(first).name == Path(second).name)


def preload(manifest: Manifest, peers: int, data_root: Path | None = None) -> None:
    """Load and split a built-in data set once, so that processes forked afterwards share its memory.

    No effect for a user's task.
    """
    if manifest.task in DATASETS and manifest.split != "shard":
        BuiltinTask(manifest, peers, data_root, download=False).split()


def _from_entry_point(manifest: Manifest) -> Task:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS, name=manifest.task)
    if not found:
        installed = sorted(importlib.metadata.entry_points(group=ENTRY_POINTS).names)
        raise TaskError(
            f"task: found {manifest.task!r}; allowed: built in {', '.join(sorted(DATASETS))}; "
            f"installed {', '.join(installed) or 'none'}; or your file as path/to/file.py:object"
        )
    try:
        loaded = next(iter(found)).load()
    except Exception as error:  # code of the package; it may raise any exception
        raise TaskError(f"task: {manifest.task} cannot be imported: {type(error).__name__}: {error}") from error
    return _instance(loaded, manifest)


def _from_file(manifest: Manifest) -> Task:
    path_text, _, name = manifest.task.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise TaskError(f"task: found no file {path_text!r}; allowed: path/to/file.py:object")
    module_name = f"coordinator_free_task_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise TaskError(f"task: found {path}; allowed: a Python file, whose name ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and typing look up the module while it is executed
        if (beside := str(path.resolve().parent)) not in sys.path:
            sys.path.append(beside)  # last, so that a user's file does not hide an installed module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # code of the user; it may raise any exception
            del sys.modules[module_name]
            raise TaskError(f"task: {path} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise TaskError(f"task: found no {name!r} in {path}; give the name of an object, such as {path_text}:task")
    return _instance(getattr(module, name), manifest)


def _instance(found: object, manifest: Manifest) -> Task:
    """Return a task object; a class is called with the manifest's ``task_options``."""
    if isinstance(found, type) and issubclass(found, Task):
        try:
            found = found(**manifest.task_options)
        except Exception as error:  # code of the user; it may raise any exception
            raise TaskError(
                f"task: {manifest.task} cannot be made with task_options {manifest.task_options}: "
                f"{type(error).__name__}: {error}"
            ) from error
    elif manifest.task_options:
        raise TaskError(
            f"task_options: found {manifest.task_options} for {manifest.task}, which is an object; allowed: none; "
            "name its class to give options"
        )
    if not isinstance(found, Task):
        raise TaskError(
            f"task: {manifest.task}: found a {type(found).__name__}; allowed: an object or class of type Task"
        )
    if found.kind not in get_args(Kind):
        raise TaskError(f"task: {manifest.task}: found kind {found.kind!r}; allowed: {', '.join(get_args(Kind))}")
    classes: object = found.classes
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 2):
        raise TaskError(f"task: {manifest.task}: found classes {classes!r}; allowed: an integer of 2 or more, or None")
    if not isinstance(found.preprocessing, Preprocessing | None):
        raise TaskError(
            f"task: {manifest.task}: preprocessing: found a {type(found.preprocessing).__name__}; "
            "allowed: a Preprocessing, or None"
        )
    names = found.class_names
    if names is not None and (
        isinstance(names, str) or not all(isinstance(n, str) for n in names) or classes not in (None, len(names))
    ):
        raise TaskError(
            f"task: {manifest.task}: class_names: found {names!r}; allowed: one text for each of the {classes} classes, or None"
        )
    return found

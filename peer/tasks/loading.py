"""Load the `Task` that the manifest names: a built-in data set, an installed entry point, or a user's file."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import get_args

import numpy as np

from coordinator_free_bootstrap.errors import ConfigProblem, Option, TaskError
from coordinator_free_bootstrap.installed import installed
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.strict_json import of_type
from coordinator_free_bootstrap.user_file import USER_ERRORS, Named, described, load_object, names_file, surroundings
from coordinator_free_bootstrap.validation import unknown_name
from peer.core.metric import MORE_METRICS_MAX, Metric
from peer.tasks.dealt import DealtTask
from peer.tasks.effect import refuse_unused_options
from peer.tasks.preprocessing import SHARED, Preprocessing
from peer.tasks.process_settings import users_settings
from peer.tasks.shard import Kind
from peer.tasks.shard_file import load_shard_file
from peer.tasks.sources import source_named, sources
from peer.tasks.task import Task
from peer.tasks.torchvision_shim import import_for_user_code

ENTRY_POINTS = "coordinator_free.tasks"
NAMED = Named("task", "object", "task", TaskError)


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
        UsageError: an option is given that the task does not use.
    """
    refuse_unused_options(manifest, data_root=data_root, shard=shard_path, download=download)
    if (source := source_named(manifest.task)) is not None:
        if shard_path is not None:
            return source.of_device(manifest, shard_path)
        return source.dealt(manifest, peers, data_root, download)
    task = _users_task(manifest)
    if isinstance(task, DealtTask):
        task = task.dealt(manifest, peers)
    if shard_path is not None:
        task, shard = copy.copy(task), load_shard_file(shard_path)  # a copy: the user's object may be loaded again
        object.__setattr__(task, "load_shard", lambda peer_id: shard)  # also where the class is a frozen dataclass
    return task


def deals_samples(manifest: Manifest) -> bool:
    """Return whether a user's task is a `DealtTask`, so that split and model of the manifest have an effect; loads the task."""
    try:
        return isinstance(_users_task(manifest), DealtTask)
    except TaskError:  # the file is on other machines, or says what is wrong when it is used
        return False


def trains_itself(manifest: Manifest) -> bool:
    """Return whether a user's task has an own training loop, so that keys of the built-in one have no effect; loads the task."""
    if source_named(manifest.task) is not None:
        return False
    try:
        return "train" in _users_task(manifest).own
    except TaskError:  # the file is on other machines, or says what is wrong when it is used
        return False


def _users_task(manifest: Manifest) -> Task:
    return _from_file(manifest) if names_file(manifest.task) else _from_entry_point(manifest)


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
    expected = f"the file {path_text!r}, with which {model_file} was trained, in {searched}"
    fix = f"Give its path with {Option('task')}, such as path/to/{Path(path_text).name}:{name}."
    raise TaskError(ConfigProblem("task", expected, "none", fix))


def absolute_task(task: str) -> str | None:
    """Return ``/path/to/file.py:object`` of a task file that exists, valid in every working directory; None for any other."""
    path, _, name = task.rpartition(":")
    return f"{Path(path).absolute()}:{name}" if path and Path(path).is_file() else None


def same_task(first: str, second: str) -> bool:
    """Return whether two values of ``task`` are equal, or name the same object of a file of the same name."""
    return first == second or (":" in first and Path(first).name == Path(second).name)


def check_names(manifest: Manifest) -> None:
    """Check the names of task, split and model, and the keys of their options; no data are read and no file is executed.

    A task that is a file, ``path/to/file.py:object``, is not opened: it may exist on other machines only.

    Raises:
        TaskError: an unknown name or option; the message names similar ones.
    """
    if names_file(manifest.task):
        return
    if (source := source_named(manifest.task)) is None:
        _entry_point(manifest.task)
    else:
        source.check(manifest)


def preload(manifest: Manifest, peers: int, data_root: Path | None = None) -> None:
    """Load and split a built-in data set once, so that processes forked afterwards share its memory.

    No effect for a user's task.

    Raises:
        UsageError: a data root is given that the task does not use.
    """
    refuse_unused_options(manifest, data_root=data_root, shard=None, download=False)
    if (source := source_named(manifest.task)) is not None and manifest.split != "shard":
        source.preload(manifest, peers, data_root)


def installed_tasks() -> list[str]:
    """Return the names of the tasks in installed packages."""
    return sorted({entry.name for entry in installed(ENTRY_POINTS)})


def _entry_point(name: str) -> EntryPoint:
    for entry in installed(ENTRY_POINTS):
        if entry.name == name:
            return entry
    known = [*sources(), *installed_tasks()]
    raise TaskError(unknown_name("run.task", name, known, "or your file as path/to/file.py:object"))


def _from_entry_point(manifest: Manifest) -> Task:
    entry = _entry_point(manifest.task)
    import_for_user_code()
    try:
        with users_settings(new=True):
            loaded = entry.load()
    except USER_ERRORS as error:
        raise TaskError(f"task: {manifest.task} cannot be imported: {described(error)}") from error
    return as_task(loaded, manifest)


@contextmanager
def _surroundings(named: Named) -> Iterator[None]:
    import_for_user_code()
    with users_settings(new=named is NAMED):
        yield


surroundings.append(_surroundings)  # for algorithms' files too


def _from_file(manifest: Manifest) -> Task:
    return as_task(load_object(manifest.task, NAMED), manifest)


def _check_data(task: Task, manifest: Manifest) -> None:
    if type(task).load_shard is Task.load_shard and "load_data" not in task.own:
        raise TaskError(
            f"task: {manifest.task}: expected load_shard, or load_data for an own train, got neither. Give the class one of "
            "them."
        )


def as_task(loaded: object, manifest: Manifest) -> Task:
    """Return a checked task object; a class is called with the manifest's ``task_options``.

    Raises:
        TaskError: it is not a `Task`, or an attribute has a wrong value.
    """
    if isinstance(loaded, type) and issubclass(loaded, Task):
        try:
            with users_settings():
                loaded = loaded(**manifest.task_options)
        except USER_ERRORS as error:
            raise TaskError(
                f"task: {manifest.task} cannot be made with task_options {manifest.task_options}: {described(error)}"
            ) from error
    elif manifest.task_options:
        raise TaskError(
            f"task_options: expected none for {manifest.task}, which is an object, got {manifest.task_options}. Name "
            "its class to give options."
        )
    if not isinstance(loaded, Task):
        raise TaskError(f"task: {manifest.task}: expected an object or class of type Task, got {of_type(loaded)}")
    _check_data(loaded, manifest)
    if loaded.kind not in get_args(Kind):
        raise TaskError(
            f"task: {manifest.task}: expected kind to be one of {', '.join(get_args(Kind))}, got {loaded.kind!r}"
        )
    classes: object = loaded.classes
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 2):
        raise TaskError(
            f"task: {manifest.task}: expected classes to be an integer of 2 or more, or None, got {classes!r}"
        )
    if loaded.class_axis not in {1, -1}:
        raise TaskError(f"task: {manifest.task}: expected class_axis to be 1 or -1, got {loaded.class_axis!r}")
    if not isinstance(loaded.more_metrics, tuple) or not all(
        isinstance(metric, Metric) for metric in loaded.more_metrics
    ):
        raise TaskError(f"task: {manifest.task}: more_metrics: expected a tuple of Metric, got {loaded.more_metrics!r}")
    if len(loaded.more_metrics) > MORE_METRICS_MAX:
        count = len(loaded.more_metrics)
        raise TaskError(
            f"task: {manifest.task}: more_metrics: expected at most {MORE_METRICS_MAX} metrics, got {count}"
        )
    loaded = _with_preprocessing(loaded, manifest)
    facts: object = loaded.facts
    if not isinstance(facts, Mapping) or not all(isinstance(text, str) for entry in facts.items() for text in entry):
        raise TaskError(f"task: {manifest.task}: facts: expected a dict from text to text, got {facts!r}")
    names = loaded.class_names
    if names is not None and (
        isinstance(names, str) or not all(isinstance(n, str) for n in names) or classes not in (None, len(names))
    ):
        raise TaskError(
            f"task: {manifest.task}: class_names: expected one text for each of the {classes} classes, or None, got "
            f"{names!r}"
        )
    return loaded


def _with_preprocessing(task: Task, manifest: Manifest) -> Task:
    """Return the task with its preprocessing as an object; raises TaskError for another value."""
    found: object = task.preprocessing
    if found == "shared":
        task = copy.copy(task)  # the user's object may be loaded again
        object.__setattr__(task, "preprocessing", SHARED)  # also where the class is a frozen dataclass
    elif not isinstance(found, Preprocessing | None):
        raise TaskError(
            f"task: {manifest.task}: preprocessing: expected a Preprocessing, 'shared', or None, got {found!r}"
        )
    return task

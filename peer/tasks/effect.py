"""Options and manifest keys that have no effect for the chosen task, split, optimizer or pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from coordinator_free_bootstrap.manifest import InRun, Manifest
from coordinator_free_bootstrap.options import changed, refuse_given, without_effect
from peer.algorithms.registry import algorithms
from peer.tasks.sources import source_named

OWN_TASK_OPTIONS = frozenset({"shard"})


def local_options(task: str) -> frozenset[str]:
    """Return which of the options ``data_root``, ``download`` and ``shard`` a task uses."""
    source = source_named(task)
    return OWN_TASK_OPTIONS if source is None else source.local_options


def refuse_unused_options(manifest: Manifest, *, data_root: Path | None, shard: Path | None, download: bool) -> None:
    """Refuse a local option that has no effect for the manifest's task.

    Args:
        manifest: its task is read.
        data_root: value of ``--data-root``; None: not given.
        shard: value of ``--shard``; its data replace those of the task, so no other option is used with it.
        download: whether ``--download`` was given.

    Raises:
        UsageError: the option and the task.
    """
    used = local_options(manifest.task) if shard is None else OWN_TASK_OPTIONS
    what = f"task {manifest.task!r}" + ("" if shard is None else f" with {Option('shard')}")
    given = {"data_root": data_root, "download": download}
    refuse_given(f"{what} does not use it", **{name: value for name, value in given.items() if name not in used})
    source = source_named(manifest.task)
    reads_files = source is not None and source.reads_files
    if shard is not None and shard.suffix != ".safetensors" and not reads_files:
        raise UsageError(
            ConfigProblem(
                Option("shard"),
                f"a .safetensors file for task {manifest.task!r}, as peer data split writes",
                str(shard),
            )
        )


def problem_without_effect(manifest: Manifest, key: str, why: str, source: str = "") -> ConfigProblem:
    """Return the problem of a key of `keys_without_effect`; ``source`` is written before the key."""
    value: Any = manifest
    for name in key.removeprefix("run.").split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return ConfigProblem.without_effect(f"{source}{key}", value, why)


def used_data_root(manifest: Manifest, data_root: Path | None) -> Path | None:
    """Return the data root if the manifest's task uses one: the cases of an experiment may have different tasks."""
    return data_root if "data_root" in local_options(manifest.task) else None


def keys_without_effect(manifest: Manifest, own_loop: bool = False) -> dict[str, str]:
    """Return the manifest keys whose value is not the default and changes nothing, each with the reason.

    ``own_loop``: whether the task trains itself, as far as the caller knows it.

    The rules stand beside the keys and ask for facts of the algorithm, which adds rules for keys that it uses in another way
    (`Algorithm.keys`). Only certain cases are listed: a key that is missing here may have no effect either. Of the options,
    those are listed that have none because of keys of the run: `parsed` refuses those without effect beside the others.

    Raises:
        ConfigError: the options of the algorithm are wrong.
    """
    algorithm = algorithms().get(manifest.algorithm)
    around = replace(
        algorithm.in_run(manifest) if algorithm else InRun(manifest),
        own_task=source_named(manifest.task) is None,
        own_loop=own_loop,
    )
    found = {key: why for key, _, why in without_effect(manifest, around, "run.")}
    if around.options is not None:
        found |= {key: why for key, _, why in without_effect(around.options, around, "run.options.")}
    for key, *_ in changed(manifest, "run."):
        rule = around.algorithm.keys.get(key.removeprefix("run."))
        if rule and key not in found and (why := rule.reason(around)):
            found[key] = why
    return found

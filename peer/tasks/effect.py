"""Options and manifest keys that have no effect for the chosen task, split, optimizer or pace."""

from __future__ import annotations

from pathlib import Path

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from coordinator_free_bootstrap.manifest import Manifest
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
    for name, given in (("data_root", data_root), ("download", download or None)):
        if given is not None and name not in used:
            shown = str(given) if isinstance(given, Path) else given
            raise UsageError(ConfigProblem.without_effect(Option(name), shown, f"{what} does not use it"))
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


def used_data_root(manifest: Manifest, data_root: Path | None) -> Path | None:
    """Return the data root if the manifest's task uses one: the cases of an experiment may have different tasks."""
    return data_root if "data_root" in local_options(manifest.task) else None


def keys_without_effect(manifest: Manifest) -> dict[str, str]:
    """Return the manifest keys whose value is not the default and changes nothing, each with the reason.

    Only certain cases are listed: a key that is missing here may have no effect either.
    """
    m = manifest
    own_task, default = source_named(m.task) is None, Manifest()
    stale = m.stale or ("drop" if m.pace == "lockstep" else "fold")
    rows = [
        ("momentum", m.optimizer == "adam", "run.optimizer is adam"),
        ("local_epochs", m.algorithm == "dpsgd", "algorithm dpsgd takes one step in a round"),
        ("optimizer_state", m.optimizer == "sgd" and m.momentum == 0, "run.optimizer is sgd and run.momentum is 0"),
        ("learning_rate_decay_rounds", m.learning_rate_decay == 1, "run.learning_rate_decay is 1"),
        ("fold_order", m.pace == "async" and m.fold_order == "neighbor_id", "run.pace is async"),
        ("stale_rounds_max", stale == "drop", "run.stale is drop"),
        ("stale_weight", stale == "drop", "run.stale is drop"),
        ("model", own_task, f"task {m.task!r} makes its own model"),
        ("model_options", own_task, f"task {m.task!r} makes its own model"),
        ("split", own_task and m.split != "shard", f"task {m.task!r} loads its own shards"),
        ("split_options", own_task or m.split == "shard", "each peer has its own shard"),
        ("data_seed", own_task or m.split == "shard", "each peer has its own shard"),
    ]
    found = {f"run.{key}": why for key, idle, why in rows if idle and getattr(m, key) != getattr(default, key)}
    if m.start.rule != "quorum" and m.start.quorum != default.start.quorum:
        found["run.start.quorum"] = f"run.start.rule is {m.start.rule}"
    if m.pace == "async" and m.lockstep.rate_window_rounds != default.lockstep.rate_window_rounds:
        found["run.lockstep.rate_window_rounds"] = "run.pace is async"
    if m.pace == "async" and m.limits.rounds_ahead != default.limits.rounds_ahead:
        found["run.limits.rounds_ahead"] = "run.pace is async"
    return found

"""Refuse the manifest keys that a user sets without effect, and warn of the others; a task's file may have to say."""

from __future__ import annotations

from collections.abc import Callable, Collection

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.effect import keys_without_effect, problem_without_effect
from peer.tasks.loading import deals_samples, trains_itself
from peer.tasks.sources import source_named

# of the built-in tasks and of `Data`; another task of a user has data and model of its own
DATA_KEYS = frozenset(f"run.{key}" for key in ("model", "model_options", "split", "split_options", "data_seed"))
LOOP_KEYS = frozenset(
    f"run.{key}" for key in ("batch_size", "optimizer", "momentum", "optimizer_state", "gradient_clip", "weight_decay")
)  # of the built-in loop


def _deals(manifest: Manifest) -> bool:
    """Return whether the task is a `Data`; its file is executed, as the run does."""
    return source_named(manifest.task) is None and deals_samples(manifest)


def is_set(key: str, given: Collection[str]) -> bool:
    """Return whether a key is among those that were set: ``run.split_options`` is if one of its options is."""
    return any(name == key or name.startswith(f"{key}.") for name in given)


def warn_without_effect(
    manifest: Manifest, given: Collection[str], say: Callable[[str], object], source: str = "--set "
) -> None:
    """Warn of each manifest key that has no effect.

    Args:
        manifest: of the run.
        given: keys that the user set for this run, such as ``run.momentum``; they must have an effect.
        say: is called with each warning.
        source: where the user set them, for the message.

    Raises:
        UsageError: a key that the user set has no effect.
    """
    own_loop = any(is_set(key, given) for key in LOOP_KEYS) and trains_itself(manifest)
    for key, why in keys_without_effect(manifest, own_loop).items():
        set_here = is_set(key, given)
        if set_here and key in DATA_KEYS and _deals(manifest):
            continue
        if set_here:
            raise UsageError(problem_without_effect(manifest, key, why, source))
        unless = " (unless it is a peer.Data)" if key in DATA_KEYS and source_named(manifest.task) is None else ""
        say(f"{key} has no effect, because {why}{unless}")

"""Settings that a form with a server does not read: refused, as a result would look as if they had an effect."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.options import changed

READ = frozenset(
    f"run.{key}"
    for key in (
        *("algorithm", "options", "clusters", "rounds", "seed", "evaluate_every"),
        *("task", "task_options", "model", "model_options", "split", "split_options", "data_seed"),
        *("local_epochs", "local_unit", "batch_size", "gradient_clip", "weight_decay"),
        *("optimizer", "optimizer_state", "momentum"),
        *("learning_rate", "learning_rate_schedule"),
        *("limits.model_bytes_max", "limits.kept_bytes_max"),  # checked where the clients are built
    )
)
NONE = ("run.final.epochs", 0)  # no final phase, which is what a form with a server has


def refuse_unread(method: str, settings: BaseModel, read: Collection[str] = READ, prefix: str = "run") -> None:
    """Refuse a key that is not its default and that the form with a server does not read.

    Args:
        method: of the case, for the message.
        settings: the manifest, or the options of its algorithm.
        read: the keys that have an effect, with their sections: ``run.limits.kept_bytes_max``.
        prefix: of the keys of ``settings``.

    Raises:
        ConfigError: the first such key.
    """
    for key, value, _ in changed(settings, f"{prefix}."):
        if key not in read and (key, value) != NONE:
            why = f'method = "{method}" does not read it; method = "peers" does'
            raise ConfigError(ConfigProblem.without_effect(key, value, why))

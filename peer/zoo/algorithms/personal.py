"""The base of algorithms with one model that travels and a personal one: each is evaluated, and only the first is published."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm, OptionsT, StateT
from peer.algorithms.learner import Fields
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector

SHARED, PERSONAL = 0, 1  # slots


class Personal(Algorithm[OptionsT, StateT]):
    """Slot 0 travels and is averaged as in DFedAvg; slot 1, if there is one, is private. ``run.mix`` is metropolis by default."""

    default_mix: ClassVar[str] = "metropolis"
    clustered = False

    @classmethod
    @override
    def private_count(cls, manifest: Manifest) -> int:
        """Return 1: the personal model."""
        return 1

    @override
    def evaluation_model(self, workspace: Workspace[StateT]) -> Vector:
        """Return the personal model."""
        return workspace.models.model(PERSONAL)

    @override
    def evaluate(self, workspace: Workspace[StateT]) -> Fields:
        """Return the metrics of the personal model, and the metric value of the shared one."""
        shared = workspace.learner.evaluate(workspace.models.model(SHARED))
        return super().evaluate(workspace) | {"metric_shared": shared.metric}


def require_plain_sgd(name: str, manifest: Manifest) -> None:
    """Refuse optimizer settings of an algorithm whose equations are single steps of SGD.

    Raises:
        ConfigError: another optimizer, or momentum.
    """
    found = {"optimizer": manifest.optimizer != "sgd", "momentum": manifest.momentum > 0}
    for key, wrong in found.items():
        if wrong:
            raise ConfigError(
                f"run.{key}: expected {Manifest.model_fields[key].default!r}, got {getattr(manifest, key)!r} with "
                f"algorithm '{name}', whose steps are plain SGD"
            )


def batches_in_epochs(workspace: Workspace) -> int:
    """Return how many mini-batches ``run.local_epochs`` have: n / B, rounded up, times tau; tau if it counts steps."""
    if workspace.manifest.local_unit == "step":
        return workspace.manifest.local_epochs
    return workspace.manifest.local_epochs * -(-workspace.learner.count() // batch_samples(workspace))


def batch_samples(workspace: Workspace) -> int:
    """Return B, the samples of a mini-batch: those of a step by ``run.batch_size``, or the number of all."""
    size = workspace.manifest.step_samples
    return max(1, workspace.learner.count()) if size == "all" else size

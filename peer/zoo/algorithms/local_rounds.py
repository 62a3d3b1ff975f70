"""Local rounds of pFedMe and CGPFL: steps of a personal model near a shared one, on successive mini-batches.

Source: Canh T. Dinh, Nguyen H. Tran and Tuan Dung Nguyen, "Personalized Federated Learning with Moreau Envelopes", 2020, arXiv
2006.08848.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.learner import Follow, TrainStats
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector, fold
from peer.zoo.algorithms.personal import batch_samples, batches_in_epochs, require_plain_sgd


class LocalRoundsOptions(BaseModel):
    """Options of the local rounds, which CGPFL shares."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(5.0, gt=0, description="lambda: how strongly theta is held near w")
    inner_steps: int = Field(5, ge=1, description="S: steps of theta on one batch")
    local_rounds: int | None = Field(
        None, ge=1, description="R: batches in a round; default: those of run.local_epochs"
    )
    rho: float | None = Field(
        None, ge=0, le=1, description="step of w towards theta; default: learning rate times strength"
    )

    def step(self, learning_rate: float) -> float:
        """Return the step of w towards theta."""
        return learning_rate * self.strength if self.rho is None else self.rho


OF_EPOCHS: dict[str, EffectiveWhen] = dict.fromkeys(
    ("local_epochs", "local_unit"),
    EffectiveWhen(lambda r: r.options is None or r.options.local_rounds is None, "run.options.local_rounds is given"),
)


def check_local_rounds(name: str, manifest: Manifest, options: LocalRoundsOptions) -> None:
    """Check the settings of the local rounds.

    Raises:
        ConfigError: an optimizer other than plain SGD, or a step of w beyond theta.
    """
    require_plain_sgd(name, manifest)
    if (step := options.step(manifest.learning_rate)) > 1:
        raise ConfigError(
            "run.options.rho: expected run.learning_rate times run.options.strength of at most 1, or w overshoots theta, "
            f"got {step:g}. Set run.options.rho, or lower one of the two."
        )


def local_rounds(
    options: LocalRoundsOptions, workspace: Workspace, w: Vector, theta: Vector
) -> tuple[Vector, Vector, list[TrainStats]]:
    """Return w and theta after R local rounds, as new arrays, and the statistics of each."""
    rho = options.step(workspace.learning_rate)
    if "batches" not in workspace.learner.abilities:
        return _in_own_loop(options, workspace, w, theta, rho)
    w, done = w.copy(), []
    for number, batch in enumerate(successive_batches(workspace, options.local_rounds or batches_in_epochs(workspace))):
        plan = replace(
            workspace.plan(workspace.seed("train", number)),
            indices=batch,
            batch_size="all",
            epochs=options.inner_steps,
            proximal=(w, options.strength),
        )
        theta, stats = workspace.fit(theta, plan)
        done.append(stats)
        if rho == 1:
            w = theta.copy()
        elif rho > 0:
            fold(w, 1.0 - rho, theta, rho)
        if workspace.should_stop():
            break
    return w, theta, done


def _in_own_loop(
    options: LocalRoundsOptions, workspace: Workspace, w: Vector, theta: Vector, rho: float
) -> tuple[Vector, Vector, list[TrainStats]]:
    """Do the same in one training of a user's loop: its successive steps take successive batches, and w moves every S steps."""
    plan = replace(
        workspace.plan(workspace.seed("train", 0)),
        proximal=(w, options.strength),
        follow=Follow(options.inner_steps, rho),
    )
    if options.local_rounds is not None:
        plan = replace(plan, epochs=options.local_rounds * options.inner_steps, unit="step")
    theta, stats = workspace.fit(theta, plan)
    assert stats.center is not None  # as the plan has a proximal term
    return stats.center, theta, [stats]


def successive_batches(workspace: Workspace, count: int) -> list[npt.NDArray[np.int64]]:
    """Return ``count`` mini-batches, int64 [b]: those of one shuffled pass after the other."""
    samples, size = workspace.learner.count(), batch_samples(workspace)
    draw = generator(workspace.seed("batches"), "shuffle")
    found: list[npt.NDArray[np.int64]] = []
    while len(found) < count:
        order = draw.permutation(samples)
        found += [order[start : start + size] for start in range(0, samples, size)]
    return found[:count]

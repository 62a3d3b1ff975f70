"""D-PSGD: each peer averages its neighbors' models and adds its own gradient step, which was taken before the averaging.

x_i <- sum_j W_ij x_j - eta g_i(x_i), with the gradient of one mini-batch at the own model before mixing. A peer sends x_i,
without the step of the round. `dfedavg` with one step is "adapt, then combine", which is another method.

Source: Xiangru Lian, Ce Zhang, Huan Zhang, Cho-Jui Hsieh, Wei Zhang and Ji Liu, "Can Decentralized Algorithms Outperform
Centralized Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent", 2017, arXiv 1705.09056, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Fields, training_fields
from peer.algorithms.private import SampleUse
from peer.algorithms.workspace import Workspace
from peer.core.decisions import AlgorithmState


class DPsgd(Algorithm):
    """D-PSGD: one mini-batch step a round, added to the average of the neighbors' models."""

    name = "dpsgd"
    clustered = False
    sums = True
    default_mix: ClassVar[str] = "metropolis"
    keys: ClassVar = dict.fromkeys(
        ("local_epochs", "local_unit"), EffectiveWhen.never("algorithm dpsgd takes one step in a round")
    )

    @classmethod
    @override
    def private_count(cls, manifest: Manifest) -> int:
        """Return 1: the own model after its step, until the round closes."""
        return 1

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return one step."""
        return SampleUse(steps=1)

    @override
    def train(self, workspace: Workspace) -> Fields:
        """Take one step on a copy; the model that travels stays as it is until the round closes."""
        plan = replace(workspace.slot_plan(0), unit="step", epochs=1)
        stepped, stats = workspace.fit(workspace.models.model(0), plan, "slot0")
        workspace.models.replace(1, stepped)
        return training_fields([stats])

    @override
    def close(self, workspace: Workspace) -> AlgorithmState:
        """Average, then add the step, if the peer took part in the round."""
        models, part = workspace.models, workspace.models.part
        before = part.of(models.share(0))
        state = super().close(workspace)
        if state.trained:
            stepped = part.of(models.model(0)) + (part.of(models.model(1)) - before)
            models.replace(0, part.joined(models.model(1), stepped))
        return state

"""Ditto between neighbors: DFedAvg on a shared model w, and beside it a personal model v held near w; only w travels.

Round: v <- tau_v epochs on f(v) + lambda / 2 ||v - w||^2, with w as the round began; w <- tau epochs on f(w); w is averaged over
the neighbors.

Source: Tian Li, Shengyuan Hu, Ahmad Beirami and Virginia Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", 2021, arXiv 2012.04221, Algorithm 1. The form between neighbors is an addition of this project.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from peer.algorithms.learner import Fields
from peer.algorithms.private import SampleUse
from peer.algorithms.workspace import Workspace
from peer.zoo.algorithms.personal import PERSONAL, SHARED, Personal


class DittoOptions(BaseModel):
    """``run.options`` of algorithm ``ditto``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(
        0.1, ge=0, description="lambda: how strongly the personal model is held near the shared one"
    )
    personal_epochs: int | None = Field(
        None,
        ge=1,
        description="epochs, or steps as run.local_unit says, of the personal model in a round; default: run.local_epochs",
    )


class Ditto(Personal[DittoOptions]):
    """Ditto: a shared model by DFedAvg, and a personal model trained beside it and held near it; both are evaluated."""

    name = "ditto"
    sums = True
    Options = DittoOptions

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return the trainings of both models."""
        return SampleUse(local=self.manifest.local_epochs + self._personal_epochs)

    @property
    def _personal_epochs(self) -> int:
        return self.options.personal_epochs or self.manifest.local_epochs

    @override
    def train(self, workspace: Workspace) -> Fields:
        """Train the personal model near the shared one as it is, then the shared one."""
        options, models = self.options, workspace.models
        plan = replace(
            workspace.slot_plan(PERSONAL),
            epochs=self._personal_epochs,
            proximal=(models.model(SHARED), options.strength),
        )
        personal, _ = workspace.fit(models.model(PERSONAL), plan, "personal")
        models.replace(PERSONAL, personal)
        return super().train(workspace)

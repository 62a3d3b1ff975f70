"""Decentralized federated averaging (DFedAvg): one model, tau epochs, then the mean over the neighbors and the peer itself.

x_i <- sum_j W_ij z_j, where z_j is x_j after tau epochs; W is Metropolis (default) or uniform. With ``run.momentum`` > 0 local
training is heavy ball, with a momentum buffer that starts at zero in each round: DFedAvgM.

Source: Tao Sun, Dongsheng Li and Bao Wang, "Decentralized Federated Averaging", 2021, arXiv 2104.11375.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm, Workspace
from peer.algorithms.personalize import final_phase
from peer.core.averaging import Vector


class DFedAvgOptions(BaseModel):
    """``run.options`` of algorithm ``dfedavg``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    final_epochs: int = Field(0, ge=0, description="local epochs after the last round, as in FedSPD; an addition")
    final_learning_rate: float | None = Field(None, gt=0, description="default: half of the first round's rate")


class DFedAvg(Algorithm):
    """DFedAvg; with momentum, DFedAvgM."""

    name = "dfedavg"
    Options = DFedAvgOptions
    default_mix = "metropolis"

    @classmethod
    def slot_count(cls, manifest: Manifest) -> int:
        """Return 1: ``run.clusters`` has no effect."""
        return 1

    def final(self, workspace: Workspace) -> tuple[Vector, dict[str, Any]]:
        """Return the model and its metrics; with ``final_epochs``, after local training, with the accuracy before and after."""
        epochs = self.options.final_epochs
        if not epochs:
            return super().final(workspace)
        before = workspace.learner.evaluate(workspace.models.model(0)).metric
        personalized = final_phase(workspace, workspace.models.model(0), epochs, self.options.final_learning_rate)
        after = workspace.learner.evaluate(personalized)
        numbers = {"accuracy_before_final": before, "accuracy_after_final": after.metric}
        return personalized, {"accuracy": after.metric, "loss": after.loss} | numbers

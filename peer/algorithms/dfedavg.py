"""Decentralized federated averaging: one model, tau epochs, then the mean over the closed neighborhood.

x_i <- sum_j W_ij z_j, z_j after tau epochs from x_j; W Metropolis (default) or uniform. With ``run.momentum`` > 0 the local
training is heavy ball with a buffer that starts at zero each round: DFedAvgM. Source: specification, sections 6.2 and 6.3.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm, Bench
from peer.algorithms.personalize import final_phase
from peer.core.averaging import Vector


class DFedAvgOptions(BaseModel):
    """``run.options`` of algorithm ``dfedavg``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    final_epochs: int = Field(0, ge=0, description="OURS: local epochs after the last round, as FedSPD's final phase")
    final_learning_rate: float | None = Field(None, gt=0, description="default: half of the first round's")


class DFedAvg(Algorithm):
    """DFedAvg; DFedAvgM with momentum."""

    name = "dfedavg"
    Options = DFedAvgOptions
    default_mix = "metropolis"

    @classmethod
    def slot_count(cls, manifest: Manifest) -> int:
        """One model, whatever ``clusters`` says."""
        return 1

    def final(self, bench: Bench) -> tuple[Vector, dict[str, Any]]:
        """Return the model, after local epochs where the options ask for them; then with the accuracy before and after."""
        epochs = self.options.final_epochs
        if not epochs:
            return super().final(bench)
        before = bench.learner.evaluate(bench.models.model(0)).metric
        personalized = final_phase(bench, bench.models.model(0), epochs, self.options.final_learning_rate)
        after = bench.learner.evaluate(personalized)
        numbers = {"accuracy_before_final": before, "accuracy_after_final": after.metric}
        return personalized, {"accuracy": after.metric, "loss": after.loss} | numbers

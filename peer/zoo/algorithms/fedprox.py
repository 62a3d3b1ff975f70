"""FedProx between neighbors: DFedAvg whose local training is held near the model with which the round began.

Round: x <- tau epochs on f(x) + mu / 2 ||x - x0||^2, with x0 the peer's model as the round began; x is averaged over the
neighbors. With mu = 0 this is DFedAvg.

Source: Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar and Virginia Smith, "Federated Optimization in
Heterogeneous Networks", 2020, arXiv 1812.06127, Algorithm 2. The form between neighbors is an addition of this project. All peers
train equally long: the paper also lets slow clients train less.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Fields, training_fields
from peer.algorithms.private import SampleUse
from peer.algorithms.workspace import Workspace


class FedProxOptions(BaseModel):
    """``run.options`` of algorithm ``fedprox``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(
        1.0, ge=0, description="mu: how strongly training is held near the model with which the round began"
    )


class FedProx(Algorithm[FedProxOptions]):
    """FedProx: one model, trained with a proximal term and averaged as in DFedAvg."""

    name = "fedprox"
    clustered = False
    steps_out = True
    Options = FedProxOptions
    default_mix = "metropolis"

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return one training."""
        return SampleUse(local=self.manifest.local_epochs)

    @override
    def train(self, workspace: Workspace) -> Fields:
        """Train the model near itself as it is, in rounds in which this peer takes part."""
        done = []
        for slot in workspace.state.trained:
            start = workspace.models.model(slot)
            plan = replace(workspace.slot_plan(slot), proximal=(start, self.options.strength))
            done.append(workspace.fit_slot(slot, plan, f"slot{slot}"))
        return training_fields(done)

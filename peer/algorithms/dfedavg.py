"""Decentralized federated averaging (DFedAvg): one model, tau epochs, then the mean over the neighbors and the peer itself.

x_i <- sum_j W_ij z_j, where z_j is x_j after tau epochs; W is Metropolis (default) or uniform. With ``run.momentum`` > 0 local
training is heavy ball, with a momentum buffer that starts at zero in each round: DFedAvgM.

With ``options.partners`` = m a peer asks m neighbors, drawn anew in each round, for their models, and gets no others: an addition
of this project, for dense graphs on thin links. W is then uniform over the partners by default.

Source: Tao Sun, Dongsheng Li and Bao Wang, "Decentralized Federated Averaging", 2021, arXiv 2104.11375.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.base import Algorithm
from peer.algorithms.private import SampleUse
from peer.core.decisions import AlgorithmState


class DFedAvgOptions(BaseModel):
    """``run.options`` of algorithm ``dfedavg``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partners: int = Field(
        0, ge=0, description="neighbors asked for their models, drawn anew in each round; 0: all; an addition"
    )


class DFedAvg(Algorithm[DFedAvgOptions]):
    """DFedAvg; with momentum, DFedAvgM."""

    name = "dfedavg"
    clustered = False
    steps_out = True
    sums = True
    Options = DFedAvgOptions
    default_mix = "metropolis"

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        if self.options.partners:
            if manifest.secure_sum is not None:
                raise ConfigError(
                    f"run.options.partners: expected 0 with run.secure_sum, which sums the models of all neighbors, got "
                    f"{self.options.partners}. Set one of them."
                )
            if manifest.edges == "one":
                raise ConfigError(
                    f"run.options.partners: expected 0 with run.edges 'one', where a round has one neighbor, got "
                    f"{self.options.partners}. Set one of them."
                )
            self.mix = manifest.mix or "uniform"

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return one training."""
        return SampleUse(local=self.manifest.local_epochs)

    @override
    def asking(self, round_index: int) -> bool:
        """Return whether ``partners`` is set."""
        return bool(self.options.partners)

    @override
    def asks(self, state: AlgorithmState, round_index: int) -> frozenset[int]:
        """Return this round's partners: up to m neighbors, drawn without replacement by (seed, round, peer)."""
        neighbors = self.graph.neighbors(self.peer_id)
        draw = generator(self.manifest.seed, "partners", self.peer_id, round_index)
        chosen = draw.choice(len(neighbors), min(self.options.partners, len(neighbors)), replace=False)
        return frozenset(neighbors[int(place)] for place in chosen)

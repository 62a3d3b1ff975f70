"""Decentralized IFCA: DFCA in which a peer folds only arrivals of its own cluster.

Round: assign c(i) = argmin_j mean loss of model j on the own training set; train that model for tau epochs; send it with its
cluster index to all neighbors; fold only arrivals of cluster c(i). A baseline: it shows what DFCA gains by folding all clusters.

Source: Avishek Ghosh, Jichan Chung, Dong Yin and Kannan Ramchandran, "An Efficient Framework for Clustered Federated Learning",
2020, arXiv 2006.04088. The paper has a server; the decentralized form is an addition of this project. The form with a server is
in `peer.lab`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.nearest import OF_IDLE, NearestCluster
from peer.core.decisions import AlgorithmState
from peer.core.effects import Target
from peer.core.messages import ModelHeader


class IfcaOptions(BaseModel):
    """``run.options`` of algorithm ``ifca``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    initialization: Literal["global", "local"] = Field(
        "global", description="first models: equal on all peers (global), or drawn by each peer (local)"
    )
    idle_folds: Annotated[bool, OF_IDLE] = Field(True, description="a peer that sits a round out still folds arrivals")


class Ifca(NearestCluster[IfcaOptions]):
    """IFCA between neighbors: arrivals of other clusters are not used."""

    name = "ifca"
    Options = IfcaOptions

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        self.idle_folds = self.options.idle_folds

    @property
    @override
    def common_start(self) -> bool:
        """Whether ``initialization`` is ``global``."""
        return self.options.initialization == "global"

    @override
    def targets(self, state: AlgorithmState, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold into the own cluster only; None for an arrival of another cluster."""
        return super().targets(state, header) if header.slot == state.cluster_index else None

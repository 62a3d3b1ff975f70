"""Decentralized IFCA: what DFCA is without folding the clusters that a peer does not train.

Round: assign c(i) = argmin_j mean loss of model j on the own training set; tau epochs on that model; send it with its label
to all neighbors; fold only arrivals of the own cluster. A baseline that shows what DFCA gains by folding all of them.
Source: specification, section 6.4 (OURS, a decentralized reading of IFCA; the server form is in `peer.experiment`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from peer.algorithms.dfca import Dfca
from peer.core.decisions import Facts
from peer.core.effects import Target
from peer.core.messages import ModelHeader


class IfcaOptions(BaseModel):
    """``run.options`` of algorithm ``ifca``; what DFCA has beyond the paper is off."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    initialization: Literal["global", "local"] = Field("global", description="k models equal on all peers, or own ones")
    idle_folds: bool = Field(True, description="a peer that does not take part in a round still folds arrivals")
    warmup_rounds: ClassVar[int] = 0
    relay_steps: ClassVar[int] = 1
    split_empty: ClassVar[bool] = False


class Ifca(Dfca):
    """IFCA between neighbors: an arrival of another cluster than the own one is not wanted."""

    name = "ifca"
    Options: ClassVar[type[BaseModel]] = IfcaOptions

    def targets(self, facts: Facts, header: ModelHeader) -> tuple[Target, ...] | None:
        """Fold into the own cluster only."""
        return super().targets(facts, header) if header.slot == facts.get("cluster_index") else None

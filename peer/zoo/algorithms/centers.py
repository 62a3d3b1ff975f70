"""The base of algorithms in which a peer trains one model of its own, near centers that are averages over its neighborhood.

Slots 0 .. K-1 hold the centers, slot K the own model w, the only one that is pushed. A neighbor's w is folded into centers;
the own w takes part in them with a weight too. A center in which no model takes part stays as it is. No peer trains a center, so
the private tensors of all centers are those of the own w.
"""

from __future__ import annotations

from typing_extensions import override

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm, OptionsT, StateT
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.messages import ModelHeader, Select


class OwnNearCenters(Algorithm[OptionsT, StateT]):
    """A model w of the peer's own, and centers; a subclass says with which weights models take part in them."""

    @classmethod
    @override
    def slot_count(cls, manifest: Manifest) -> int:
        """Return K + 1: the centers, then the own model w."""
        return manifest.clusters + 1

    @property
    def clusters(self) -> int:
        """The number of centers that a peer holds."""
        return self.slots - 1

    @property
    def own(self) -> int:
        """The slot of w, the only one that is pushed."""
        return self.slots - 1

    @override
    def rejects(self, state: StateT, header: ModelHeader, select: Select | None) -> Refusal | None:
        """Refuse models other than w, and numbers in the header that cannot be right."""
        if header.slot != self.own:
            return Refusal(
                RefusalCode.SLOT_OUT_OF_RANGE, f"slot: expected {self.own}, the sender's own model, got {header.slot}"
            )
        problem = self.wrong_numbers(header)
        return Refusal(RefusalCode.WEIGHT_OUT_OF_RANGE, problem) if problem else None

    def wrong_numbers(self, header: ModelHeader) -> str:
        """Return what is wrong with the numbers in a header, and what is allowed; "": nothing."""
        raise NotImplementedError

    @override
    def deferred_slots(self, state: StateT, round_index: int) -> frozenset[int]:
        """Return all centers: w is still in training when arrivals come."""
        return frozenset(range(self.clusters))

    def own_share(self, state: StateT, cluster: int, folded: float) -> float:
        """Return the weight of the own w in a center, given the summed weight of the arrivals; 0: it takes no part."""
        raise NotImplementedError

    @override
    def merge(self, workspace: Workspace[StateT]) -> None:
        """Average the own w and the arrivals into each center; private tensors are those of the own w."""
        for center in range(self.clusters):
            share = self.own_share(workspace.state, center, workspace.models.deferred_weight(center))
            if share > 0:
                workspace.models.replace(center, workspace.models.model(self.own).copy())
            else:
                workspace.models.copy_private(self.own, center)
            workspace.models.merge(center, share)

    @override
    def evaluation_model(self, workspace: Workspace[StateT]) -> Vector:
        """Return w."""
        return workspace.models.model(self.own)

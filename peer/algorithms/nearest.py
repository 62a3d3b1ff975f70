"""What DFCA and IFCA share: k cluster models, of which a peer trains the one that fits its data best.

Source: the assignment by training loss of IFCA (arXiv 2006.04088) and DFCA (arXiv 2510.15300, Eq. 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from peer.algorithms.base import Algorithm, OptionsT, refuse_slot
from peer.algorithms.workspace import Workspace
from peer.core.decisions import AlgorithmState, Rejection
from peer.core.messages import ModelHeader, Select


class NearestCluster(Algorithm[OptionsT]):
    """A peer trains the cluster model of lowest mean loss on its own training set."""

    @property
    def clusters(self) -> range:
        """The slots of the cluster models."""
        return range(self.manifest.clusters)

    def rejects(self, state: AlgorithmState, header: ModelHeader, select: Select | None) -> Rejection | None:
        """Refuse slots that this run does not have."""
        return refuse_slot(header, self.slots)

    def begin(self, workspace: Workspace) -> AlgorithmState:
        """Return the state before the first assignment."""
        return {"trained": [], "sample_count": workspace.learner.count()}

    def assign(self, workspace: Workspace) -> AlgorithmState:
        """Choose the cluster of lowest loss, unless `close` of the round before has done so."""
        state = dict(workspace.state)
        if "cluster_index" not in state:
            state.update(self._nearest(workspace, self.clusters))
        return state | {"trained": [state["cluster_index"]]}

    def close(self, workspace: Workspace) -> AlgorithmState:
        """Merge, then choose the cluster of lowest training loss, for the evaluation and for the next round."""
        self.merge(workspace)
        return workspace.state | self._nearest(workspace, self.clusters)

    def adopt(self, workspace: Workspace) -> AlgorithmState:
        """Average the pulled models; the next `assign` chooses the cluster again."""
        state = dict(super().adopt(workspace))
        state.pop("cluster_index", None)
        return state

    def _nearest(self, workspace: Workspace, clusters: Sequence[int]) -> dict[str, Any]:
        """Return the cluster of lowest loss and the losses of all."""
        losses = [workspace.learner.mean_loss(workspace.models.model(slot)) for slot in clusters]
        return {"cluster_index": clusters[int(np.argmin(losses))], "losses": losses}

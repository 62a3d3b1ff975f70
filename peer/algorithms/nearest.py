"""What DFCA and IFCA share: k cluster models, of which a peer trains the one that fits its data best.

Source: the assignment by training loss of IFCA (arXiv 2006.04088) and DFCA (arXiv 2510.15300, Eq. 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import EffectiveWhen
from peer.algorithms.base import Algorithm, OptionsT, StateT
from peer.algorithms.learner import Ability
from peer.algorithms.private import SampleUse
from peer.algorithms.workspace import Workspace

OF_IDLE = EffectiveWhen(
    lambda r: r.run.participation < 1, "run.participation is 1, so no peer sits a round out", by_run=True
)


class NearestCluster(Algorithm[OptionsT, StateT]):
    """A peer trains the cluster model of lowest mean loss on its own training set; ``cluster_index`` names it."""

    @classmethod
    @override
    def needs(cls, manifest: Manifest) -> frozenset[Ability]:
        """Return the losses of samples, which choose the cluster."""
        return frozenset({"losses"}) if cls.slot_count(manifest) > 1 else frozenset()

    @property
    def clusters(self) -> range:
        """The slots of the cluster models."""
        return range(self.manifest.clusters)

    @override
    def begin(self, workspace: Workspace[StateT]) -> StateT:
        """Return the state before the first assignment."""
        return replace(super().begin(workspace), trained=())

    @override
    def assign(self, workspace: Workspace[StateT]) -> StateT:
        """Choose the cluster of lowest loss, unless `close` of the round before has done so."""
        state = workspace.state
        if state.cluster_index is None or workspace.private:
            state = self.nearest(workspace, state, self.clusters)
        return replace(state, trained=(state.cluster_index or 0,))

    @override
    def close(self, workspace: Workspace[StateT]) -> StateT:
        """Merge, then choose the cluster of lowest training loss, for the evaluation and for the next round."""
        return self.reassigned(workspace, super().close(workspace), self.clusters)

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return the choice of a cluster and one training."""
        return SampleUse(local=self.manifest.local_epochs, choices=int(len(self.clusters) > 1))

    def reassigned(self, workspace: Workspace[StateT], state: StateT, clusters: Sequence[int]) -> StateT:
        """Return the state after the choice of a cluster; in a private run the one choice of a round is that of `assign`."""
        return state if workspace.private else self.nearest(workspace, state, clusters)

    @override
    def adopt(self, workspace: Workspace[StateT]) -> StateT:
        """Average the pulled models; the next `assign` chooses the cluster again."""
        return replace(super().adopt(workspace), cluster_index=None)

    def nearest(self, workspace: Workspace[StateT], state: StateT, clusters: Sequence[int]) -> StateT:
        """Return a state with the cluster of lowest loss among some."""
        return replace(state, cluster_index=clusters[int(np.argmin(self.losses(workspace, clusters)))])

    def losses(self, workspace: Workspace[StateT], clusters: Sequence[int]) -> list[float]:
        """Return the mean loss of some clusters' models on the training set; in a private run, how few samples vote for each."""
        models = [workspace.models.model(slot) for slot in clusters]
        if workspace.private:
            return (-workspace.private.votes(models)).tolist() if len(models) > 1 else [0.0]
        return [workspace.learner.mean_loss(model) for model in models]

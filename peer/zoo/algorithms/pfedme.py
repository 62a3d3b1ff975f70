"""pFedMe between neighbors: a personal model theta near a shared one w (Moreau envelope); only w travels.

Round: R times, on successive mini-batches: S steps theta <- theta - eta (grad f(theta) + lambda (theta - w)) on one batch, then
w <- w - rho (w - theta). Then w_i <- (1 - beta) w_i + beta sum_j W_ij w_j. theta_i continues from its last value and never
leaves its peer.

Source: Canh T. Dinh, Nguyen H. Tran and Tuan Dung Nguyen, "Personalized Federated Learning with Moreau Envelopes", 2020, arXiv
2006.08848. The paper has a server (in `peer.lab`); the form between neighbors is an addition of this project. rho is
eta lambda in the paper. Reported are theta (metric_value) and w (metric_shared), from separate arrays: in the authors' code both
names mean one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.learner import Fields, training_fields
from peer.algorithms.workspace import Workspace
from peer.core.averaging import fold
from peer.core.decisions import AlgorithmState
from peer.zoo.algorithms.local_rounds import OF_EPOCHS, LocalRoundsOptions, check_local_rounds, local_rounds
from peer.zoo.algorithms.personal import PERSONAL, SHARED, Personal


class PFedMeOptions(LocalRoundsOptions):
    """``run.options`` of algorithm ``pfedme``."""

    beta: float = Field(1.0, gt=0, le=1, description="share of the neighbors' average in w; 1 replaces w by it")


@dataclass(frozen=True)
class PFedMeState(AlgorithmState):
    """State of pFedMe: before the first training, theta starts at w."""

    has_trained: bool = False


class PFedMe(Personal[PFedMeOptions, PFedMeState]):
    """pFedMe: a personal model held near a shared one, which is averaged; both are evaluated."""

    name = "pfedme"
    sums = True
    why_not_private = "its steps are on batches that it draws by the run's seed, which all peers know"
    Options = PFedMeOptions
    State = PFedMeState
    keys: ClassVar = OF_EPOCHS

    def __init__(self, manifest: Manifest, peer_id: int, graph: Graph) -> None:
        super().__init__(manifest, peer_id, graph)
        check_local_rounds(self.name, manifest, self.options)

    @override
    def deferred_slots(self, state: PFedMeState, round_index: int) -> frozenset[int]:
        """Return w, in every round: with beta < 1 the close needs the w that no arrival has changed."""
        return frozenset({SHARED})

    @override
    def train(self, workspace: Workspace[PFedMeState]) -> Fields:
        """Do R local rounds on theta and w."""
        start, first = workspace.models.model(SHARED), not workspace.state.has_trained
        theta = start if first else workspace.models.model(PERSONAL)
        w, theta, done = local_rounds(self.options, workspace, start, theta)
        workspace.models.replace(SHARED, w)
        workspace.models.replace(PERSONAL, theta)
        workspace.state = replace(workspace.state, has_trained=True)
        return training_fields(done)

    @override
    def close(self, workspace: Workspace[PFedMeState]) -> PFedMeState:
        """Average w; with beta < 1, keep a share of the own w."""
        models, part = workspace.models, workspace.models.part
        own = models.share(SHARED)
        state = super().close(workspace)
        if self.options.beta < 1 and models.model(SHARED) is not own:
            mixed = part.of(own).copy()
            fold(mixed, 1.0 - self.options.beta, part.of(models.model(SHARED)), self.options.beta)
            models.replace_part(SHARED, mixed)
        return state

"""With `dp_epsilon`, no selection and no offer of FedSPD carries the number of samples of a peer or of one of its clusters.

Method: one peer's algorithm is driven through every phase of a run; all numbers of its messages are collected. Each cluster has
at least 10 samples, so a count is larger than every number that a message may carry: cluster, peer id, hops, degree, round.
"""

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from peer.algorithms.fedspd import FedSpd
from peer.algorithms.mixture import cluster_sizes
from peer.algorithms.work import perform
from peer.algorithms.workspace import Workspace
from peer.core.effects import Work
from peer.core.messages import Select
from peer.core.model_store import ModelStore
from tests.simulation.options import manifest
from tests.simulation.trainer import QuadraticLearner

SAMPLES, LEAST, ROUNDS = 37, 10, 8


class ManySamples(QuadraticLearner):
    def __init__(self) -> None:
        super().__init__(0, 2, 6, 1, mixed=True)
        self.points = np.tile(self.points, (10, 1))[:SAMPLES]

    def count(self, part: str = "train") -> int:
        return SAMPLES


def numbers_sent(mix: str, options: dict) -> tuple[set[float], set[float]]:
    """Drive peer 0 through a run; return the numbers in its messages, and its true counts."""
    run = manifest(algorithm="fedspd", clusters=2, rounds=ROUNDS, mix=mix, options={"align_every": 1} | options)
    graph = make_graph("complete", 4, manifest=run)
    algorithm, learner = FedSpd(graph.manifest, 0, graph), ManySamples()
    workspace = Workspace(
        graph.manifest, 0, graph, learner, ModelStore(algorithm.initial_models(learner)[0]), algorithm.State()
    )
    workspace.state = algorithm.begin(workspace)
    sent, counts = set(), {float(SAMPLES)}
    for t in range(ROUNDS):
        for kind in ("assign", "train"):
            perform(Work(kind, t), algorithm, workspace, lambda: 0.0)
        select = algorithm.selects(workspace.state, t)
        selections = {n: Select(n, 1, t, workspace.state.selected) for n in graph.neighbors(0)} if select else {}
        state = algorithm.agrees(workspace.state, t, selections)
        offers = [offer for n in graph.neighbors(0) for offer in algorithm.offers(state, t, 0, n, selections.get(n))]
        assert offers, "nothing was sent"
        for offer in offers:
            sent |= {float(offer.sample_count), offer.mass, float(offer.slot), *offer.numbers}
        if select:
            sent |= {float(select.selected), *select.numbers}
        perform(Work("close", t), algorithm, workspace, lambda: 0.0)
        counts |= {float(size) for size in cluster_sizes(workspace.state.z, 2) if size}
    return sent, counts


@pytest.mark.parametrize("mix", ["uniform", "metropolis"])
@pytest.mark.parametrize("noisy_self", [True, False])
@pytest.mark.parametrize("start", [{"first_round": "paper"}, {"warm_rounds": 2, "hard_rounds": 2}, {}])
def test_no_message_of_a_private_run_carries_a_sample_count(start, noisy_self, mix):
    private = {"dp_epsilon": 10.0, "min_cluster_samples": LEAST, "noisy_self": noisy_self}
    sent, counts = numbers_sent(mix, start | private)
    assert min(counts) >= LEAST > max(sent)


def test_a_run_without_privacy_tells_its_sample_count():
    """The check of this file finds a count where there is one."""
    sent, counts = numbers_sent("uniform", {"min_cluster_samples": LEAST})
    assert sent & counts == {float(SAMPLES)}

"""DFedAvg: one model, Metropolis or uniform mixing."""

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from peer.algorithms.dfedavg import DFedAvg
from tests.simulation.options import Options, manifest
from tests.simulation.world import World


def simulate(kind, peers, **run):
    world = World(Options(1, make_graph(kind, peers, manifest=manifest(algorithm="dfedavg", **run))))
    world.run()
    return world


def test_a_peer_holds_one_model_for_any_number_of_clusters():
    graph = make_graph("ring", 3, manifest=manifest(algorithm="dfedavg", clusters=4))
    assert DFedAvg(graph.manifest, 0, graph).slots == 1


@pytest.mark.parametrize("mix", [None, "uniform"])
def test_one_round_multiplies_the_trained_models_by_the_mixing_matrix(mix):
    world = simulate("line", 4, rounds=1, mix=mix)
    trained = np.stack([np.frombuffer(world.checker.sent[key], np.float32) for key in sorted(world.checker.sent)])
    neighbors = [world.graph.neighbors(i) for i in range(4)]
    weights = np.zeros((4, 4))
    for i in range(4):
        for n in neighbors[i]:
            largest = max(len(neighbors[i]), len(neighbors[n]))
            weights[i, n] = 1 / (1 + len(neighbors[i])) if mix == "uniform" else 1 / (1 + largest)
        weights[i, i] = 1 - weights[i].sum()
    found = np.stack([world.checker.final[i][0] for i in range(4)])
    assert np.abs(found - weights @ trained.astype(np.float64)).max() < 2e-6


def test_a_peer_trains_again_after_rounds_without_participation():
    world = simulate("ring", 4, rounds=8, participation=0.5)
    for i in world.graph.ids:
        active = [fields["active"] for fields in world.checker.history[i]]
        assert True in active and False in active
        assert [("train_loss" in fields) for fields in world.checker.history[i]] == active


def test_models_of_all_peers_converge_to_one():
    world = simulate("complete", 5, rounds=10, learning_rate=0.1)
    models = np.stack([world.checker.final[i][0] for i in world.graph.ids])
    assert np.abs(models - models.mean(axis=0)).max() < 1e-5

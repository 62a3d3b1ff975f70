"""CGPFL-Heur: the peers agree on K by gossip, as a server would choose it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from peer.algorithms import clustering
from peer.lab.algorithm_server import run_algorithm_server
from peer.zoo.algorithms import cluster_count
from peer.zoo.algorithms.cgpfl import Cgpfl
from tests.oracle import cgpfl as oracle
from tests.tools.simulated import finish, peers_of, run
from tests.unit.algorithms.test_clustering import blobs
from tests.unit.zoo.cgpfl_runs import graph_of


@pytest.mark.parametrize("kind", ["complete", "ring", "star"])
def test_all_peers_agree_on_the_number_of_clusters(kind):
    peers = run(graph_of(8, kind, options={"clusters": "auto", "clusters_max": 4}, clusters=2, local_epochs=4))
    assert len({peer.state.clusters for peer in peers}) == 1
    assert 1 <= peers[0].state.clusters <= peers[0].algorithm.count_max
    assert all(peer.state.label < peer.state.clusters for peer in peers)
    assert all(peer.refusals == {} for peer in peers)
    if kind == "complete":
        assert peers[0].state.clusters == 2


def test_gossip_finds_the_mean_of_the_cost_curves_of_all_peers(monkeypatch):
    """Shards of 70 to 283 samples; the network takes a K that peer 0, with the smallest id, cannot judge alone."""
    auto, split = {"clusters": "auto", "clusters_max": 4}, {"base": "rotated_soft", "r": 4.0, "test_per_peer": 20}
    ring = graph_of(8, "ring", options=auto, split="imbalance", split_options=split, rounds=1, local_epochs=4)
    chords = [(i, i + 2) for i in range(6)] + [(0, 6), (1, 7), (2, 6)]
    graph, curves, end_step = replace(ring, edges=tuple(sorted([*ring.edges, *chords]))), {}, Cgpfl.end_step

    def recorded(self, workspace):
        state = end_step(self, workspace)
        curves[self.peer_id, workspace.step] = state.costs
        return state

    monkeypatch.setattr(Cgpfl, "end_step", recorded)
    peers = run(graph)
    models = [peer.models[peer.algorithm.own].astype(np.float64) for peer in peers]
    counts, groups = [peer.learner.count() for peer in peers], [sorted([i, *graph.neighbors(i)]) for i in graph.ids]
    own = [oracle.curve([models[j] for j in group], [counts[j] for j in group], 3) for group in groups]
    for i in graph.ids:
        np.testing.assert_allclose(curves[i, 0], own[i], atol=1e-5)
        np.testing.assert_allclose(curves[i, 6], np.mean(own, axis=0), atol=2e-3)  # after six steps of gossip
    assert np.abs(own - np.mean(own, axis=0)).max(axis=1).min() > 0.1
    assert cluster_count.best_count(own[0], 3, 1.0) == 2
    assert [peer.state.clusters for peer in peers] == [3] * 8


@pytest.mark.parametrize(("mu_scale", "count"), [(0.0, 1), (1.0, 2), (100.0, 4)])
def test_the_weight_of_the_cost_decides_how_many_clusters_there_are(mu_scale, count):
    options = {"clusters": "auto", "clusters_max": 4, "mu_scale": mu_scale}
    graph = graph_of(8, "complete", options=options, local_epochs=4, rounds=1)
    assert [peer.state.clusters for peer in run(graph)] == [count] * 8
    clients = run_algorithm_server(graph, None).values()
    assert [client.host.workspace.state.clusters for client in clients] == [count] * 8


def test_a_peer_that_missed_round_0_learns_the_count_from_its_neighbors():
    graph = graph_of(4, "complete", options={"clusters": "auto", "clusters_max": 4}, clusters=2, rounds=5)
    peers = peers_of(graph)

    def forget(t):
        if t == 1:
            nothing = {"clusters": None, "anchor": None, "cluster_index": None, "label": None}
            peers[3].workspace.state = replace(peers[3].workspace.state, **nothing)
            peers[3]._peer.host.state.algorithm_state = peers[3].workspace.state

    finish(peers, forget)
    assert peers[3].state.clusters == peers[0].state.clusters
    assert peers[3].state.label in range(peers[0].state.clusters)
    assert all(peer.refusals == {} for peer in peers)


def test_the_curve_of_three_groups_has_its_best_count_at_three():
    models, reference, _ = blobs()
    points = clustering.coordinates(models, reference)
    ratios = cluster_count.relative_costs(points, 7, np.random.default_rng(0), np.ones(len(models)))
    assert ratios[0] == 1.0 and all(b <= a + 1e-9 for a, b in pairwise(ratios))
    assert cluster_count.best_count(cluster_count.curve_of(ratios, 7), 7, 1.0) == 3
    assert cluster_count.best_count(cluster_count.curve_of(ratios, 7), 7, 0.0) == 1
    assert cluster_count.best_count(cluster_count.curve_of(ratios, 7), 7, 100.0) == 7
    equal = cluster_count.relative_costs(np.zeros((4, 2)), 2, np.random.default_rng(0), np.ones(4))
    assert cluster_count.best_count(cluster_count.curve_of(equal, 3), 3, 1.0) == 1
    assert cluster_count.best_count([0.0] * 6, 3, 1.0) == 1, "nothing is known"


def test_a_count_is_judged_by_those_peers_that_have_it():
    one, two = cluster_count.curve_of([1.0, 0.5], 3), cluster_count.curve_of([1.0], 3)
    mean = cluster_count.mixed(one, [(two, 0.5)])
    assert mean == [1.0, 0.25, 0.0, 1.0, 0.5, 0.0]
    assert cluster_count.best_count(mean, 3, 1.0) == cluster_count.best_count(one, 3, 1.0)

"""Local training: no model is sent, and neighbors have no effect."""

import numpy as np

from coordinator_free_bootstrap import make_graph
from peer.algorithms.local import Local
from tests.simulation.options import Options, manifest
from tests.simulation.world import World


def simulate(kind, peers, pace="lockstep"):
    run = manifest(algorithm="local", rounds=5, clusters=2, pace=pace)
    world = World(Options(1, make_graph(kind, peers, manifest=run), train_s=(0.2, 2.0)))
    world.run()
    return world


def test_no_model_is_sent():
    world = simulate("complete", 4)
    assert world.checker.sent == {} and world.checker.marks["folded"] == 0
    graph = world.graph
    assert Local(graph.manifest, 0, graph).steps(0) == 0 and Local(graph.manifest, 0, graph).slots == 1


def test_neighbors_and_pace_change_no_bit():
    worlds = [simulate("complete", 4), simulate("line", 4), simulate("line", 4, pace="async")]
    for other in worlds[1:]:
        for i in range(4):
            assert np.array_equal(worlds[0].checker.final[i][0], other.checker.final[i][0])


def test_each_peer_converges_to_its_own_optimum():
    world = simulate("ring", 4)
    for i, machine in world.machines.items():
        assert np.abs(world.checker.final[i][0] - machine.learner.optimum).max() < 0.5

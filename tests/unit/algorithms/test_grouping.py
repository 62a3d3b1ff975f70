"""Groups before the first cluster: peers divide themselves alike by their first updates; each group gives a first model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import ConfigError, RefusalCode
from peer.algorithms import grouping
from peer.algorithms.dfca import Dfca
from peer.algorithms.grouping import SKETCH_SIZE, Grouping
from peer.algorithms.registry import check_algorithm
from peer.algorithms.seeding import EMPTY
from peer.core.messages import Numbers, Pass
from tests.simulation.network import Weather
from tests.simulation.options import Options, manifest
from tests.simulation.trainer import QuadraticLearner
from tests.simulation.world import World

GROUPS = {"options": {"initialization": "groups"}}


def graph_of(kind, peers, *, clusters=4, seed=1, rounds=None):
    run = manifest(**GROUPS, rounds=rounds or clusters + 2, clusters=clusters, seed=seed)
    return make_graph(kind, peers, seed=seed, manifest=run)


class FourGroups(QuadraticLearner):
    """Peer i's points lie around center i modulo 4, whatever the number of clusters."""

    def __init__(self, peer_id, clusters, size, seed, *args, **more):
        super().__init__(peer_id % 4, 4, size, seed, *args, **more)


@pytest.fixture
def placed(monkeypatch):
    """Peer -> its state at the close of the last round that seeds."""
    found = {}
    place = Grouping.placed

    def kept(self, state, clusters):
        found[self.peer_id] = place(self, state, clusters)
        return found[self.peer_id]

    monkeypatch.setattr(Grouping, "placed", kept)
    return found


def play(kind, peers, **options):
    graph = graph_of(kind, peers, **options)
    world = World(Options(graph.manifest.seed, graph, weather=Weather(delay_s=0.01)))
    world.run()
    return world


@pytest.mark.parametrize(
    ("kind", "peers", "clusters"), [("line", 12, 4), ("ring", 16, 4), ("complete", 12, 4), ("line", 12, 6)]
)
def test_all_peers_know_the_same_groups_and_each_starts_in_its_own(kind, peers, clusters, placed, monkeypatch):
    monkeypatch.setattr("tests.simulation.world.QuadraticLearner", FourGroups)
    world = play(kind, peers, clusters=clusters)
    truth = {i: machine.learner.cluster for i, machine in world.machines.items()}
    (middles,) = {state.middles for state in placed.values()}
    assert sorted(truth[i] for i in middles) == [0, 1, 2, 3]
    for i, state in placed.items():
        assert truth[middles[state.group]] == truth[i] and state.cluster_index == state.group
        assert state.seeds == (*middles, *[EMPTY] * (clusters - 4))
        assert not state.sketches.size, "they are of no use after round 0, and would be in every checkpoint"
    chosen = {i: lines[-1]["cluster_index"] for i, lines in world.checker.history.items()}
    assert all(chosen[i] == placed[i].group for i in truth), "the losses agree"


def test_a_lost_sketch_is_one_peer_less(placed, monkeypatch):
    compare = Grouping.compare

    def mute(self, workspace, fold, start, trained):
        compare(self, workspace, fold, start, trained if self.peer_id != 5 else np.full_like(trained, np.nan))

    monkeypatch.setattr(Grouping, "compare", mute)
    play("ring", 12)
    assert placed[5].group is None and placed[5].cluster_index is not None
    (middles,) = {state.middles for state in placed.values()}
    assert len(middles) == 4 and 5 not in middles


ROW = np.linspace(-1.0, 1.0, SKETCH_SIZE)


@pytest.mark.parametrize(
    ("numbers", "round_index", "step", "code"),
    [
        (Numbers.of(0, ROW, 2, ROW), 0, 0, None),
        (Numbers(), 1, 0, None),
        (Numbers.of(0, ROW), 1, 0, RefusalCode.MALFORMED),
        (Numbers.of(0, ROW), 0, 3, RefusalCode.MALFORMED),  # a step for the model
        (Numbers.of(0, ROW[1:]), 0, 0, RefusalCode.WRONG_SIZE),
        (Numbers.of(0), 0, 0, RefusalCode.WRONG_SIZE),
        (Numbers.of(2, ROW, 0, ROW), 0, 0, RefusalCode.MALFORMED),
        (Numbers.of(1, ROW, 1, ROW), 0, 0, RefusalCode.MALFORMED),
        (Numbers.of(9, ROW), 0, 0, RefusalCode.MALFORMED),
        (Numbers.of(0.5, ROW), 0, 0, RefusalCode.MALFORMED),
        (Numbers.of(0, 1e39, ROW[1:]), 0, 0, RefusalCode.NON_FINITE),
    ],
)
def test_numbers_that_are_no_sketches_are_refused(numbers, round_index, step, code):
    graph = graph_of("line", 4)
    algorithm = Dfca(graph.manifest, 0, graph)
    found = algorithm.rejects_pass(algorithm.State(), Pass(1, 1, round_index, step, numbers))
    assert (found and found.code) == code


def test_a_message_must_hold_the_sketches_of_all_peers(monkeypatch):
    check_algorithm(graph_of("ring", 8))
    monkeypatch.setattr(grouping, "NUMBERS_MAX", 8 * (1 + SKETCH_SIZE) - 1)
    with pytest.raises(
        ConfigError, match=r"initialization: expected at most 7 peers with 'groups'.*got 8\. Set 'seeds'"
    ):
        check_algorithm(graph_of("ring", 8))


def test_groups_need_lockstep_as_seeds_do():
    graph = graph_of("ring", 4)
    with pytest.raises(
        ConfigError, match=r"run\.pace: expected 'lockstep' with options.initialization 'seeds' or 'groups'"
    ):
        check_algorithm(replace(graph, manifest=graph.manifest.model_copy(update={"pace": "async"})))

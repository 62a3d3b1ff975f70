"""Seeds of clusters: the peer that the clusters so far fit worst gives the next first model, and all peers get its bits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import ConfigError, RefusalCode
from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.algorithms.dfca import Dfca, DfcaState
from peer.algorithms.learner import TrainingPlan
from peer.algorithms.registry import check_algorithm
from peer.algorithms.seeding import EMPTY, UNREACHED, Seeding, SeedingState
from peer.core.messages import ModelHeader, Numbers, Pass
from tests.simulation.network import Weather
from tests.simulation.options import Options, manifest
from tests.simulation.trainer import QuadraticLearner
from tests.simulation.world import World

SEEDS = {"options": {"initialization": "seeds"}}


@pytest.fixture
def after_each_seed(monkeypatch):
    """(peer, round) -> seeds so far and the models of the clusters, at the close of the rounds that seed."""
    found = {}
    close = Seeding.close

    def closed(self, workspace):
        state = close(self, workspace)
        models = [workspace.models.model(slot).copy() for slot in range(workspace.round_index + 1)]
        found[self.peer_id, workspace.round_index] = state.seeds, models
        return state

    monkeypatch.setattr(Seeding, "close", closed)
    return found


def world_of(kind, peers, *, clusters=4, seed=1):
    run = manifest(**SEEDS, rounds=clusters + 2, clusters=clusters, seed=seed)
    return World(Options(seed, make_graph(kind, peers, seed=seed, manifest=run), weather=Weather(delay_s=0.01)))


def play(kind, peers, **options):
    world = world_of(kind, peers, **options)
    world.run()
    return world


@pytest.mark.parametrize(("kind", "peers"), [("line", 12), ("ring", 16), ("star", 8), ("complete", 8)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_cluster_gets_a_seed_of_its_own_on_any_graph(kind, peers, seed, after_each_seed):
    """Peer i's points lie around center i modulo 4: a line of 12 is as sparse as a graph can be."""
    world = play(kind, peers, seed=seed)
    truth = {i: machine.learner.cluster for i, machine in world.machines.items()}
    chosen = {i: lines[-1]["cluster_index"] for i, lines in world.checker.history.items()}
    (seeds,) = {tuple(after_each_seed[i, 3][0]) for i in truth}
    assert sorted(truth[peer] for peer in seeds) == [0, 1, 2, 3]
    assert all(chosen[i] == [truth[peer] for peer in seeds].index(truth[i]) for i in truth)


def test_seeds_and_bits_are_those_of_farthest_first_by_hand(after_each_seed):
    world = play("line", 6, clusters=3, seed=5)
    m, learners = world.manifest, {i: machine.learner for i, machine in world.machines.items()}
    models, seeds = [], []
    for r in range(3):
        first = learners[0].initial_model(derive_seed(m.seed, "initial", r))
        trained = {
            i: learner.train(
                first,
                TrainingPlan(epochs=10, seed=derive_seed(m.seed, "train", i, r, r), learning_rate=m.learning_rate),
            )[0]
            for i, learner in learners.items()
        }
        if r == 0:
            gain = {i: generator(m.seed, "first seed", i).random() for i in learners}
        else:
            gain = {i: min(map(x.mean_loss, models)) - x.mean_loss(trained[i]) for i, x in learners.items()}
        seeds.append(max(gain, key=lambda i: (gain[i], i)))
        models.append(trained[seeds[-1]])
        for i in learners:
            told, held = after_each_seed[i, r]
            assert list(told) == seeds
            assert all(np.array_equal(a, b) for a, b in zip(held, models, strict=True))


def test_a_round_that_seeds_sends_each_model_over_an_edge_once_and_plain_rounds_follow():
    world = play("line", 5, clusters=2)
    algorithm = Dfca(world.manifest, 0, world.graph)
    assert [algorithm.steps(t) for t in range(4)] == [8, 8, 1, 1], "the diameter is 4"
    for i, lines in world.checker.history.items():
        assert [line["round_index"] for line in lines] == [0, 1, 2, 3]
        assert all(line["models_sent"] <= world.graph.degree(i) for line in lines)


def test_a_peer_that_the_model_does_not_reach_keeps_its_own_and_says_so(after_each_seed, monkeypatch):
    end_step = Seeding.end_step

    def stingy(self, workspace):
        """The middle of the line passes nothing on."""
        state = end_step(self, workspace)
        return replace(state, sends=False) if self.peer_id == 1 else state

    monkeypatch.setattr(Seeding, "end_step", stingy)
    play("line", 3, clusters=2)
    for r in range(2):
        told, models = zip(*(after_each_seed[i, r] for i in range(3)), strict=True)
        reached = [seeds[r] != UNREACHED for seeds in told]
        assert reached.count(True) < 3, "the middle is between both ends"
        same = [np.array_equal(models[0][r], held[r]) for held in models]
        assert same.count(True) < 3


def test_a_peer_that_caught_up_names_no_seed_for_rounds_that_it_missed():
    graph = make_graph("line", 3, manifest=manifest(**SEEDS, clusters=4, rounds=9))
    seeding = Seeding(graph.manifest, 10, 0, graph)
    state = SeedingState(best=(1.0, 2, 1), holds=True)
    workspace = SimpleNamespace(state=state, round_index=2, step=seeding.steps - 1)
    assert seeding.close(workspace).seeds == (UNREACHED, UNREACHED, 2)


class TwoGroups(QuadraticLearner):
    """Peers are of two groups, however many clusters the run allows, and those of a group have the same points."""

    def __init__(self, peer_id, clusters, size, seed, *args, **more):
        super().__init__(peer_id % 2, 2, size, seed, *args, **more)


@pytest.fixture
def two_groups(monkeypatch):
    monkeypatch.setattr("tests.simulation.world.QuadraticLearner", TwoGroups)


def test_clusters_beyond_the_groups_stay_empty_and_the_rounds_left_of_the_start_are_plain(two_groups, after_each_seed):
    world = play("line", 8, clusters=5)
    truth = {i: machine.learner.cluster for i, machine in world.machines.items()}
    (seeds,) = {tuple(after_each_seed[i, 4][0]) for i in truth}
    assert seeds[2:] == (EMPTY, EMPTY, EMPTY) and sorted(truth[peer] for peer in seeds[:2]) == [0, 1]
    for i, lines in world.checker.history.items():
        group = [truth[peer] for peer in seeds[:2]].index(truth[i])
        assert [line["cluster_index"] for line in lines[2:]] == [group] * 5
        assert [line["models_sent"] for line in lines[3:]] == [world.graph.degree(i)] * 4


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_changes_no_bit_where_clusters_stay_empty(two_groups, seed):
    calm, killed = (world_of("line", 5, clusters=4, seed=seed) for _ in range(2))
    calm.run()
    killed.kill_twice(seed, latest_s=2.5)
    killed.run()
    assert killed.machines[seed].lives > 1
    for i, models in calm.checker.final.items():
        assert all(np.array_equal(one, other) for one, other in zip(models, killed.checker.final[i], strict=True))


def test_a_peer_that_catches_up_after_the_last_seed_chooses_its_cluster_again():
    """Catching up forgets the cluster; the rounds left of the start train one all the same, and none that is empty."""
    algorithm = Dfca(manifest(**SEEDS, clusters=5, rounds=9), 0, make_graph("line", 4))
    learner = SimpleNamespace(mean_loss=[2.0, 1.0, 0.5, 0.5, 3.0].__getitem__)
    models = SimpleNamespace(model=lambda slot: slot)
    state = DfcaState(seeds=(3, 1, EMPTY, EMPTY), sample_count=4)
    workspace = SimpleNamespace(state=state, round_index=4, learner=learner, models=models, private=None)
    assert algorithm.assign(workspace).trained == (1,)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"slot": 1, "round_index": 1, "step": 4}, None),
        ({"slot": 0, "round_index": 1, "step": 4}, RefusalCode.SLOT_OUT_OF_RANGE),
        ({"slot": 0, "round_index": 1, "step": 7}, None),
        ({"slot": 4, "round_index": 1, "step": 4}, RefusalCode.SLOT_OUT_OF_RANGE),
        ({"slot": 1, "round_index": 1, "step": 1}, RefusalCode.MALFORMED),
    ],
)
def test_a_model_comes_in_the_second_half_of_the_steps_for_the_cluster_of_the_round(changes, code):
    algorithm = Dfca(manifest(**SEEDS, clusters=3, rounds=9), 0, make_graph("line", 5))
    fields = {"sender": 1, "incarnation": 1, "round_index": 0, "step": 4, "slot": 0, "index": 0, "total": 1}
    header = ModelHeader(
        **(fields | {"sample_count": 4, "mass": 1.0, "size_bytes": 24, "encoding": "float32"} | changes)
    )
    rejection = algorithm.rejects({}, header, None)
    assert (rejection.code if rejection else None) == code


@pytest.mark.parametrize(
    ("step", "numbers", "refused"),
    [
        (0, (0.5, 3.0, 1.0), False),
        (0, (-0.5, 3.0, 0.0), False),
        (3, (), False),
        (5, (), False),
        (5, (0.5, 3.0, 1.0), True),
        (0, (0.5, 3.0), True),
        (0, (0.5, 9.0, 1.0), True),
        (0, (0.5, 2.5, 1.0), True),
        (0, (0.5, 3.0, 0.5), True),
    ],
)
def test_numbers_are_a_gain_a_peer_and_whether_a_gain_is_clear(step, numbers, refused):
    algorithm = Dfca(manifest(**SEEDS, clusters=3, rounds=9), 0, make_graph("line", 5))
    rejection = algorithm.rejects_pass({}, Pass(1, 1, 0, step, Numbers.of(numbers)))
    assert (rejection is not None) == refused
    assert rejection is None or rejection.code is RefusalCode.MALFORMED
    assert algorithm.rejects_pass({}, Pass(1, 1, 3, 0, Numbers.of(numbers))) is None or numbers, (
        "a plain round has no numbers"
    )


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"pace": "async"}, ["run.pace", "lockstep"]),
        ({"dynamic_edges": 0.2}, ["run.dynamic_edges", "0.0"]),
        ({"edges": "one"}, ["run.edges", "'all'"]),
        ({"rounds": 2}, ["run.rounds", "3 or more"]),
        ({"options": {"initialization": "seeds", "warmup_rounds": 2}}, ["warmup_rounds", "no effect"]),
        ({"options": {"initialization": "seeds", "split_empty": True}}, ["split_empty", "no effect"]),
        ({"algorithm": "blend", "pace": "async"}, ["run.pace", "lockstep"]),
        ({"options": {"seed_epochs": 3}}, ["seed_epochs", "initialization is not seeds"]),
        ({"algorithm": "blend", "pace": "async", "options": {"seed_epochs": 3}}, ["seed_epochs", "no effect"]),
    ],
)
def test_what_has_no_effect_with_seeds_is_refused(run, words):
    settings = {"rounds": 9, "clusters": 2} | SEEDS | run
    with pytest.raises(ConfigError) as raised:
        check_algorithm(make_graph("line", 4, manifest=manifest(**settings)))
    assert all(word in str(raised.value) for word in words)

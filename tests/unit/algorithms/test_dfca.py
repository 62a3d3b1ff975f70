"""DFCA (Kirch et al., "DFCA: Decentralized Federated Clustering Algorithm", 2025, arXiv 2510.15300), and what holds for all.

Whole runs are simulated: the real engine and host on a virtual clock, without faults.
"""

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError, RefusalCode
from peer.algorithms.dfca import Dfca, DfcaState
from peer.algorithms.work import perform
from peer.algorithms.workspace import FoldedArrival, Workspace
from peer.core.effects import Target, Work
from peer.core.messages import ModelHeader, Numbers
from peer.core.model_store import ModelStore
from tests.simulation.network import Weather
from tests.simulation.options import Options, manifest
from tests.simulation.trainer import QuadraticLearner
from tests.simulation.world import World
from tests.tools.simulated import finish, peers_of

STILL = 1e-12  # a learning rate at which training changes nothing in float32


def play(kind, peers, *, seed=1, weather=None, assigned=None, **run):
    """Simulate a run and return the world; ``assigned``: peer -> cluster, in place of the choice by loss."""
    graph = make_graph(kind, peers, seed=seed, manifest=manifest(seed=seed, **run))
    world = World(Options(seed, graph, weather=weather or Weather()))
    for i, machine in world.machines.items():
        if assigned is not None:
            machine.learner.mean_loss = _prefers(world, i, assigned[i])
    world.run()
    return world


def _prefers(world, i, cluster):
    def mean_loss(theta, part="train"):
        process = world.machines[i].process
        models = process.host.workspace.models if process and hasattr(process, "host") else None
        return 0.0 if models is not None and theta is models.model(cluster) else 1.0

    return mean_loss


def stack(world, slot=0):
    return np.stack([world.checker.final[i][slot] for i in world.graph.ids]).astype(np.float64)


def initial(world, slot=0):
    found = []
    for i, machine in world.machines.items():
        algorithm = Dfca(world.manifest, i, world.graph)
        found.append(algorithm.initial_models(machine.learner)[0][slot])
    return np.stack(found).astype(np.float64)


LOCAL = {"options": {"initialization": "local"}, "clusters": 1, "learning_rate": STILL}


@pytest.mark.parametrize("kind", ["line", "star", "complete"])
def test_metropolis_mixing_keeps_the_mean_over_peers(kind):
    world = play(kind, 5, rounds=4, mix="metropolis", **LOCAL)
    before, after = initial(world).mean(axis=0), stack(world).mean(axis=0)
    assert np.abs(after - before).max() <= 1e-6 * np.abs(initial(world)).max()
    assert np.abs(stack(world) - initial(world)).max() > 0.1, "models did not change"


def test_uniform_mixing_keeps_the_mean_on_a_regular_graph_but_not_on_a_star():
    ring, star = (play(kind, 5, rounds=1, mix="uniform", **LOCAL) for kind in ("ring", "star"))
    change = [np.abs(stack(w).mean(axis=0) - initial(w).mean(axis=0)).max() for w in (ring, star)]
    assert change[0] <= 1e-6 and change[1] > 0.01


@pytest.mark.parametrize("aggregation", ["sequential", "batch"])
def test_delays_and_bandwidth_change_no_bit(aggregation):
    weathers = [Weather(), Weather(delay_s=0.2), Weather(bytes_per_s=20), Weather(delay_s=0.05, bytes_per_s=100)]
    runs = [play("ring", 5, rounds=4, weather=w, aggregation=aggregation, clusters=2) for w in weathers]
    for other in runs[1:]:
        for slot in range(2):
            assert np.array_equal(stack(runs[0], slot), stack(other, slot))


def test_sent_model_is_the_one_before_any_fold():
    """On a line 0 - 1 - 2 an update in place would pass peer 0's model on to peer 2 within the round."""
    world = play("line", 3, rounds=1, **LOCAL)
    a, b, c = initial(world)
    expected = np.stack([(a + b) / 2, (a + b + c) / 3, (b + c) / 2])
    assert np.abs(stack(world) - expected).max() < 1e-6


def algorithm_and_workspace(peers=3, k=3, **run):
    graph = make_graph("complete", peers, manifest=manifest(clusters=k, **run))
    algorithm = Dfca(graph.manifest, 0, graph)
    learner = QuadraticLearner(0, k, 6, 1)
    models, _ = algorithm.initial_models(learner)
    store = ModelStore(models, batch=graph.manifest.aggregation == "batch")
    workspace = Workspace(graph.manifest, 0, graph, learner, store, state=DfcaState())
    workspace.state = algorithm.begin(workspace)
    return algorithm, workspace


def do(algorithm, workspace, *kinds, round_index=0, **fields):
    for kind in kinds:
        perform(Work(kind, round_index, **fields), algorithm, workspace, lambda: 0.0)


@pytest.mark.parametrize("aggregation", ["sequential", "batch"])
def test_without_arrivals_only_the_trained_model_changes(aggregation):
    algorithm, workspace = algorithm_and_workspace(aggregation=aggregation)
    before = [workspace.models.model(slot).copy() for slot in range(3)]
    do(algorithm, workspace, "assign", "train")
    chosen = workspace.state.trained[0]
    trained = workspace.models.model(chosen).copy()
    do(algorithm, workspace, "close")
    for slot in range(3):
        assert np.array_equal(workspace.models.model(slot), trained if slot == chosen else before[slot])
    assert not np.array_equal(trained, before[chosen])


@pytest.mark.parametrize("aggregation", ["sequential", "batch"])
@pytest.mark.parametrize("mix", ["uniform", "metropolis"])
def test_one_cluster_is_dfedavg(aggregation, mix):
    run = {"rounds": 4, "clusters": 1, "mix": mix, "aggregation": aggregation}
    dfca, dfedavg = (play("line", 4, algorithm=name, **run) for name in ("dfca", "dfedavg"))
    assert np.array_equal(stack(dfca), stack(dfedavg))


def test_global_initialization_is_equal_on_all_peers_and_local_is_not():
    for kind, equal in (("global", True), ("local", False)):
        graph = make_graph("ring", 4, manifest=manifest(clusters=3, options={"initialization": kind}))
        models, common = zip(
            *(Dfca(graph.manifest, i, graph).initial_models(QuadraticLearner(i, 3, 6, 1)) for i in graph.ids),
            strict=True,
        )
        assert set(common) == {equal}
        for slot in range(3):
            assert all(np.array_equal(models[0][slot], other[slot]) for other in models[1:]) == equal
        assert not np.array_equal(models[0][0], models[0][1])


@pytest.mark.parametrize("aggregation", ["sequential", "batch"])
def test_on_a_complete_graph_trainers_of_a_cluster_end_with_their_mean(aggregation):
    """And a peer that did not train a cluster with (old + sum of the trained) / (n_j + 1)."""
    assigned = {0: 0, 1: 0, 2: 1, 3: 0, 4: 1}
    world = play("complete", 5, rounds=1, clusters=2, aggregation=aggregation, assigned=assigned)
    sent = world.checker.sent.items()
    trained = {key[0]: np.frombuffer(data, np.float32).astype(np.float64) for (key, _encoding), data in sent}
    for j in range(2):
        group = [trained[i] for i in assigned if assigned[i] == j]
        old = initial(world, j)[0]
        for i, own in assigned.items():
            total = sum(group) + (0 if own == j else old)
            expected = total / (len(group) + (own != j))
            assert np.abs(world.checker.final[i][j] - expected).max() < 2e-6
        ends = [world.checker.final[i][j] for i in assigned if assigned[i] == j]
        assert all(np.abs(end - ends[0]).max() < 2e-6 for end in ends)


def test_assignment_never_raises_the_sum_of_losses():
    """Lemma 1, over runs from different starts: the cluster chosen is the one of lowest loss on the own training set."""
    for seed in range(5):
        world = play("ring", 6, seed=seed, rounds=3, clusters=3, options={"initialization": "local"})
        for i in world.graph.ids:
            learner, models = world.machines[i].learner, world.checker.final[i]
            losses = [learner.mean_loss(theta) for theta in models]
            rounds = [fields["cluster_index"] for fields in world.checker.history[i]]
            assert losses[rounds[-1]] == min(losses)
            for earlier in rounds:
                assert losses[rounds[-1]] <= losses[earlier]


def test_equal_losses_choose_the_lowest_index():
    algorithm, workspace = algorithm_and_workspace()
    workspace.learner.mean_loss = lambda theta, part="train": 0.5
    do(algorithm, workspace, "assign")
    assert workspace.state.cluster_index == 0 and workspace.state.trained == (0,)


def test_clusters_are_found():
    world = play("complete", 6, seed=2, rounds=10, clusters=2)
    chosen = [world.checker.history[i][-1]["cluster_index"] for i in world.graph.ids]
    assert chosen == [chosen[0], chosen[1]] * 3 and chosen[0] != chosen[1]


# ---- the relay warm-up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["sequential", "batch"])
def test_on_a_complete_graph_one_relay_step_is_the_server_average(aggregation):
    assigned = {0: 0, 1: 1, 2: 0, 3: 0}
    options = {"warmup_rounds": 1, "relay_steps": 1}
    world = play("complete", 4, rounds=1, clusters=2, options=options, assigned=assigned, aggregation=aggregation)
    sent = world.checker.sent.items()
    trained = {key[0]: np.frombuffer(data, np.float32).astype(np.float64) for (key, _encoding), data in sent}
    for j in range(2):
        mean = np.mean([trained[i] for i in assigned if assigned[i] == j], axis=0)
        assert np.abs(stack(world, j) - mean).max() < 2e-6


def test_relaying_keeps_the_sum_of_masses_and_of_weighted_models():
    algorithms = {}
    graph = make_graph("line", 4, manifest=manifest(clusters=2, options={"warmup_rounds": 1, "relay_steps": 4}))
    workspaces = {}
    for i in graph.ids:
        algorithms[i] = Dfca(graph.manifest, i, graph)
        learner = QuadraticLearner(i, 2, 6, 1)
        workspaces[i] = Workspace(
            graph.manifest, i, graph, learner, ModelStore(algorithms[i].initial_models(learner)[0]), {}
        )
        workspaces[i].state = algorithms[i].begin(workspaces[i])
        do(algorithms[i], workspaces[i], "assign", "train")

    def totals(slot):
        pairs = [(b.state.masses[slot], b.models.model(slot).astype(np.float64)) for b in workspaces.values()]
        return sum(m for m, _ in pairs), sum(m * theta for m, theta in pairs)

    before = [totals(slot) for slot in range(2)]
    for step in range(4):
        offers = {
            i: [
                (o, workspaces[i].models.model(o.slot).copy())
                for o in algorithms[i].offers(workspaces[i].state, 0, step, 0, None)
            ]
            for i in graph.ids
        }
        for i in graph.ids:
            for n in graph.neighbors(i):
                for offer, theta in offers[n]:
                    header = header_of(sender=n, slot=offer.slot, mass=offer.mass, numbers=offer.numbers, step=step)
                    (target,) = algorithms[i].targets(workspaces[i].state, header)
                    workspaces[i].models.fold(target.slot, theta, target.weight)
                    workspaces[i].arrivals.append(FoldedArrival(header))
            do(algorithms[i], workspaces[i], "end_step", step=step, present=graph.neighbors(i))
    for slot in range(2):
        mass, weighted = totals(slot)
        assert mass == pytest.approx(before[slot][0], rel=1e-12)
        assert np.abs(weighted - before[slot][1]).max() < 1e-5


def header_of(**changes):
    fields = {
        **{"sender": 1, "incarnation": 1, "round_index": 0, "step": 0, "slot": 0, "index": 0, "total": 1},
        **{"sample_count": 4, "mass": 1.0, "size_bytes": 24, "encoding": "float32"},
    }
    return ModelHeader(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mass": 0.0}, RefusalCode.WEIGHT_OUT_OF_RANGE),
        ({"mass": 3.5}, RefusalCode.WEIGHT_OUT_OF_RANGE),
        ({"mass": float("nan")}, RefusalCode.WEIGHT_OUT_OF_RANGE),
        ({"numbers": Numbers()}, RefusalCode.MALFORMED),
        ({"numbers": Numbers.of(1.0, 2.0)}, RefusalCode.MALFORMED),
        ({"numbers": Numbers.of(float("inf"))}, RefusalCode.MALFORMED),
        ({}, None),
        ({"mass": 3.0}, None),
    ],
)
def test_header_of_a_relayed_model_is_checked(changes, code):
    algorithm, _ = algorithm_and_workspace(options={"warmup_rounds": 1})
    rejection = algorithm.rejects({}, header_of(**({"numbers": Numbers.of(0.5)} | changes)), None)
    assert (rejection.code if rejection else None) == code


def test_after_the_warm_up_rounds_are_plain_dfca():
    algorithm, _ = algorithm_and_workspace(k=2, options={"warmup_rounds": 2, "relay_steps": 5})
    assert [algorithm.steps(t) for t in range(4)] == [5, 5, 1, 1]
    assert algorithm.targets(DfcaState(trained=(0,)), header_of(round_index=2, slot=1)) == (Target(1, 1.0),)
    state = DfcaState(trained=(1,), sample_count=4, masses=(0.5, 0.5), relayed_losses=(1.0, 1.0))
    assert [offer.slot for offer in algorithm.offers(state, 2, 0, 1, None)] == [1]
    assert [offer.slot for offer in algorithm.offers(state, 1, 0, 1, None)] == [0, 1]
    state = replace(state, masses=(0.5, 1e-10))
    assert [offer.slot for offer in algorithm.offers(state, 1, 0, 1, None)] == [0], (
        "a mass that receivers would refuse is not sent"
    )


@pytest.mark.parametrize("loss", [float("inf"), 1e200])
def test_diverged_model_relays_a_loss_that_neighbors_accept(loss):
    algorithm, workspace = algorithm_and_workspace(k=2, options={"warmup_rounds": 2})
    workspace.state = DfcaState(sample_count=4, cluster_index=0, losses=(loss, 1.0))
    do(algorithm, workspace, "assign", round_index=1)
    (offer,) = algorithm.offers(workspace.state, 1, 0, 1, None)
    assert algorithm.rejects({}, header_of(round_index=1, numbers=offer.numbers), None) is None


def test_empty_cluster_gets_the_peers_of_high_loss_from_the_largest_cluster():
    algorithm, workspace = algorithm_and_workspace(k=2, options={"warmup_rounds": 4, "split_empty": True})
    masses = {"masses": (3.0, 0.0), "relayed_losses": (5.0, 0.0), "losses_before": (9.5, 20.0)}
    workspace.state = DfcaState(sample_count=4, cluster_index=0, losses=(9.0, 20.0), **masses)
    do(algorithm, workspace, "assign", round_index=2)
    assert workspace.state.trained == (1,)
    assert np.array_equal(workspace.models.model(1), workspace.models.model(0)) and workspace.models.model(
        1
    ) is not workspace.models.model(0)


def test_in_a_run_part_of_the_largest_cluster_moves_to_the_empty_one_and_all_clusters_are_found():
    options = {"warmup_rounds": 4, "split_empty": True}
    model = {"model": "mlp", "model_options": {"hidden": 16}, "learning_rate": 0.1, "local_epochs": 1}
    data = {"task": "digits", "split": "rotated_hard", "split_options": {"k": 4}, "clusters": 4, "rounds": 4, "seed": 5}
    made = make_graph("erdos-renyi", 12, degree=4, seed=5)
    peers = peers_of(Graph(made.nodes, made.edges, Manifest(algorithm="dfca", options=options, **model, **data)))
    trained: list[list[int]] = []
    finish(peers, lambda round_index: trained.append([peer.state.trained[0] for peer in peers]))
    largest = [p for p in range(12) if trained[1][p] == 0]
    moved = [p for p in largest if trained[2][p] == 1]
    assert 1 not in trained[1] and len(largest) == 8 and 0 < len(moved) < len(largest)
    assert [peer.state.cluster_index for peer in peers] == [2, 1, 0, 3] * 3


@pytest.mark.parametrize("options", [{"warmup_round": 1}, {"relay_steps": 0}, {"initialization": "none"}])
def test_wrong_options_are_named(options):
    graph = make_graph("ring", 3, manifest=manifest(options=options))
    with pytest.raises(ConfigError, match=rf"run\.options\.{next(iter(options))}: expected"):
        Dfca(graph.manifest, 0, graph)

"""Goal: the protocol stays safe under every fault and finishes once they end; without faults it computes the reference.

Method: the real engine, model store and algorithms on a virtual clock over a seeded network (see `world`). A failing seed prints
its last events and the command that replays it.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from tests.simulation.bugs import PLANTED
from tests.simulation.network import Weather
from tests.simulation.options import ACTIONS, ACTIONS_LATER, ACTIONS_RARE, Options, draw, manifest
from tests.simulation.rolling import KINDS
from tests.simulation.runner import report, run_many, run_one, shrink
from tests.simulation.small_runs import (
    KILLED,
    KILLED_ASKING,
    KILLED_ON_ONE_EDGE,
    KILLED_PRIVATE,
    KILLED_SELECTING,
    RUNS,
    assert_equals_reference,
    async_with_kills,
    former_peer,
    hub_away,
    leave,
    rounds_alone,
    with_a_change,
    with_forgotten_pushes,
    with_restarts,
    without_faults,
)
from tests.simulation.world import EPOCH_S, Machine, World

FAULTS = {"loss", "cut", "replay", "corrupt", "delay", "swallowed", "keepalive", "loss_for_good", *ACTIONS}
FAULTS |= {"tunnel_loss", "no_tunnel", "connection_refused", *ACTIONS_LATER, *ACTIONS_RARE}
FAULTS |= {f"revision {kind}" for kind in KINDS}
FAULTS |= {"write kept", "write dropped", "write torn"}
MARKS = {
    *("folded", "folded late", "stream cut", "resumed", "incarnation raised"),
    *("closed without a neighbor", "kept its round rate", "numbers told"),
    *("checkpoint written", "checkpoint failed", "record caught_up", "record leave", "record end"),
    *("record neighbor alive", "record neighbor suspect", "record neighbor dead", "record neighbor left"),
    *("replied duplicate", "replied stale", "replied unused", "replied no_handshake", "replied round_too_far_ahead"),
    *("refused no_handshake", "refused old_incarnation", "refused digest_mismatch", "refused round_too_far_ahead"),
    *("crashed while training", "crashed while exchanging", "crashed while joining", "left while training"),
    *("left while assigning", "left while closing", "left while exchanging"),
    *(
        "handshake with a new incarnation while training",
        "handshake with a new incarnation while exchanging",
        "handshake with a new incarnation while lingering",
    ),
    *("selection awaited", "late selection answered", "exchanged with co-selectors only", "all centers sent"),
    *("model of another cluster unused", "refused label_conflict"),
    *("sketches sent", "labels taken over", "labels permuted"),
    "folded from a neighbor that was asked",
    *("folded over the one edge", "outer step"),
    "not started without everyone",
    *("folded over two revisions", "ended changed", "changes while training", "changes while exchanging"),
    *("changes while joining", "changes while lingering"),
    *("tested a neighbor's model", "no test: skipped", "no test: dead", "no test: edge_down", "no test: sat_out"),
    *("clipped", "trimmed", "refused norm_bound", "sent float16", "sent bfloat16", "sent int8"),
}


def test_30_seeds():
    summary = run_many(0, 30)
    print(summary)
    assert not summary.failures, "\n\n".join(map(report, summary.failures))
    assert len(FAULTS & set(summary.fired)) >= len(FAULTS) // 2, "hardly any fault fired"


@pytest.mark.slow
@pytest.mark.timeout(900)  # only a hang lasts so long, also on a machine with other work
def test_200_seeds():
    summary = run_many(0, 200)
    print(summary)
    assert not summary.failures, "\n\n".join(map(report, summary.failures))
    assert FAULTS - set(summary.fired) == set(), "these faults never fired"
    assert MARKS - set(summary.marks) == set(), "these situations never occurred"


REGRESSIONS = {
    "a peer without its disk waited until the deadline for five restarted neighbors, one of them two rounds ahead": 3371,
    "a peer without its disk took an incarnation that a neighbor had missed, and got nothing from it": 5493,
    "a partitioned peer kept its round rate though a neighbor was ahead that it could have joined": 1201,
    "with relay steps, a model for the next round that came between two rounds was taken for late": 22444,
    "two incarnations offered different bits under one key": 6024,
    "a retried model was answered as a duplicate while the first copy, which was then cut, waited for its turn": 27913,
    "fedspd: a neighbor whose selection came after the offers never got a model": 200192,
    "fedspd: a neighbor one round ahead did not get a selection that it had kept a model for": 201052,
    "fedspd: a neighbor that restarted did not get a selection that it had kept a model for": 220647,
    "fedspd, async: labels were aligned with sketches that a neighbor had relayed in a warm round": 3253,
    "a retried model that had failed screening was never read, with one buffer: its round waited for the deadline": 30715,
    "a timer that was set to a sum was compared with a difference: it fired without end": 40244,
}


@pytest.mark.parametrize("seed", REGRESSIONS.values(), ids=REGRESSIONS)
def test_regression_seeds(seed):
    assert not run_many(seed, 1).failures


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("seed", range(2))
def test_l6_lockstep_without_faults_equals_the_reference_bit_for_bit(name, seed):
    assert_equals_reference(without_faults(name, seed))


# a leave is waited for as a death is, and costs as little: nothing
RESTARTS = {
    "kill": (KILLED, Machine.crash, 12),
    "kill, selecting": (KILLED_SELECTING, Machine.crash, 6),
    "kill, asking": (KILLED_ASKING, Machine.crash, 6),
    "kill, one edge": (KILLED_ON_ONE_EDGE, Machine.crash, 6),
    "kill, private": (KILLED_PRIVATE, Machine.crash, 4),
    "leave": (KILLED, leave, 6),
    "leave, selecting": (KILLED_SELECTING, leave, 4),
}


@pytest.mark.parametrize(
    ("case", "seed"), [(case, seed) for case, found in RESTARTS.items() for seed in range(found[2])]
)
def test_a_restart_of_a_peer_changes_no_bit(case, seed):
    names, end, _ = RESTARTS[case]
    assert_equals_reference(with_restarts(seed, names, end))


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_change_with_a_fixed_round_gives_the_bits_of_the_reference(seed, kill):
    assert_equals_reference(with_a_change(seed, kill=kill))


@pytest.mark.parametrize("seed", (11, 13, 26))
def test_peers_that_change_at_different_times_wait_for_those_of_the_same_round(seed):
    assert_equals_reference(with_a_change(seed, train_s=(0.5, 9.0)))


@pytest.mark.parametrize("seed", range(3))
def test_a_former_peer_ends_as_one_when_its_last_neighbor_has_the_file(seed):
    assert former_peer(seed).now > EPOCH_S + 8.0


@pytest.mark.parametrize("away_s", [0.5, 1.9, 6.0, 12.0])
@pytest.mark.parametrize("seed", range(3))
def test_leave_of_a_hub_costs_its_neighbors_no_more_rounds_than_a_kill(seed, away_s):
    left, killed = (hub_away(seed, away_s, politely=politely) for politely in (True, False))
    assert left.checker.marks["record leave"] == 1 and not killed.checker.marks["record leave"]
    for neighbor in (1, 2, 3):
        alone, at_a_kill = rounds_alone(left, neighbor), rounds_alone(killed, neighbor)
        assert abs(alone - at_a_kill) <= 3, f"{alone} rounds alone, after a kill {at_a_kill}"
        assert alone > 0 or away_s < 2


@pytest.mark.parametrize("seed", range(12))
def test_lost_pushes_and_answers_are_retried_and_change_no_bit(seed):
    world = with_forgotten_pushes(seed)
    assert world.checker.marks["push retried"] and not world.checker.marks["push retried late"]
    assert_equals_reference(world)


@pytest.mark.parametrize("seed", range(12))
def test_killed_async_peer_folds_no_model_twice(seed):
    async_with_kills(seed)


@pytest.mark.parametrize("seed", range(6))
def test_port_closed_during_the_run_costs_neighbors_one_wait(seed):
    """A late firewall rule: peer 1 still calls its neighbors and is answered, but no neighbor reaches it."""
    run = manifest(clusters=1, rounds=60, seed=seed, timeouts={"suspicion_s": 2.5})
    world = World(Options(seed, make_graph("complete", 4, manifest=run), train_s=(0.1, 0.3)))
    others, suspicion_s = (0, 2, 3), run.timeouts.suspicion_s
    for machine in world.machines.values():
        world.after(0.0, machine.start)
    world.run_until(EPOCH_S + 60, lambda: len(world.checker.history[0]) == 5)
    for edge, link in world.network.links.items():
        link.refused = edge[1] == 1
    world.run_until(EPOCH_S + 120, lambda: all(world.machines[i].completed for i in others))
    assert world.fired["connection_refused"]
    for i in others:
        waits = [line["seconds"]["wait"] for line in world.checker.history[i]]
        assert len(waits) == 60
        assert sum(wait > 1.0 for wait in waits) == 1 and max(waits) < 3.5 * suspicion_s, waits
    assert world.checker.marks["record caught_up"], "peer 1 continues with the models that it pulls"


def distance(world, processes):
    models = np.stack([machine.process.workspace.models.model(0) for machine in processes]).astype(np.float64)
    return float(np.sqrt(((models - models.mean(axis=0)) ** 2).sum(axis=1).mean()))


def test_l2_mixing_contracts_the_consensus_distance_at_the_graphs_spectral_rate():
    run = manifest(clusters=1, mix="metropolis", learning_rate=1e-12, rounds=12, options={"initialization": "local"})
    graph = make_graph("ring", 6, manifest=run)
    world = World(replace(Options(1, graph), weather=Weather()))
    machines = world.machines.values()
    for machine in machines:
        machine.learner.jitter = 0.0
        world.after(0.0, machine.start)
    weights = np.array([[1 / 3 if (i - j) % 6 in (0, 1, 5) else 0.0 for j in range(6)] for i in range(6)])
    rate = sorted(abs(np.linalg.eigvalsh(weights)))[-2]
    found = []
    for t in range(1, 9):
        world.run_until(EPOCH_S + 60, lambda t=t: len(world.checker.history[0]) >= t)
        world.run_until(EPOCH_S + 60, lambda t=t: all(len(world.checker.history[i]) >= t for i in graph.ids))
        found.append(distance(world, machines))
    for before, after in itertools.pairwise(found):
        assert after <= rate * before * (1 + 1e-5) + 1e-6
    assert found[-1] < found[0] * rate**6


def test_l2_models_diverge_in_a_partition_and_converge_after_healing():
    run = manifest(algorithm="dfedavg", clusters=2, rounds=40, learning_rate=0.2)
    graph = make_graph("complete", 6, manifest=run)
    world = World(Options(3, graph))
    machines = list(world.machines.values())
    for machine in machines:
        world.after(0.0, machine.start)

    def after_round(t):
        world.run_until(EPOCH_S + 600, lambda: all(len(world.checker.history[i]) >= t for i in graph.ids))
        return distance(world, machines)

    before = after_round(12)
    halves = [edge for edge in world.network.links if edge[0] % 2 != edge[1] % 2]
    world.network.take_down(halves)
    apart = after_round(22)
    world.network.bring_up(halves)
    healed = after_round(34)
    assert apart > 3 * before, "both sides must have trained on"
    assert healed < 1.5 * before


def test_failing_run_shrinks_to_fewer_faults_peers_and_rounds(monkeypatch):
    PLANTED["the_last_round_heard_wins"](monkeypatch)
    outcome = run_one(draw(10))
    smallest = shrink(outcome)
    assert smallest.error.name == outcome.error.name == "I7"
    large, small = outcome.options, smallest.options
    assert len(small.actions) < len(large.actions) and small.weather != large.weather
    assert len(small.graph.ids) < len(large.graph.ids) and set(small.graph.ids) < set(large.graph.ids)
    assert small.graph.manifest.rounds < large.graph.manifest.rounds
    assert run_one(small).error.name == "I7"

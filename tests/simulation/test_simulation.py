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
from tests.simulation.runner import report, run_many, run_one, shrink
from tests.simulation.small_runs import (
    KILLED_SELECTING,
    RUNS,
    assert_equals_reference,
    async_with_kills,
    with_a_kill,
    with_forgotten_pushes,
    without_faults,
)
from tests.simulation.world import EPOCH_S, World

FAULTS = {"loss", "cut", "replay", "corrupt", "delay", "swallowed", "keepalive", "loss_for_good", *ACTIONS}
FAULTS |= {"connection_refused", *ACTIONS_LATER, *ACTIONS_RARE}
FAULTS |= {"write kept", "write dropped", "write torn"}
MARKS = {
    *("folded", "folded late", "stream cut", "resumed", "outgrew an old life"),
    *("closed without somebody", "kept its tempo"),
    *("checkpoint written", "checkpoint failed", "record caught_up", "record leave", "record end"),
    *("record neighbor alive", "record neighbor suspect", "record neighbor dead", "record neighbor left"),
    *("replied duplicate", "replied stale", "replied unused", "replied no_handshake", "replied round_too_far_ahead"),
    *("refused no_handshake", "refused old_incarnation", "refused digest_mismatch", "refused round_too_far_ahead"),
    *("crashed while training", "crashed while exchanging", "crashed while joining", "left while training"),
    *("left while assigning", "left while closing", "left while exchanging"),
    *("new life greeted while training", "new life greeted while exchanging", "new life greeted while lingering"),
    *("announcement awaited", "late announcement answered", "exchanged with co-selectors only", "all centers sent"),
    *("model of another cluster unused", "refused label_conflict"),
    *("sketches announced", "labels taken over", "labels permuted"),
}


def test_200_seeds():
    summary = run_many(0, 200)
    print(summary)
    assert not summary.failures, "\n\n".join(map(report, summary.failures))
    assert FAULTS - set(summary.fired) == set(), "a fault that is never carried out proves nothing"
    assert MARKS - set(summary.marks) == set(), "nothing has led there"


REGRESSIONS = {
    "a peer without its disk met five restarted ones, one of them two rounds ahead: it waited until the deadline": 3371,
    "a lost disk was met by a neighbor that had not seen the last life, whose number it took again: nothing came": 5493,
    "a peer kept its tempo, cut off from one that was not far behind but ahead of it, which it could have joined": 1201,
    "between two rounds, with relay steps, what came for the next one was held for late, and waited for ever after": 22444,
    "the same as the second, and two lives offered different bits under one name": 6024,
    "a model made again was answered as known while the first of the two waited its turn, which was then cut off": 27913,
    "fedspd: a neighbor whose selection came after the offers, because it had been away, never got a model": 200192,
    "fedspd: a neighbor one round ahead was not told a selection that it had kept a model for": 201052,
    "fedspd: the same, where the selection was to be told again to a new life": 220647,
}


@pytest.mark.parametrize("seed", REGRESSIONS.values(), ids=REGRESSIONS)
def test_what_was_found_before_is_not_found_again(seed):
    assert not run_many(seed, 1).failures


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("seed", range(4))
def test_l6_without_faults_lockstep_equals_the_reference_bit_for_bit(name, seed):
    assert_equals_reference(without_faults(name, seed))


@pytest.mark.parametrize("seed", range(24))
def test_a_peer_killed_at_any_time_and_soon_restarted_changes_no_bit(seed):
    assert_equals_reference(with_a_kill(seed))


@pytest.mark.parametrize("seed", range(12))
def test_nor_does_it_where_its_neighbors_wait_for_what_it_selects(seed):
    assert_equals_reference(with_a_kill(seed, KILLED_SELECTING))


@pytest.mark.parametrize("seed", range(12))
def test_a_push_or_an_answer_that_vanishes_is_made_good_and_changes_no_bit(seed):
    world = with_forgotten_pushes(seed)
    assert world.checker.marks["sent again"]
    assert_equals_reference(world)


@pytest.mark.parametrize("seed", range(12))
def test_an_async_peer_killed_among_faster_neighbors_folds_nothing_twice(seed):
    async_with_kills(seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_port_that_closes_in_mid_run_costs_the_others_one_wait(seed):
    """A firewall rule that comes late: peer 1 goes on to call the others, and is answered, but nobody reaches it."""
    run = manifest(clusters=1, rounds=60, seed=seed)
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
    assert world.checker.marks["record caught_up"], "peer 1 goes on with what it pulls"


def distance(world, processes):
    models = np.stack([machine.process.bench.models.model(0) for machine in processes]).astype(np.float64)
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


def test_l2_a_partition_parts_the_models_and_healing_brings_them_together():
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
    assert apart > 3 * before, "both sides must have trained on, each for itself"
    assert healed < 1.5 * before


def test_a_failing_run_shrinks_to_fewer_faults_peers_and_rounds_that_break_the_same(monkeypatch):
    PLANTED["the_last_word_on_a_round_wins"](monkeypatch)
    outcome = run_one(draw(45))
    smallest = shrink(outcome)
    assert smallest.error.name == outcome.error.name == "I7"
    large, small = outcome.options, smallest.options
    assert len(small.actions) < len(large.actions) and small.weather != large.weather
    assert len(small.graph.ids) < len(large.graph.ids) and set(small.graph.ids) < set(large.graph.ids)
    assert small.graph.manifest.rounds < large.graph.manifest.rounds
    assert run_one(small).error.name == "I7"

"""The plan of a round: both ends of an edge derive the same one from the seed, and the algorithm is asked for it once."""

from collections import Counter
from dataclasses import replace

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import RefusalCode
from peer.algorithms.dfca import Dfca
from peer.algorithms.dfedavg import DFedAvg
from peer.core import effects as do
from peer.core import events as ev
from peer.core.messages import Pass, Select
from peer.core.plan import Planner
from peer.core.stages import Stage
from tests.simulation.options import manifest
from tests.unit.core.test_engine import Driven, of

ROUNDS = range(12)


def planners(kind=Dfca, peers=4, **run):
    graph = make_graph("complete", peers, manifest=manifest(**({"clusters": 1, "rounds": 12} | run)))
    return {i: Planner(i, graph, kind(graph.manifest, i, graph)) for i in graph.ids}


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"participation": 0.5},
        {"dynamic_edges": 0.5},
        {"edges": "one"},
        {"edges": "one", "participation": 0.5, "dynamic_edges": 0.2},
        {"participation": 0.5, "dynamic_edges": 0.4},
        {"participation": 0.5, "options": {"idle_folds": False}},
    ],
)
def test_a_peer_sends_to_the_neighbors_that_count_it_among_their_senders(run):
    made = planners(**run)
    seen = Counter()
    for t in ROUNDS:
        plans = {i: planner.plan(t) for i, planner in made.items()}
        for i, plan in plans.items():
            for n in plans.keys() - {i}:
                assert (n in plan.up) == (i in plans[n].up)
                assert (n in plan.receivers) == (i in plans[n].senders and plans[n].receives)
            assert plan.brings_models == (plan.receives and bool(plan.senders))
            seen[plan.trains, len(plan.receivers)] += 1
    alike = run in ({}, {"edges": "one"})  # a complete graph of four peers has no idle one
    assert (len(seen) > 1) != alike, "choose a seed in which participants differ"


def test_a_peer_that_sits_a_round_out_sends_nothing_and_asks_nobody():
    made = planners(DFedAvg, participation=0.5, options={"partners": 1})
    resting = [p for planner in made.values() for t in ROUNDS if not (p := planner.plan(t)).trains]
    assert resting
    for plan in resting:
        decided = made[0].assigned(plan, {}, 1)
        assert decided.receivers == frozenset() and decided.selection is None
        assert decided.asked == frozenset() and all(decided.declines(n) for n in made)


def test_whom_a_peer_asks_and_what_it_says_are_known_after_assign():
    planner = planners(DFedAvg, options={"partners": 1})[0]
    plan = planner.plan(3)
    assert plan.asking and plan.asked is None and plan.selection is None and not plan.declines(1)
    decided = planner.assigned(plan, {}, incarnation=7)
    assert len(decided.asked) == 1 and [decided.declines(n) for n in (1, 2, 3)].count(False) == 1
    assert decided.selection == Select(0, 7, 3)
    assert replace(decided, asked=None, selection=None) == plan


@pytest.mark.parametrize(
    ("run", "evaluated", "saved"),
    [
        ({}, list(ROUNDS), list(ROUNDS)),
        ({"evaluate_every": 5}, [4, 9, 11], list(ROUNDS)),
        ({"checkpoint_rounds": 5}, list(ROUNDS), [4, 9, 11]),
        ({"checkpoint_rounds": 0}, list(ROUNDS), []),
    ],
)
def test_rounds_that_are_evaluated_and_saved(run, evaluated, saved):
    plans = [planners(**run)[0].plan(t) for t in ROUNDS]
    assert [plan.round_index for plan in plans if plan.evaluates] == evaluated
    assert [plan.round_index for plan in plans if plan.saves] == saved


def test_the_engine_asks_once_what_a_round_consists_of():
    driven, asked = Driven(peers=5, rounds=3), Counter()
    algorithm = driven.engine.state.algorithm
    for name in ("steps", "asking", "selects", "asks"):

        def counted(*arguments, name=name):
            asked[name, arguments[-1]] += 1
            return getattr(Dfca, name)(algorithm, *arguments)

        setattr(algorithm, name, counted)
    driven.begin()
    for t in range(3):
        driven.work("train")
        for n in (1, 2, 3, 4):
            driven.deliver(n, round_index=t)
            driven.step(ev.PassReceived(Pass(n, 1, t, 0)))
            while driven.engine.state.neighbors[n].outbox.pending():
                driven.step(ev.SendAnswered(n))
        driven.work("close")
        driven.step(ev.CheckpointWritten(t + 1))
        if t < 2:
            driven.work("assign")
    assert {count for (_, t), count in asked.items() if t > 0} == {1}, asked


def test_with_one_edge_a_peer_meets_each_neighbor_once_in_a_cycle_and_is_idle_in_the_other_rounds():
    graph = make_graph("barabasi-albert", 9, seed=2, manifest=manifest(edges="one", clusters=1, rounds=40))
    cycle = len(graph.matchings)
    assert max(graph.degrees) <= cycle <= 1 + max(graph.degrees)
    for i in graph.ids:
        planner = Planner(i, graph, DFedAvg(graph.manifest, i, graph))
        for first in (0, 7):
            plans = [planner.plan(t) for t in range(first, first + cycle)]
            met = [n for plan in plans for n in plan.up]
            assert sorted(met) == list(graph.neighbors(i)) and all(len(plan.up) <= 1 for plan in plans)
            assert sum(not plan.brings_models for plan in plans) == cycle - graph.degree(i)


def test_a_model_over_an_edge_that_is_down_is_refused():
    driven = Driven(peers=4, edges="one")
    driven.begin()
    driven.work("train")
    (partner,) = driven.engine.state.plan.up
    other = next(n for n in (1, 2, 3) if n != partner)
    (answer,) = of(driven.offer(other), do.AnswerArrival)
    assert answer.reply.code is RefusalCode.MALFORMED
    assert answer.reply.reason == f"expected no model over an edge that is down in round 0, got one of peer {other}"
    assert of(driven.deliver(partner), do.FoldArrival)


def test_a_round_on_one_edge_waits_for_the_passes_of_the_other_neighbors():
    driven = Driven(peers=4, edges="one")
    driven.begin()
    effects = driven.work("train")
    (partner,) = driven.engine.state.plan.up
    others = [n for n in (1, 2, 3) if n != partner]
    assert [effect.neighbor for effect in of(effects, do.SendModel)] == [partner]
    passes = {each.neighbor: each.message for each in of(effects, do.SendControl)}
    assert sorted(passes) == others and all(isinstance(each, Pass) for each in passes.values())
    for n in (1, 2, 3):
        driven.answered(n)
    driven.deliver(partner)
    assert driven.engine.stage is Stage.EXCHANGING
    for n in others:
        driven.step(ev.PassReceived(Pass(n, 1, 0, 0)))
    assert driven.engine.stage is Stage.CLOSING

"""FedSPD in the engine: who waits for what at each pace, late announcements, lost messages, and what is refused.

Method: engines of 2 to 4 peers with scripted selections and a scripted network (`engines.World`).
"""

from dataclasses import replace

import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import Refusal
from peer.core import events as ev
from peer.core.messages import Announce, ModelHeader, Outcome
from peer.shell.inbound import InboundCalls
from tests.unit.algorithms.engines import LOST, World

PAPER = {"first_round": "paper", "align_every": 0}


def graph_of(peers=2, kind="line", rounds=6, **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    options = manifest.pop("options", PAPER)
    return Graph(made.nodes, made.edges, Manifest(algorithm="fedspd", rounds=rounds, options=options, **manifest))


def done(world: World) -> bool:
    return set(world.stopped.values()) == {"completed"} and len(world.stopped) == len(world.engines)


def models(world: World) -> list[tuple[int, int, int, int]]:
    """(sender, receiver, round, slot) of each model sent."""
    return [(s, r, m.round_index, m.slot) for s, r, m in world.sent if isinstance(m, ModelHeader)]


# ---- lockstep ------------------------------------------------------------------------------------------------------------


def test_lockstep_exchanges_between_co_selectors_and_closes_each_round_with_all_announcements():
    def select(peer, t):
        return (peer + t) % 2 if t % 3 else 0

    world = World(graph_of(4, "complete"), select, train_s=lambda peer: 0.05 * (peer + 1)).run()
    assert done(world)
    expected = {
        (s, r, t, select(s, t))
        for t in range(6)
        for s in range(4)
        for r in range(4)
        if s != r and select(s, t) == select(r, t)
    }
    assert sorted(models(world)) == sorted(expected)
    announced = [(s, r, m.round_index) for s, r, m in world.sent if isinstance(m, Announce)]
    assert len(announced) == len(set(announced)) == 4 * 3 * 6
    assert all(engine.totals["models_folded"] == len(expected) / 4 for engine in world.engines.values())
    assert not any(engine.refusals for engine in world.engines.values())
    assert {f.targets[0].slot == f.header.slot for _, f in world.folds} == {True}


def test_lockstep_folds_in_the_order_of_neighbors_whoever_is_first():
    world = World(graph_of(4, "complete"), lambda peer, t: 0, train_s=lambda peer: 0.1 / (peer + 1)).run()
    for peer in range(4):
        order = [(f.header.round_index, f.header.sender) for who, f in world.folds if who == peer]
        assert order == sorted(order) and len(order) == 18


@pytest.mark.parametrize("exchange", ["same_cluster", "broadcast"])
def test_metropolis_weights_are_those_of_the_induced_subgraph(exchange):
    select = {0: 0, 1: 0, 2: 0, 3: 1}
    graph = graph_of(4, "star", rounds=1, mix="metropolis", options=PAPER | {"exchange": exchange})
    center = max(graph.ids, key=graph.degree)
    world = World(graph, lambda peer, t: select[peer]).run()
    assert done(world)
    weights = {(f.header.sender, who): f.targets[0].weight for who, f in world.folds}
    co = {i: [n for n in graph.neighbors(i) if select[n] == select[i]] for i in graph.ids}
    expected = {(n, i): 1 / (1 + max(len(co[i]), len(co[n]))) for i in graph.ids for n in co[i]}
    assert weights == pytest.approx(expected) and expected
    unused = sum(engine.totals["models_unused"] for engine in world.engines.values())
    assert unused == (2 if exchange == "broadcast" else 0)  # between the odd leaf and the center, both ways
    assert center == 0


def test_a_neighbor_that_never_announces_costs_the_deadline_and_no_more():
    graph = graph_of(3, "line", rounds=2, timeouts={"round_deadline_s": 20.0})

    def rule(sender, receiver, message):
        return LOST if sender == 2 and isinstance(message, Announce) else 0.001

    world = World(graph, lambda peer, t: 0, rule=rule).run(until=400.0)
    assert done(world)
    assert {(s, r) for s, r, *_ in models(world)} >= {(0, 1), (1, 0)}
    assert not [m for m in models(world) if m[1] == 2]  # nobody knows what it selected


def test_sitting_out_and_edges_that_are_down_need_no_announcement():
    graph = graph_of(4, "complete", rounds=12, participation=0.6, dynamic_edges=0.4)
    world = World(graph, lambda peer, t: 0).run()
    assert done(world)
    engine = world.engines[0]
    for sender, receiver, t, _ in models(world):
        assert world.engines[sender]._edge_up(receiver, t) and engine._active(sender, t) and engine._active(receiver, t)
    assert not any(engine.refusals for engine in world.engines.values())


# ---- async -----------------------------------------------------------------------------------------------------------------


def late_announcements(sender, receiver, message):
    return 0.15 if isinstance(message, Announce) and message.round_index == 0 else 0.001


def test_async_a_late_announcement_still_leads_to_an_exchange():
    """Both announce when they begin to train, for 0.1 s; it arrives after 0.15 s, when the offers of the round are out."""
    world = World(graph_of(pace="async", rounds=4), lambda peer, t: 0, rule=late_announcements).run()
    assert done(world)
    late = [(who, f.targets[0].weight) for who, f in world.folds if f.header.round_index == 0]
    assert sorted(late) == [(0, 0.5), (1, 0.5)]  # the snapshot of round 0, asked for in round 1: rho ** 1
    assert not any(engine.refusals for engine in world.engines.values())


def test_async_a_late_announcement_of_another_cluster_leads_to_none():
    world = World(graph_of(pace="async", rounds=4), lambda peer, t: peer, rule=late_announcements).run()
    assert done(world) and not models(world) and not world.folds


def test_async_only_the_newest_snapshot_is_offered_once():
    world = World(graph_of(pace="async", rounds=8), lambda peer, t: 0, rule=late_announcements).run()
    sent = models(world)
    assert len(sent) == len(set(sent))


def test_async_an_arrival_for_a_cluster_that_is_over_is_stale_by_the_rule_or_unused():
    def select(peer, t):
        return 0 if t == 0 or peer == 1 else 1

    def rule(sender, receiver, message):  # models take 2.5 rounds
        return 0.25 if isinstance(message, ModelHeader) else 0.001

    world = World(graph_of(pace="async", rounds=8), select, rule=rule).run()
    assert done(world)
    folded = [(f.header.round_index, f.targets[0].weight) for who, f in world.folds if who == 0]
    assert not folded  # peer 0 left cluster 0 after round 0, and what it is offered is older than one round
    engine = world.engines[0]
    assert engine.totals["stale_dropped"] + engine.totals["models_unused"] >= 1


def test_async_folds_into_a_center_selected_one_round_ago():
    def rule(sender, receiver, message):
        return 0.06 if isinstance(message, ModelHeader) else 0.001

    world = World(graph_of(pace="async", rounds=3), lambda peer, t: t % 2, rule=rule).run()
    first = [(f.header.round_index, f.targets) for who, f in world.folds if f.header.round_index == 0]
    assert first and all(t[0].slot == 0 and t[0].weight == 0.5 for _, t in first)


@pytest.mark.parametrize("lost", [Announce, ModelHeader])
def test_async_goes_on_when_everything_of_a_kind_is_lost(lost):
    world = World(
        graph_of(3, "complete", pace="async"),
        lambda peer, t: 0,
        rule=lambda s, r, message: LOST if isinstance(message, lost) else 0.001,
    ).run(until=200.0)
    assert {engine.round_index for engine in world.engines.values()} == {6}
    assert not world.folds


def test_async_a_third_of_all_messages_lost_costs_repeats_only():
    count = 0

    def rule(sender, receiver, message):
        nonlocal count
        count += 1
        return LOST if count % 3 == 0 else 0.001

    world = World(graph_of(4, "complete", pace="async", rounds=12), lambda peer, t: t % 2, rule=rule).run(until=300.0)
    assert {engine.round_index for engine in world.engines.values()} == {12}
    assert world.folds and not any(engine.refusals for engine in world.engines.values())


# ---- bad input: refused with its code, counted, nothing changed -------------------------------------------------------------


def running(**manifest):
    """A lockstep engine in round 2 that has heard neighbor 1 announce cluster 0, and the runtime's calls in front of it."""
    world = World(graph_of(rounds=9, **manifest), lambda peer, t: 0)
    engine = world.engines[0]
    while engine.round_index < 2 or (2, 0) not in engine.views[1].announced:
        world.run(until=world.events[0][0])
    refused = []
    calls = InboundCalls(engine, lambda event: engine.step(event, world.now), None, None, lambda *r: refused.append(r))
    return world, engine, calls, refused


def state_of(engine):
    kept = engine.state()
    kept.pop("refusals")
    return kept, dict(engine.views[1].announced), dict(engine.inbox.held), engine.stage, engine.views[1].round_index


def announce(**changes):
    return replace(Announce(1, 1, 2, 0, -1, 0), **changes)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param(announce(round_index=8), Refusal.ROUND_TOO_FAR_AHEAD, id="far ahead"),
        pytest.param(announce(round_index=9), Refusal.ROUND_OUT_OF_RANGE, id="after the run"),
        pytest.param(announce(step=1), Refusal.ROUND_OUT_OF_RANGE, id="no such step"),
        pytest.param(announce(round_index=3, selected=2), Refusal.SLOT_OUT_OF_RANGE, id="cluster out of range"),
        pytest.param(announce(selected=1), Refusal.CONTRADICTS_ANNOUNCEMENT, id="another cluster for the same round"),
        pytest.param(announce(selected=-1, total=0), Refusal.CONTRADICTS_ANNOUNCEMENT, id="taken back"),
        pytest.param(announce(round_index=3, total=3), Refusal.MALFORMED, id="more models than clusters"),
        pytest.param(announce(round_index=3, sketch=bytes(8)), Refusal.WRONG_SIZE, id="sketch of another size"),
        pytest.param(announce(sender=5), Refusal.NOT_A_NEIGHBOR, id="no neighbor"),
    ],
)
def test_a_bad_announcement_is_refused_and_counted(bad, code):
    import asyncio

    world, engine, calls, refused = running()
    before = state_of(engine)
    assert asyncio.run(calls.announce(None, bad)) is code
    assert dict(engine.refusals) == {code: 1} and refused[0][1] is code and refused[0][2]
    assert state_of(engine) == before
    assert asyncio.run(calls.announce(None, announce())) is None  # the same once more is no contradiction
    assert done(world.run())


def header(**changes):
    fields = dict(sender=1, incarnation=1, round_index=2, step=0, slot=0, index=0, total=1, sample_count=1, degree=1)
    fields |= dict(mass=1.0, scalars=(), size_bytes=0, encoding="float32")
    return ModelHeader(**(fields | changes))


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param(header(slot=1), Refusal.CONTRADICTS_ANNOUNCEMENT, id="another cluster than announced"),
        pytest.param(header(total=2), Refusal.CONTRADICTS_ANNOUNCEMENT, id="more models than announced"),
        pytest.param(header(round_index=4), Refusal.NOT_ANNOUNCED, id="not announced"),
        pytest.param(header(round_index=8), Refusal.ROUND_TOO_FAR_AHEAD, id="far ahead"),
        pytest.param(header(slot=2), Refusal.SLOT_OUT_OF_RANGE, id="cluster out of range"),
    ],
)
def test_a_bad_model_is_refused_unread_and_counted(bad, code):
    world, engine, _, _ = running()
    before = state_of(engine)
    effects = engine.step(ev.Offered(99_000, bad), world.now)
    replies = [e for e in effects if getattr(e, "stream", None) == 99_000]
    assert [(r.outcome, r.refusal) for r in replies] == [(Outcome.REFUSED, code)] and replies[0].reason
    assert dict(engine.refusals) == {code: 1} and state_of(engine) == before
    assert done(world.run())


def test_a_model_of_a_round_that_is_over_is_stale_and_no_offense():
    world, engine, _, _ = running()
    effects = engine.step(ev.Offered(99_000, header(round_index=0, slot=1)), world.now)
    assert [e.outcome for e in effects if getattr(e, "stream", None) == 99_000] == [Outcome.STALE]
    assert not engine.refusals


def test_a_label_conflict_is_counted_and_nobody_waits_for_it():
    """The runtime screens a complete arrival and answers the engine with a cut that carries the refusal."""
    graph = graph_of(rounds=3)
    world = World(graph, lambda peer, t: 0)
    arrived = world._admit

    def screened(peer, effect):
        if peer == 1:
            return arrived(peer, effect)
        world.post(peer, ev.Cut(effect.stream, Refusal.LABEL_CONFLICT))
        sender = world.senders.pop(effect.stream)
        return world.post(sender, ev.Sent(peer, Outcome.REFUSED, Refusal.LABEL_CONFLICT))

    world._admit = screened
    start = world.now
    world.run(until=start + 60)
    assert {engine.round_index for engine in world.engines.values()} == {3}
    assert world.engines[0].totals["label_conflicts"] == 3 and world.engines[0].totals["models_folded"] == 0
    assert world.engines[1].totals["models_folded"] == 3

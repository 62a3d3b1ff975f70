"""FedSPD in the engine: what each pace waits for, late selections, lost messages, and what is refused.

Method: engines of 2 to 4 peers with scripted selections and a scripted network (`engines.World`).
"""

from dataclasses import replace

import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.messages import ModelHeader, Numbers, Outcome, Pass, Select
from tests.unit.algorithms.engines import LOST, World
from tests.unit.algorithms.messages import header

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


def test_lockstep_sends_models_only_to_co_selectors_and_selections_to_all():
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
    selected = [(s, r, m.round_index) for s, r, m in world.sent if isinstance(m, Select)]
    assert len(selected) == len(set(selected)) == 4 * 3 * 6
    assert all(engine.state.totals["models_folded"] == len(expected) / 4 for engine in world.engines.values())
    assert not any(engine.state.refusals for engine in world.engines.values())
    assert {f.targets[0].slot == f.header.slot for _, f in world.folds} == {True}


def test_lockstep_folds_by_neighbor_id_in_any_order_of_arrival():
    world = World(graph_of(4, "complete"), lambda peer, t: 0, train_s=lambda peer: 0.1 / (peer + 1)).run()
    for peer in range(4):
        order = [(f.header.round_index, f.header.sender) for who, f in world.folds if who == peer]
        assert order == sorted(order) and len(order) == 18


@pytest.mark.parametrize("exchange", ["same_cluster", "broadcast"])
def test_metropolis_weights_use_degrees_among_co_selectors(exchange):
    select = {0: 0, 1: 0, 2: 0, 3: 1}
    graph = graph_of(4, "star", rounds=1, mix="metropolis", options=PAPER | {"exchange": exchange})
    center = max(graph.ids, key=graph.degree)
    world = World(graph, lambda peer, t: select[peer]).run()
    assert done(world)
    weights = {(f.header.sender, who): f.targets[0].weight for who, f in world.folds}
    co = {i: [n for n in graph.neighbors(i) if select[n] == select[i]] for i in graph.ids}
    expected = {(n, i): 1 / (1 + max(len(co[i]), len(co[n]))) for i in graph.ids for n in co[i]}
    assert weights == pytest.approx(expected) and expected
    unused = sum(engine.state.totals["models_unused"] for engine in world.engines.values())
    assert unused == (2 if exchange == "broadcast" else 0)  # between the odd leaf and the center, both ways
    assert center == 0


def test_neighbor_whose_selection_is_lost_delays_rounds_only_to_the_deadline():
    graph = graph_of(3, "line", rounds=2, timeouts={"round_deadline_s": 20.0})

    def rule(sender, receiver, message):
        return LOST if sender == 2 and isinstance(message, Select) else 0.001

    world = World(graph, lambda peer, t: 0, rule=rule).run(until=400.0)
    assert done(world)
    assert {(s, r) for s, r, *_ in models(world)} >= {(0, 1), (1, 0)}
    assert not [m for m in models(world) if m[1] == 2]  # its selection is not known


def test_peers_that_sit_out_and_edges_that_are_down_need_no_selection():
    graph = graph_of(4, "complete", rounds=12, participation=0.6, dynamic_edges=0.4)
    world = World(graph, lambda peer, t: 0).run()
    assert done(world)
    for sender, receiver, t, _ in models(world):
        state = world.engines[sender].state
        assert (
            receiver in state.planner.plan(t).up
            and state.planner.trains_in(sender, t)
            and state.planner.trains_in(receiver, t)
        )
    assert not any(engine.state.refusals for engine in world.engines.values())


# ---- async -----------------------------------------------------------------------------------------------------------------


def late_selections(sender, receiver, message):
    return 0.15 if isinstance(message, Select) and message.round_index == 0 else 0.001


def test_async_late_selection_still_leads_to_an_exchange():
    """Training takes 0.1 s; the selections of round 0 arrive after 0.15 s, when the offers of the round are posted."""
    world = World(graph_of(pace="async", rounds=4), lambda peer, t: 0, rule=late_selections).run()
    assert done(world)
    late = [(who, f.targets[0].weight) for who, f in world.folds if f.header.round_index == 0]
    assert sorted(late) == [(0, 0.5), (1, 0.5)]  # the snapshot of round 0, one round old: weight rho ** 1
    assert not any(engine.state.refusals for engine in world.engines.values())


def test_async_late_selection_of_another_cluster_leads_to_no_exchange():
    world = World(graph_of(pace="async", rounds=4), lambda peer, t: peer, rule=late_selections).run()
    assert done(world) and not models(world) and not world.folds


def test_async_sends_no_model_twice():
    world = World(graph_of(pace="async", rounds=8), lambda peer, t: 0, rule=late_selections).run()
    sent = models(world)
    assert len(sent) == len(set(sent))


def test_async_arrival_for_a_cluster_left_rounds_ago_is_stale_or_unused():
    def select(peer, t):
        return 0 if t == 0 or peer == 1 else 1

    def rule(sender, receiver, message):  # models take 2.5 rounds
        return 0.25 if isinstance(message, ModelHeader) else 0.001

    world = World(graph_of(pace="async", rounds=8), select, rule=rule).run()
    assert done(world)
    folded = [(f.header.round_index, f.targets[0].weight) for who, f in world.folds if who == 0]
    assert not folded  # peer 0 left cluster 0 after round 0; its arrivals are older than one round
    engine = world.engines[0]
    assert engine.state.totals["stale_dropped"] + engine.state.totals["models_unused"] >= 1


def test_async_folds_into_a_center_selected_one_round_ago():
    def rule(sender, receiver, message):
        return 0.06 if isinstance(message, ModelHeader) else 0.001

    world = World(graph_of(pace="async", rounds=3), lambda peer, t: t % 2, rule=rule).run()
    first = [(f.header.round_index, f.targets) for who, f in world.folds if f.header.round_index == 0]
    assert first and all(t[0].slot == 0 and t[0].weight == 0.5 for _, t in first)


@pytest.mark.parametrize("lost", [Select, ModelHeader])
def test_async_completes_all_rounds_when_all_messages_of_a_kind_are_lost(lost):
    world = World(
        graph_of(3, "complete", pace="async"),
        lambda peer, t: 0,
        rule=lambda s, r, message: LOST if isinstance(message, lost) else 0.001,
    ).run(until=200.0)
    assert {engine.round_index for engine in world.engines.values()} == {6}
    assert not world.folds


def test_async_completes_with_a_third_of_all_messages_lost():
    count = 0

    def rule(sender, receiver, message):
        nonlocal count
        count += 1
        return LOST if count % 3 == 0 else 0.001

    world = World(graph_of(4, "complete", pace="async", rounds=12), lambda peer, t: t % 2, rule=rule).run(until=300.0)
    assert {engine.round_index for engine in world.engines.values()} == {12}
    assert world.folds and not any(engine.state.refusals for engine in world.engines.values())


# ---- bad input: refused with its code, nothing changed -----------------------------------------------------------------------


def running(**manifest):
    """Return a world whose peer 0 is in round 2 of lockstep and knows that neighbor 1 selected cluster 0."""
    world = World(graph_of(rounds=9, **manifest), lambda peer, t: 0)
    engine = world.engines[0]
    while engine.round_index < 2 or 2 not in engine.state.neighbors[1].selections:
        world.run(until=world.events[0][0])
    return world, engine


def state_of(engine):
    kept, neighbor = engine.state.checkpoint(), engine.state.neighbors[1]
    kept.pop("refusals")
    known = dict(neighbor.selections), set(neighbor.passed), neighbor.round_index
    return kept, known, dict(engine.state.arrivals.offered), engine.stage


SELECTION = Select(1, 1, 2, 0)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param(replace(SELECTION, round_index=8), RefusalCode.ROUND_TOO_FAR_AHEAD, id="far ahead"),
        pytest.param(replace(SELECTION, round_index=9), RefusalCode.ROUND_OUT_OF_RANGE, id="after the run"),
        pytest.param(Pass(1, 1, 2, 1), RefusalCode.ROUND_OUT_OF_RANGE, id="no such step"),
        pytest.param(
            replace(SELECTION, round_index=3, selected=2), RefusalCode.SLOT_OUT_OF_RANGE, id="no such cluster"
        ),
        pytest.param(
            replace(SELECTION, selected=1), RefusalCode.CONTRADICTS_SELECTION, id="another cluster than before"
        ),
        pytest.param(replace(SELECTION, selected=-1), RefusalCode.CONTRADICTS_SELECTION, id="none after one"),
        pytest.param(replace(SELECTION, round_index=3, selected=-1), RefusalCode.MALFORMED, id="none selected"),
        pytest.param(
            replace(SELECTION, round_index=3, numbers=Numbers.of([0.0] * 2)),
            RefusalCode.WRONG_SIZE,
            id="sketch of another size",
        ),
        pytest.param(replace(SELECTION, sender=5), RefusalCode.NOT_A_NEIGHBOR, id="no neighbor"),
    ],
)
def test_bad_selection_is_refused_and_changes_nothing(bad, code):
    world, engine = running()
    before = state_of(engine)
    rejection = engine.rejects_control(bad)
    assert rejection.code is code and rejection.reason
    assert state_of(engine) == before
    assert engine.rejects_control(SELECTION) is None  # the same selection again is no contradiction
    assert done(world.run())


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param(
            header(slot=1, round_index=2), RefusalCode.CONTRADICTS_SELECTION, id="another cluster than selected"
        ),
        pytest.param(header(total=2, round_index=2), RefusalCode.CONTRADICTS_SELECTION, id="more models than selected"),
        pytest.param(header(round_index=4), RefusalCode.NOT_SELECTED, id="no selection"),
        pytest.param(header(round_index=8), RefusalCode.ROUND_TOO_FAR_AHEAD, id="far ahead"),
        pytest.param(header(slot=2, round_index=2), RefusalCode.SLOT_OUT_OF_RANGE, id="no such cluster"),
    ],
)
def test_bad_model_is_refused_unread_and_counted(bad, code):
    world, engine = running()
    before = state_of(engine)
    effects = engine.step(ev.ArrivalOffered(Arrival(bad, stream=99_000)), world.now)
    (answer,) = [e for e in effects if isinstance(e, do.AnswerArrival) and e.arrival.stream == 99_000]
    assert answer.reply.code is code and answer.reply.reason
    assert dict(engine.state.refusals) == {code: 1} and state_of(engine) == before
    assert done(world.run())


def test_model_of_a_round_that_is_over_is_stale_and_not_refused():
    world, engine = running()
    effects = engine.step(ev.ArrivalOffered(Arrival(header(round_index=0, slot=1), stream=99_000)), world.now)
    assert [e.reply for e in effects if isinstance(e, do.AnswerArrival) and e.arrival.stream == 99_000] == [
        Outcome.STALE
    ]
    assert not engine.state.refusals


def test_pass_after_a_selection_ends_the_wait_for_its_model():
    """A peer that restarts in the round after may have sent its selection, and cannot send the model any more."""
    graph = graph_of(rounds=3)
    world = World(graph, lambda peer, t: 0, rule=lambda s, r, m: 30.0 if isinstance(m, ModelHeader) else 0.001)
    engine = world.engines[0]
    while engine.waits.undelivered() != [1] or 0 not in engine.state.neighbors[1].selections:
        world.run(until=world.events[0][0])
    world.send_control(1, 0, Pass(1, 1, 0, 0))
    world.run(until=world.now + 0.01)
    assert engine.waits.undelivered() == [] and not engine.state.refusals


def test_label_conflict_is_counted_and_not_waited_for():
    """The host screens a complete arrival; the engine learns of a refusal by `ArrivalLost`."""
    graph = graph_of(rounds=3)
    world = World(graph, lambda peer, t: 0)
    read = world.read

    def screened(peer, arrival):
        if peer == 1:
            return read(peer, arrival)
        world.post(peer, ev.ArrivalLost(arrival, Refusal(RefusalCode.LABEL_CONFLICT)))
        sender = world.senders.pop(arrival.stream)
        return world.post(sender, ev.SendAnswered(peer, Refusal(RefusalCode.LABEL_CONFLICT)))

    world.read = screened
    start = world.now
    world.run(until=start + 60)
    assert {engine.round_index for engine in world.engines.values()} == {3}
    assert world.engines[0].state.totals["models_rejected"] == 3
    assert world.engines[0].state.totals["models_folded"] == 0
    assert world.engines[1].state.totals["models_folded"] == 3

"""Requests for the models of chosen neighbors, by `partners` of DFedAvg: who is asked, what is sent, what is refused."""

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import ConfigError, RefusalCode
from peer.algorithms.dfedavg import DFedAvg
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.engine import Engine
from peer.core.messages import Numbers, Outcome, Pass, Select
from tests.simulation.options import Options, manifest
from tests.simulation.world import World
from tests.unit.algorithms.engines import World as Engines
from tests.unit.algorithms.messages import header


class Asking(Engines):
    """Engines of DFedAvg peers."""

    def __init__(self, graph):
        super().__init__(graph, lambda peer, round_index: 0, algorithm=DFedAvg)


def graph_of(peers=5, partners=2, kind="complete", **run):
    options = {"partners": partners} if partners else {}
    return make_graph(kind, peers, manifest=manifest(algorithm="dfedavg", clusters=1, options=options, **run))


def asked(graph, peer, round_index):
    return DFedAvg(graph.manifest, peer, graph).asks({}, round_index)


def test_partners_are_m_neighbors_and_change_from_round_to_round():
    graph = graph_of(8, 3)
    drawn = [asked(graph, 0, t) for t in range(20)]
    assert {len(each) for each in drawn} == {3} and set().union(*drawn) == set(range(1, 8))
    assert len(set(drawn)) > 10
    assert asked(graph_of(3, 9), 0, 0) == {1, 2}, "more partners than neighbors"


def test_partners_are_refused_where_the_round_names_the_neighbor():
    graph = graph_of(5, 2, edges="one")
    with pytest.raises(
        ConfigError, match=r"run\.options\.partners: expected 0 with run\.edges 'one'.*, got 2\. Set one"
    ):
        DFedAvg(graph.manifest, 0, graph)


def test_models_go_to_those_that_ask_and_to_no_other():
    graph = graph_of()
    world = Asking(graph).run()
    assert set(world.stopped.values()) == {"completed"} and len(world.stopped) == 5
    rounds = range(graph.manifest.rounds)
    wanted = {(n, i, t) for t in rounds for i in graph.ids for n in asked(graph, i, t)}
    assert {(f.header.sender, who, f.header.round_index) for who, f in world.folds} == wanted
    assert len(world.folds) == len(wanted)
    selects = {(s, r, m.round_index): m.declines for s, r, m in world.sent if isinstance(m, Select)}
    assert selects == {
        (i, n, t): n not in asked(graph, i, t) for t in rounds for i in graph.ids for n in graph.neighbors(i)
    }
    assert not [m for *_, m in world.sent if isinstance(m, Pass)], "the requests say it all"


def test_async_peers_answer_the_newest_request():
    graph = graph_of(pace="async", rounds=12)
    world = Asking(graph).run()
    assert set(world.stopped.values()) == {"completed"}
    unused = [answer for _, answer in world.answers if answer.reply is Outcome.UNUSED]
    assert len(world.folds) > 5 * 12 / 2
    assert len(world.folds) + len(unused) == len(world.answers)
    assert not any(engine.state.refusals for engine in world.engines.values())


def test_only_bytes_that_were_asked_for_are_sent():
    worlds = {m: World(Options(1, graph_of(partners=m))) for m in (0, 1, 3)}
    for world in worlds.values():
        world.run()
    sent = {
        m: sum(row["models_sent"] for rows in w.checker.history.values() for row in rows) for m, w in worlds.items()
    }
    assert sent == {0: 5 * 4 * 5, 1: 5 * 1 * 5, 3: 5 * 3 * 5}
    assert not np.array_equal(worlds[0].checker.final[0][0], worlds[1].checker.final[0][0])


def test_requests_of_a_round_wait_for_the_checkpoint_of_the_round_before():
    """A request that declines completes the neighbor's round, which a peer that restarts must not repeat alone."""
    world, written = Asking(graph_of()), []
    post = world.post

    def hold(peer, event, after_s=0.001):
        kept = peer == 0 and isinstance(event, ev.CheckpointWritten)
        written.append(event) if kept else post(peer, event, after_s)

    def requested():
        return {m.round_index for sender, _, m in world.sent if sender == 0 and isinstance(m, Select)}

    world.post = hold
    world.run(until=102.0)
    assert world.engines[0].round_index == 1 and requested() == {0}
    post(0, written.pop())
    world.run(until=104.0)
    assert world.engines[0].round_index == 2 and requested() == {0, 1}


def engine_of(graph):
    """Return the engine of peer 0 in the exchange of round 0."""
    world = Asking(graph)
    world.rule = lambda sender, receiver, message: None if receiver == 0 or sender == 0 else 0.001
    world.run(until=105.0)
    engine = world.engines[0]
    assert engine.round_index == 0
    return engine, world.now


def test_a_model_that_was_not_asked_for_is_not_read():
    graph = graph_of(5, 2)
    engine, now = engine_of(graph)
    other = next(n for n in graph.neighbors(0) if n not in asked(graph, 0, 0))
    effects = engine.step(ev.ArrivalOffered(Arrival(header(sender=other, round_index=0), stream=1)), now)
    assert [e.reply for e in effects if isinstance(e, do.AnswerArrival)] == [Outcome.UNUSED]
    assert engine.state.totals["models_unused"] == 1


@pytest.mark.parametrize(
    ("partners", "changes", "code"),
    [
        (2, {}, None),
        (2, {"declines": True}, None),
        (2, {"selected": 0}, RefusalCode.MALFORMED),
        (2, {"numbers": Numbers.of(1.0)}, RefusalCode.MALFORMED),
        (0, {}, RefusalCode.MALFORMED),
        (0, {"declines": True}, RefusalCode.MALFORMED),
    ],
)
def test_requests_are_checked(partners, changes, code):
    engine: Engine
    engine, _ = engine_of(graph_of(5, partners))
    rejection = engine.rejects_control(Select(1, 1, 0, **changes))
    assert (rejection and rejection.code) == code


def test_a_second_request_must_not_contradict_the_first():
    engine, now = engine_of(graph_of())
    engine.step(ev.SelectReceived(Select(1, 1, 0, declines=True)), now)
    assert engine.rejects_control(Select(1, 1, 0, declines=True)) is None
    assert engine.rejects_control(Select(1, 1, 0)).code is RefusalCode.CONTRADICTS_SELECTION

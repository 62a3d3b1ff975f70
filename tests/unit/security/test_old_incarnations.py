"""Messages of old incarnations are refused for good, also after a restart of the peer that knows the newer one."""

from dataclasses import replace

import pytest

from coordinator_free_bootstrap import Compared, check_hello, make_graph
from coordinator_free_bootstrap.errors import RefusalCode
from coordinator_free_bootstrap.identity import INCARNATION_MAX
from peer.algorithms.registry import algorithm_named
from peer.core import effects as do
from peer.core import events as ev
from peer.core.decisions import AlgorithmState
from peer.core.engine import Engine, make_hello
from peer.core.liveness import NeighborState
from peer.core.messages import Heartbeat, Hello, Phase
from peer.core.state import State

GRAPH = make_graph("ring", 3)
SAME = Compared(wire_version=2, manifest_digest="m", graph_digest="g", schema_digest="s", manifest="{}")


def engine_of(peer_id: int, incarnation: int, resume=None) -> Engine:
    algorithm = algorithm_named("dfca")(GRAPH.manifest, peer_id, GRAPH)
    return Engine(
        State(
            peer_id, GRAPH, algorithm, incarnation, model_bytes=64, algorithm_state=AlgorithmState((0,)), resume=resume
        )
    )


def hello_of(incarnation: int) -> Hello:
    return make_hello(engine_of(1, incarnation), SAME, 0)


def test_restarted_peer_refuses_earlier_incarnations_of_its_neighbors():
    first = engine_of(0, 1)
    first.step(ev.Tick(), 0.0)
    first.step(ev.HandshakeDone(hello_of(50), answered=False), 1.0)
    assert first.rejects_sender(1, 49).code is RefusalCode.OLD_INCARNATION and first.rejects_sender(1, 50) is None
    second = engine_of(0, 2, resume=first.state.checkpoint())
    assert second.rejects_sender(1, 49).code is RefusalCode.OLD_INCARNATION
    assert (
        second.rejects_sender(1, 50).code is RefusalCode.NO_HANDSHAKE
    )  # the same incarnation continues after a handshake
    second.step(ev.Tick(), 0.0)
    before = second.state.checkpoint()
    second.step(ev.HandshakeDone(hello_of(49), answered=False), 1.0)
    assert not second.state.neighbors[1].connected and second.state.checkpoint() == before
    mine = make_hello(second, SAME, 1)
    assert mine.seen_incarnation == 50  # a peer without its disk must take a higher one
    found = check_hello(mine, hello_of(49), neighbors=(1, 2), last_incarnation=50)
    assert found.code is RefusalCode.OLD_INCARNATION and "Use 51 or higher" in found.reason
    second.step(ev.HandshakeDone(hello_of(50), answered=False), 2.0)
    assert second.rejects_sender(1, 50) is None


@pytest.mark.parametrize("state", [NeighborState.ALIVE, NeighborState.SUSPECT, NeighborState.DEAD, NeighborState.LEFT])
def test_hello_of_an_old_incarnation_changes_no_neighbor_state(state):
    engine = engine_of(0, 1)
    suspicion_s, now = GRAPH.manifest.timeouts.suspicion_s, 1.0
    engine.step(ev.Tick(), 0.0)
    engine.step(ev.HandshakeDone(hello_of(50), answered=True), 1.0)
    if state is NeighborState.LEFT:
        engine.step(ev.HeartbeatReceived(Heartbeat(1, 50, 0, Phase.LEAVING)), 1.0)
    elif state is not NeighborState.ALIVE:
        engine.step(ev.Tick(), now := 1.0 + suspicion_s / 2)
    if state is NeighborState.DEAD:
        engine.step(ev.Tick(), now := 1.0 + suspicion_s)
    neighbor = engine.state.neighbors[1]
    assert neighbor.liveness.state is state
    before = (neighbor.incarnation, neighbor.liveness.heard_at, neighbor.round_index)
    effects = engine.step(ev.HandshakeDone(replace(hello_of(49), round_index=3), answered=True), now)
    assert (neighbor.incarnation, neighbor.liveness.heard_at, neighbor.round_index) == before
    assert not [effect for effect in effects if isinstance(effect, do.CancelSend | do.AnswerArrival)]


@pytest.mark.parametrize(
    ("incarnation", "fits"), [(1, True), (INCARNATION_MAX, True), (0, False), (INCARNATION_MAX + 1, False)]
)
def test_incarnation_is_accepted_at_its_limits_and_refused_beyond_them(incarnation, fits):
    mine = make_hello(engine_of(0, 1), SAME, 1)
    theirs = replace(hello_of(1), incarnation=incarnation)
    found = check_hello(mine, theirs, neighbors=(1, 2))
    assert (found is None) is fits and (fits or found.code is RefusalCode.MALFORMED)

"""A neighbor that leaves before the end is waited for and missed as one that dies; one that has finished is not."""

import pytest

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.engine import Engine
from peer.core.liveness import NeighborState
from peer.core.messages import Heartbeat, Phase
from peer.core.stages import Stage
from peer.core.state import State
from tests.unit.algorithms.messages import hello_of
from tests.unit.core.test_pace import SUSPICION_S, Driven, of


def leave(driven, n, round_index=0):
    return driven.step(ev.HeartbeatReceived(Heartbeat(n, 1, round_index, Phase.LEAVING)))


def rounds_of_1_s(driven, count=3):
    """Play rounds of one second with all neighbors; the first one is not measured."""
    for n in driven.state.neighbors:
        driven.hello(n)
    for _ in range(count):
        driven.round_of(1.0, *driven.state.neighbors)


def seconds_of_rounds_alone(driven, count=2):
    """Return how long rounds last in which no neighbor says anything."""
    durations = []
    for _ in range(count):
        began = driven.now
        driven.round_by_timers()
        durations.append(driven.now - began)
    return durations


def test_round_waits_for_a_neighbor_that_left_once_and_the_suspicion_time():
    driven = Driven("lockstep", peers=2)
    rounds_of_1_s(driven)
    driven.work("assign"), driven.work("train")
    leave(driven, 1, 3)
    assert driven.engine.waits.waiting_for(driven.now) == [1] and not driven.state.neighbors[1].is_reachable
    driven.step(ev.Tick(), after=SUSPICION_S - 0.1)
    assert driven.engine.stage is Stage.EXCHANGING
    driven.step(ev.Tick(), after=0.1)
    assert driven.engine.stage is Stage.CLOSING
    driven.work("close"), driven.step(ev.CheckpointWritten(4))
    assert seconds_of_rounds_alone(driven) == [pytest.approx(1.0)] * 2, "no further wait, at the previous round rate"


def test_neighbor_that_is_back_in_time_is_waited_for_until_it_has_delivered():
    driven = Driven("lockstep", peers=2)
    rounds_of_1_s(driven)
    driven.work("assign"), driven.work("train")
    leave(driven, 1, 3)
    driven.now += SUSPICION_S / 2
    driven.hello(1, 3, incarnation=2)
    driven.step(ev.HeartbeatReceived(Heartbeat(1, 2, 3, Phase.RUNNING)), after=SUSPICION_S)
    assert driven.state.neighbors[1].liveness.state is NeighborState.ALIVE and driven.engine.waits.waiting_for(
        driven.now
    ) == [1]


def test_goodbyes_that_are_repeated_do_not_extend_the_wait():
    driven = Driven("lockstep", peers=2)
    driven.exchange()
    leave(driven, 1)
    driven.now += SUSPICION_S - 0.1
    leave(driven, 1)
    driven.step(ev.Tick(), after=0.1)
    assert driven.engine.stage is Stage.CLOSING


def test_neighbor_that_was_dead_costs_no_second_wait_when_it_says_goodbye():
    driven = Driven("lockstep", peers=2)
    driven.hello(1)
    driven.round_by_timers()
    assert driven.state.neighbors[1].liveness.state is NeighborState.DEAD
    leave(driven, 1)
    assert driven.state.neighbors[1].liveness.state is NeighborState.LEFT
    driven.work("assign"), driven.work("train")
    assert driven.engine.waits.waiting_for(driven.now) == []


def test_neighbor_that_left_after_its_last_round_is_neither_waited_for_nor_missed():
    driven = Driven("lockstep", peers=2)
    rounds_of_1_s(driven)
    driven.work("assign"), driven.work("train")
    leave(driven, 1, driven.state.manifest.rounds)
    assert driven.engine.stage is Stage.CLOSING
    driven.work("close"), driven.step(ev.CheckpointWritten(4))
    assert seconds_of_rounds_alone(driven) == [0.0, 0.0]
    assert driven.state.neighbors[1].hello_at is None


def test_async_pace_waits_for_no_neighbor_that_left():
    driven = Driven("async", peers=2)
    driven.exchange()
    leave(driven, 1)
    assert driven.engine.stage is not Stage.EXCHANGING and driven.engine.waits.waiting_for(driven.now) == []


def test_neighbors_that_were_never_met_are_missed_once_another_one_is_lost():
    driven = Driven("lockstep", peers=4, start={"wait_for": 0.6, "deadline_s": 5.0})
    driven.hello(1), driven.hello(2)
    for _ in range(3):
        driven.round_of(1.0, 1, 2)
    assert not driven.pace.partition.keeps_rate(driven.now), "nothing is lost yet"
    driven.work("assign"), driven.work("train"), driven.take_all(1, 2)
    leave(driven, 1, 3), driven.passes(2, 3)
    driven.heartbeat(2, 3, after=SUSPICION_S)
    driven.work("close"), driven.step(ev.CheckpointWritten(4))
    began = driven.now
    driven.round_by_timers(2)
    assert driven.now - began == pytest.approx(1.0), "1 left, 3 was never met"


def test_peer_that_has_not_met_half_of_its_neighbors_measures_its_round_rate():
    driven = Driven("lockstep", peers=3, start={"wait_for": 0.5, "deadline_s": 5.0})
    driven.hello(1)
    for _ in range(3):
        driven.round_of(1.0, 1)
    driven.work("assign"), driven.work("train"), driven.take_all(1)
    leave(driven, 1, 3)
    driven.step(ev.Tick(), after=SUSPICION_S)
    driven.work("close"), driven.step(ev.CheckpointWritten(4))
    assert seconds_of_rounds_alone(driven) == [pytest.approx(1.0)] * 2


def test_round_rate_outlasts_a_restart():
    driven = Driven("lockstep", peers=2)
    rounds_of_1_s(driven)
    saved = driven.state.checkpoint()
    assert saved["round_seconds"] == [pytest.approx(1.0)] * 2
    driven.engine = Engine(State(0, driven.graph, driven.state.algorithm, 2, model_bytes=24, resume=saved))
    driven.state, driven.pace = driven.engine.state, driven.engine.pace
    driven.step(ev.Tick())
    driven.step(ev.Tick(), after=600.0)
    assert seconds_of_rounds_alone(driven) == [pytest.approx(1.0)] * 2, "its neighbor is missed, though not met yet"


def test_checkpoint_of_an_earlier_release_has_no_round_rate():
    driven = Driven("lockstep", peers=2)
    saved = driven.state.checkpoint()
    del saved["round_seconds"]
    assert not State(0, driven.graph, driven.state.algorithm, 2, resume=saved).round_seconds


def test_neighbor_that_left_gets_hellos_as_it_may_be_unable_to_call_us():
    driven = Driven("lockstep", peers=2)
    driven.exchange()
    assert not of(leave(driven, 1), do.SendHello), "not to the process that is just leaving"
    assert of(driven.step(ev.Tick(), after=1.0), do.SendHello)
    effects = driven.step(ev.HandshakeFailed(1, "connection refused"))
    assert of(driven.step(ev.Tick(), after=SUSPICION_S), do.SendHello) and not of(effects, do.Log)


def test_neighbor_that_is_just_leaving_refuses_a_hello_without_an_error():
    driven = Driven("lockstep", peers=2)
    driven.exchange()
    leave(driven, 1)
    effects = driven.step(ev.HandshakeFailed(1, Refusal(RefusalCode.SHUTTING_DOWN, "peer 1 is leaving")))
    assert not [line for line in of(effects, do.Log) if line.level == "error"]
    assert not driven.state.neighbors[1].refusal and driven.state.neighbors[1].hello_at is not None


def test_start_waits_for_a_neighbor_that_left_again_as_long_as_a_restart_may_take():
    driven = Driven("lockstep", peers=3, start={"wait_for": "all", "deadline_s": 300.0})
    driven.hello(1)
    leave(driven, 1)
    driven.hello(2)
    assert driven.engine.stage is Stage.JOINING
    for _ in range(6):
        driven.step(ev.Tick(), after=SUSPICION_S - 0.1)
        driven.heartbeat(2)
    assert driven.engine.stage is Stage.JOINING
    driven.step(ev.Tick(), after=0.6)
    assert driven.engine.stage is Stage.ASSIGNING


def test_start_does_not_wait_for_a_neighbor_that_has_finished_and_left():
    driven = Driven("lockstep", peers=3, start={"wait_for": "all", "deadline_s": 300.0})
    driven.hello(1, 40)
    leave(driven, 1, 40)
    driven.hello(2)
    assert driven.engine.stage is not Stage.JOINING


@pytest.mark.parametrize(("finished", "stays"), [(False, True), (True, False)])
def test_finished_peer_stays_for_a_neighbor_that_left_before_its_end(finished, stays):
    driven = Driven("lockstep", peers=2, rounds=1, start={"wait_for": "all", "deadline_s": 300.0})
    driven.exchange()
    driven.take_all(1), driven.passes(1)
    leave(driven, 1, 1 if finished else 0)
    driven.work("close"), driven.step(ev.CheckpointWritten(1))
    driven.work("final")
    assert (driven.engine.stage is Stage.LINGERING) is stays
    if stays:
        hello = hello_of(1, 2)
        driven.step(ev.HandshakeDone(hello, answered=True), after=6 * SUSPICION_S - 0.1)
        assert driven.state.neighbors[1].outbox.pending() or driven.state.neighbors[1].outbox.in_flight
    driven.step(ev.Tick(), after=600.0)
    assert driven.engine.stage is Stage.STOPPED

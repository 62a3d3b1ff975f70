"""The engine stops between two rounds for another graph file, and ends where no neighbor works with it any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.messages import Phase
from peer.core.stages import Stage
from tests.unit.core.test_engine import Driven, of

REMOVED = Refusal(RefusalCode.REMOVED, "gone")
BEHIND = Refusal(RefusalCode.REVISION_BEHIND, "too old")
AHEAD = Refusal(RefusalCode.REVISION_AHEAD, "too new")


def train_and_exchange(driven):
    """Play round 0 up to its close."""
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.deliver(n)
        driven.answered(n)
    assert driven.engine.stage is Stage.CLOSING


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("asked_while", [Stage.ASSIGNING, Stage.TRAINING, Stage.EXCHANGING, Stage.CLOSING])
def test_a_change_waits_for_the_end_of_the_round_and_loses_none_of_it(asked_while, every):
    driven = Driven(checkpoint_rounds=every)
    effects = []

    def play(effect):
        effects.extend(effect)
        if driven.engine.stage is asked_while:
            effects.extend(driven.step(ev.ChangeRequested()))

    for n in (1, 2):
        play(driven.hello(n))
    play(driven.work("assign")), play(driven.work("train"))
    for n in (1, 2):
        play(driven.deliver(n)), play(driven.answered(n))
    assert driven.engine.stage is Stage.CLOSING and not of(effects, do.Stop), "the round goes on"
    effects = driven.work("close")
    assert driven.engine.stage is Stage.LEAVING and driven.engine.state.totals["models_folded"] == 2
    assert [effect.round_index for effect in of(effects, do.WriteCheckpoint)] == [1]
    effects = driven.step(ev.CheckpointWritten(1))
    assert of(effects, do.Stop) == [do.Stop("changed")]
    assert {effect.heartbeat.phase for effect in of(effects, do.SendHeartbeat)} == {Phase.LEAVING}


def test_a_change_with_a_round_to_come_waits_for_it():
    driven = Driven()
    driven.step(ev.ChangeRequested(from_round=2))
    assert driven.engine.stage is Stage.JOINING
    train_and_exchange(driven)
    driven.work("close"), driven.step(ev.CheckpointWritten(1))
    assert driven.engine.stage is Stage.ASSIGNING and driven.engine.round_index == 1
    driven.work("assign"), driven.work("train")
    for n in (1, 2):
        driven.deliver(n, round_index=1), driven.answered(n)
    driven.work("close")
    assert of(driven.step(ev.CheckpointWritten(2)), do.Stop) == [do.Stop("changed")]


def test_a_peer_that_still_waits_for_neighbors_changes_at_once():
    driven = Driven()
    driven.hello(1)
    assert of(driven.step(ev.ChangeRequested()), do.Stop) == [do.Stop("changed")]


def test_in_the_last_round_the_final_work_is_done_first_and_the_change_follows():
    driven = Driven(rounds=1)
    train_and_exchange(driven)
    driven.step(ev.ChangeRequested())
    driven.work("close"), driven.step(ev.CheckpointWritten(1))
    assert driven.engine.stage is Stage.FINISHING, "the file may be one in which nothing but an address differs"
    assert of(driven.work("final"), do.Stop) == [do.Stop("changed")]


def test_a_request_to_leave_wins_over_a_change():
    driven = Driven()
    train_and_exchange(driven)
    driven.step(ev.ChangeRequested()), driven.step(ev.LeaveRequested())
    driven.work("close")
    assert of(driven.step(ev.CheckpointWritten(1)), do.Stop) == [do.Stop("left")]


@pytest.mark.parametrize(("refusal", "status"), [(REMOVED, "removed"), (BEHIND, "behind")])
def test_at_the_start_all_neighbors_must_have_spoken(refusal, status):
    driven = Driven()
    driven.step(ev.HandshakeFailed(1, refusal))
    assert driven.engine.stage is Stage.JOINING, "peer 2 may still work with this peer"
    effects = driven.step(ev.HandshakeFailed(2, refusal))
    assert of(effects, do.Stop) == [do.Stop(status)]
    assert [line.message for line in of(effects, do.Log) if line.message.startswith("peer 1: ")] == [
        f"peer 1: {refusal}; peer 2: {refusal}"
    ]


def test_one_neighbor_alone_excludes_nobody_while_another_is_live():
    driven = Driven()
    driven.begin()
    driven.heartbeat(1, 0, Phase.LEAVING)
    for _ in range(5):
        driven.step(ev.HandshakeFailed(1, REMOVED), after=1.0)
        driven.heartbeat(2, 0)
        driven.step(ev.HeartbeatAnswered(2))
    assert driven.engine.stage is Stage.TRAINING
    driven.heartbeat(2, 0, Phase.LEAVING)
    driven.step(ev.HandshakeFailed(1, REMOVED), after=1.0)
    assert driven.engine.stage is Stage.TRAINING, "peer 2 may be back soon"
    effects = driven.step(ev.HandshakeFailed(1, REMOVED), after=6 * driven.graph.manifest.timeouts.suspicion_s)
    assert of(effects, do.Stop) == [do.Stop("removed")]


def new_in_a_later_file(from_round=0, wait_for="all", **run):
    driven = Driven(start={"wait_for": wait_for, "deadline_s": 600.0}, **run)
    driven.engine.state.graph = replace(driven.graph, from_round=from_round, continues=("0" * 64,))
    return driven


def test_a_neighbor_without_the_new_file_is_neither_waited_for_nor_a_reason_to_end():
    driven = new_in_a_later_file()
    driven.hello(1, round_index=1)
    effects = driven.step(ev.HandshakeFailed(2, AHEAD, round_index=3))
    assert [line.level for line in of(effects, do.Log) if line.kind == "revision"] == ["info"]
    driven.step(ev.HelloRefused(2, AHEAD))
    assert driven.engine.stage is Stage.ASSIGNING, "its operator may take hours"
    driven.hello(2)
    assert not driven.engine.state.neighbors[2].needs_file


def test_a_neighbor_that_changes_with_the_same_round_is_waited_for_until_it_is_past_it():
    driven = Driven(start={"wait_for": "all", "deadline_s": 600.0})
    state = driven.engine.state
    state.graph = replace(state.graph, from_round=4)
    state.took_part = True
    state.enter_round(4)
    driven.step(ev.HandshakeFailed(2, AHEAD, round_index=3))
    driven.hello(1, round_index=4)
    for _ in range(99):
        driven.heartbeat(1, 4)
        driven.step(ev.Tick(), after=1.0)
    assert driven.engine.stage is Stage.JOINING
    driven.step(ev.HandshakeFailed(2, AHEAD, round_index=4))
    assert driven.engine.stage is Stage.ASSIGNING, "it did not get the file"


def test_a_peer_that_starts_with_the_file_before_the_round_of_the_change_waits_for_nobody():
    """Its neighbors wait for it: they would wait for each other."""
    driven = Driven(start={"wait_for": "all", "deadline_s": 600.0})
    driven.engine.state.graph = replace(driven.engine.state.graph, from_round=4)
    driven.step(ev.HandshakeFailed(2, AHEAD, round_index=0))
    driven.hello(1)
    assert driven.engine.stage is Stage.ASSIGNING


@pytest.mark.parametrize("code", [RefusalCode.NOT_A_NEIGHBOR, RefusalCode.IDENTITY_MISMATCH])
@pytest.mark.parametrize("continues", [(), ("0" * 64,)])
def test_a_neighbor_that_knows_no_such_edge_may_lack_a_later_graph_file(continues, code):
    """With an authority it says so; as a refusal for good it would end a peer whose neighbors all have the file before."""
    driven = Driven()
    state = driven.engine.state
    state.graph = replace(state.graph, continues=continues)
    effects = driven.step(ev.HandshakeFailed(1, Refusal(code, "refused")))
    lacks = bool(continues) and code is RefusalCode.NOT_A_NEIGHBOR
    assert (state.neighbors[1].refusal is None) is lacks
    assert [line.message for line in of(effects, do.Log) if line.kind == "revision"] == (
        [f"no exchange with peer 1 until it has the graph file of this peer: {code}: refused"] if lacks else []
    )
    driven.step(ev.HandshakeFailed(2, Refusal(code, "refused")))
    assert (driven.engine.stage is Stage.JOINING) is lacks


@pytest.mark.parametrize("from_round", [0, 4])
def test_a_new_peer_whose_neighbors_all_lack_the_file_waits_for_the_first_that_gets_it(from_round):
    """Alone it would be in a later round than all of them soon, with a model of its own data."""
    driven = new_in_a_later_file(from_round)
    for _ in range(9):
        for n in (1, 2):
            driven.step(ev.HandshakeFailed(n, AHEAD, round_index=3), after=1.0)
    assert driven.engine.stage is Stage.JOINING
    assert of(driven.hello(1, round_index=5), do.Pull) == [do.Pull(1)]
    effects = driven.step(ev.PullDone(1, complete=True, round_index=5))
    assert [work.kind for work in of(effects, do.Work)] == ["adopt"], "peer 2 may get the file hours later"


@pytest.mark.parametrize("wait_for", ["all", "never_alone", 0.5])
@pytest.mark.parametrize("pace", ["lockstep", "async"])
def test_new_peers_do_not_begin_with_each_other_alone_where_a_neighbor_is_to_get_the_file(pace, wait_for):
    driven = new_in_a_later_file(pace=pace, wait_for=wait_for)
    driven.step(ev.HandshakeFailed(2, AHEAD, round_index=3))
    driven.hello(1, phase=Phase.STARTING)
    for _ in range(9):
        driven.heartbeat(1, 0, Phase.STARTING, after=1.0)
    assert driven.engine.stage is Stage.JOINING
    assert of(driven.heartbeat(1, 5), do.Pull) == [do.Pull(1)], "another neighbor of it had the file"


@pytest.mark.parametrize("wait_for", ["all", "everyone", "never_alone"])
def test_a_new_peer_in_a_run_that_has_begun_waits_as_a_restarted_one_for_a_neighbor_that_does_not_answer(wait_for):
    """Over TLS a neighbor without the file does not say so; its operator may take hours."""
    driven = new_in_a_later_file(wait_for=wait_for)
    suspicion_s = driven.graph.manifest.timeouts.suspicion_s
    driven.step(ev.HandshakeFailed(2, "TLS: it has the file before, and no such neighbor"))
    driven.hello(1, round_index=9)
    assert driven.engine.stage is Stage.JOINING, "peer 2 may start with this one"
    driven.heartbeat(1, 9, after=suspicion_s)
    assert driven.engine.stage is Stage.CATCHING_UP


def test_a_peer_whose_hello_meets_a_later_file_is_behind():
    driven = Driven(peers=2)
    assert of(driven.step(ev.HelloRefused(1, BEHIND)), do.Stop) == [do.Stop("behind")]


def resumed_in(round_index, from_round=0):
    driven = Driven(start={"wait_for": "all", "deadline_s": 600.0})
    state = driven.engine.state
    state.graph, state.took_part = replace(state.graph, from_round=from_round), True
    state.enter_round(round_index)
    return driven


def test_over_a_new_edge_a_resumed_peer_waits_for_one_answer_only():
    driven = resumed_in(4)
    driven.hello(1, round_index=4)
    assert driven.engine.stage is Stage.JOINING, "the first hello to peer 2 is on its way"
    driven.step(ev.HandshakeFailed(2, "TLS: it has the file before, and no such neighbor"))
    assert driven.engine.stage is Stage.ASSIGNING


@pytest.mark.parametrize("met", [False, True])
def test_a_restarted_peer_waits_for_a_neighbor_that_it_has_met(met):
    driven = resumed_in(4)
    driven.engine.state.neighbors[2].incarnation = int(met)
    driven.hello(1, round_index=4)
    driven.step(ev.HandshakeFailed(2, "it starts"))
    assert driven.engine.stage is (Stage.JOINING if met else Stage.ASSIGNING)


@pytest.mark.parametrize("stage", [Stage.JOINING, Stage.ASSIGNING])
def test_in_the_round_of_the_change_new_neighbors_wait_for_each_other(stage):
    driven = resumed_in(2 if stage is Stage.JOINING else 3, from_round=2)
    driven.hello(1, round_index=2)
    driven.step(ev.HandshakeFailed(2, "it changes"))
    assert driven.engine.stage is stage


def test_a_neighbor_that_has_finished_by_its_own_file_is_not_waited_for():
    driven = Driven()
    train_and_exchange(driven)
    driven.work("close"), driven.step(ev.CheckpointWritten(1))
    driven.heartbeat(2, 1, Phase.FINISHED)
    driven.work("assign"), driven.work("train")
    driven.deliver(1, round_index=1), driven.answered(1)
    assert driven.engine.stage is Stage.CLOSING
    assert driven.engine.state.has_finished(driven.engine.state.neighbors[2])


def test_the_last_model_of_a_neighbor_that_has_finished_is_waited_for():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.deliver(1), driven.answered(1)
    driven.heartbeat(2, 1, Phase.FINISHED)
    assert driven.engine.stage is Stage.EXCHANGING
    driven.deliver(2), driven.answered(2)
    assert driven.engine.stage is Stage.CLOSING

"""Rounds without any neighbor are counted and logged; mostly alone is an outcome; wait_for = "never_alone" waits instead."""

import pytest

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.messages import Pass
from peer.core.stages import Stage
from tests.unit.core.test_neighbor_leaves import leave, rounds_of_1_s
from tests.unit.core.test_pace import SUSPICION_S, Driven, header, of

NEVER_ALONE = {"wait_for": "never_alone", "deadline_s": 60.0}


def alone_from_round(rounds_together, rounds, pace="lockstep", **run):
    """Play a whole run in which the only neighbor leaves for good; return its effects."""
    driven = Driven(pace, peers=2, rounds=rounds, **run)
    driven.hello(1)
    driven.state.totals["models_folded"] += 1  # the rounds together bring passes
    effects = []
    for _ in range(rounds_together):
        effects += driven.round_of(1.0, 1)
    effects += leave(driven, 1, rounds_together)
    while driven.engine.stage is not Stage.FINISHING:
        t = driven.engine.round_index
        effects += driven.work("assign") + driven.work("train")
        effects += driven.step(ev.Tick(), after=SUSPICION_S)
        effects += driven.work("close") + driven.step(ev.CheckpointWritten(t + 1))
    return effects + driven.work("final") + driven.step(ev.Tick(), after=600.0)


@pytest.mark.parametrize("pace", ["lockstep", "async"])
def test_rounds_alone_are_counted_in_each_record_and_logged_once(pace):
    driven = Driven(pace, peers=2, rounds=8)
    driven.hello(1)
    leave(driven, 1)
    effects = []
    for t in range(3):
        effects += driven.work("assign") + driven.work("train")
        effects += driven.step(ev.Tick(), after=SUSPICION_S)
        effects += driven.work("close") + driven.step(ev.CheckpointWritten(t + 1))
    driven.hello(1, 3, incarnation=2)
    effects += driven.round_of(1.0) if pace == "async" else driven.work("assign") + driven.work("train")
    if pace == "lockstep":
        driven.take_all(1)
        driven.step(ev.PassReceived(Pass(1, 2, 3, 0)))
        effects += driven.work("close")
    records = [record.fields["rounds_alone"] for record in of(effects, do.Record) if record.kind == "round"]
    assert records == [1, 1, 1, 0] and driven.state.totals["rounds_alone"] == 3
    lines = [line for line in of(effects, do.Log) if "alone" in line.message]
    assert [line.level for line in lines] == ["warning", "info"]
    assert lines[0].message == (
        "round 0 was without any neighbor: training alone (peer 1 left) (docs/trouble.md#training-alone)"
    )
    assert lines[1].message == "round 3 was with neighbors again, after 3 rounds alone"


@pytest.mark.parametrize(("together", "status"), [(2, "alone"), (3, "completed"), (5, "completed")])
def test_peer_that_was_alone_in_most_rounds_ends_as_alone_and_says_so(together, status):
    effects = alone_from_round(together, 6)
    assert of(effects, do.Record)[-1].kind == "end"
    assert of(effects, do.Stop) == [do.Stop(status)]
    said = [line.message for line in of(effects, do.Log) if line.level == "error"]
    alone = "trained alone: 4 of 6 rounds were without any neighbor (peer 1 left) (docs/trouble.md#training-alone)"
    assert said == ([alone] if together == 2 else [])


@pytest.mark.parametrize("together", [2, 3, 5])
def test_a_neighbor_that_was_hardly_there_is_named_at_the_end(together):
    """Its record names it in the rounds that it missed, and a checkpoint keeps the count."""
    effects = alone_from_round(together, 6)
    missing = [record.fields["missing"] for record in of(effects, do.Record) if record.kind == "round"]
    assert missing == [[]] * together + [[1]] * (6 - together)
    said = [line.message for line in of(effects, do.Log) if line.level == "warning" and "took part" in line.message]
    assert said == ([f"peer 1 took part in {together} of 6 rounds of this peer"] if together < 5 else [])
    (saved,) = [write for write in of(effects, do.WriteCheckpoint) if write.round_index == 6]
    driven = Driven("lockstep", peers=2, rounds=6)
    driven.state._restore(saved.state)
    assert driven.state.hardly_there() == [line.removesuffix(" of this peer") for line in said]


def test_in_async_pace_no_round_waits_and_nothing_is_said_of_neighbors():
    assert not any("took part" in line.message for line in of(alone_from_round(2, 6, "async"), do.Log))


def verdict(driven, **totals):
    driven.state.totals.add(totals, totals)
    return driven.engine.isolation.verdict()


@pytest.mark.parametrize(
    ("totals", "reason"),
    [
        ({"models_folded": 9}, ""),
        ({"models_folded": 9, "rounds_alone": 20}, ""),
        ({"models_folded": 9, "rounds_alone": 21}, "21 of 40 rounds were without any neighbor"),
        ({}, "no model of a neighbor was folded in 40 rounds (0 were rejected)"),
        (
            {"models_rejected": 3, "models_unused": 1},
            "no model of a neighbor was folded in 40 rounds (3 were rejected)",
        ),
        ({"models_unused": 80}, ""),  # of other clusters
        ({"selections_sent": 80}, ""),  # the algorithm asks, and asked none
        ({"passes_sent": 80}, ""),  # peers exchange numbers only
        ({"passes_sent": 8, "models_sent": 72}, "no model of a neighbor was folded in 40 rounds (0 were rejected)"),
        ({"models_adopted": 2}, ""),  # it came late and took over what the others had learned
    ],
)
def test_verdict_on_a_run_by_what_was_counted(totals, reason):
    assert verdict(Driven("lockstep"), **totals).startswith(reason)
    assert bool(verdict(Driven("lockstep"), **totals)) is bool(reason)


@pytest.mark.parametrize("run", [{"participation": 1e-9}, {"dynamic_edges": 1 - 1e-9}])
def test_peer_for_which_no_round_brings_a_model_is_not_alone(run):
    assert verdict(Driven("lockstep", peers=2, **run), rounds_alone=40) == ""


def test_graph_of_one_peer_is_not_alone():
    driven = Driven("lockstep", peers=2)
    driven.state.neighbors.clear()
    assert verdict(driven) == ""


@pytest.mark.parametrize("pace", ["lockstep", "async"])
def test_never_alone_holds_the_round_until_a_neighbor_is_back(pace):
    driven = Driven(pace, peers=2, start=NEVER_ALONE)
    driven.exchange() if pace == "lockstep" else driven.hello(1)
    effects = leave(driven, 1)
    if pace == "async":
        effects += driven.work("assign") + driven.work("train")
    effects += driven.step(ev.Tick(), after=SUSPICION_S) + driven.step(ev.Tick(), after=50.0)
    assert driven.engine.stage is Stage.EXCHANGING and driven.engine.waits.waiting_for(driven.now) == [1]
    (line,) = [line for line in of(effects, do.Log) if "no neighbor is live" in line.message]
    assert line.message == "no neighbor is live: waiting up to 60 s for one (peer 1 left)"
    driven.hello(1, 0, incarnation=2)
    if pace == "lockstep":
        driven.take_all(1), driven.step(ev.PassReceived(Pass(1, 2, 0, 0)))
    assert driven.engine.stage is Stage.CLOSING
    driven.work("close")
    assert driven.state.totals["rounds_alone"] == 0


def test_never_alone_gives_up_after_the_start_deadline_with_a_checkpoint():
    driven = Driven("lockstep", peers=2, start=NEVER_ALONE, checkpoint_rounds=0)
    rounds_of_1_s(driven)
    driven.work("assign"), driven.work("train")
    driven.state.disk.saved_round = 0
    leave(driven, 1, 3)
    driven.step(ev.Tick(), after=SUSPICION_S)
    effects = driven.step(ev.Tick(), after=60.0)
    assert [line.level for line in of(effects, do.Log) if line.message.startswith("alone: no neighbor was live")] == [
        "error"
    ]
    effects += driven.work("close")
    assert of(effects, do.WriteCheckpoint)
    effects += driven.step(ev.CheckpointWritten(4))
    assert of(effects, do.Stop) == [do.Stop("alone")] and of(effects, do.Record)[-1].kind == "leave"


def test_never_alone_does_not_start_alone_and_gives_up_after_the_start_deadline():
    driven = Driven("lockstep", peers=2, start=NEVER_ALONE)
    driven.step(ev.Tick(), after=59.0)
    assert driven.engine.stage is Stage.JOINING
    assert of(driven.step(ev.Tick(), after=1.0), do.Stop) == [do.Stop("alone")]


def test_never_alone_starts_at_the_deadline_with_one_of_two_neighbors():
    driven = Driven("lockstep", start=NEVER_ALONE)
    driven.hello(1)
    for second in range(61):
        assert (driven.engine.stage is Stage.JOINING) is (second < 60), second
        driven.heartbeat(1, after=1.0)
    assert driven.engine.stage is Stage.ASSIGNING


def test_never_alone_goes_on_where_all_neighbors_have_finished():
    driven = Driven("lockstep", peers=2, start=NEVER_ALONE)
    driven.exchange()
    leave(driven, 1, 40)
    assert driven.engine.stage is Stage.CLOSING


def test_leave_ends_a_wait_of_never_alone():
    driven = Driven("lockstep", peers=2, start=NEVER_ALONE)
    driven.exchange()
    leave(driven, 1)
    driven.step(ev.Tick(), after=SUSPICION_S)
    assert of(driven.step(ev.LeaveRequested()), do.Stop) == [do.Stop("left")]


def test_peer_that_refused_all_neighbors_ends_as_one_that_was_refused():
    driven = Driven("lockstep")
    driven.step(ev.HelloRefused(1, Refusal(RefusalCode.FROZEN_MISMATCH, "frozen weights differ: 3, 4")))
    assert driven.engine.stage is Stage.JOINING
    effects = driven.step(ev.HelloRefused(2, Refusal(RefusalCode.WIRE_VERSION, "wire versions differ: 3, 4")))
    assert of(effects, do.Stop) == [do.Stop("refused")]
    (line,) = [line for line in of(effects, do.Log) if line.level == "error"]
    assert "peer 1: frozen_mismatch: frozen weights differ: 3, 4; peer 2: wire_version: wire versions" in line.message


def test_refusal_that_a_retry_cures_is_not_noted():
    driven = Driven("lockstep", peers=2)
    driven.step(ev.HelloRefused(1, Refusal(RefusalCode.OLD_INCARNATION, "claims incarnation 1")))
    assert driven.engine.stage is Stage.JOINING and not driven.state.neighbors[1].refusal


def test_refusal_is_forgotten_with_the_next_handshake_also_an_incoming_one():
    driven = Driven("lockstep")
    driven.step(ev.HelloRefused(1, Refusal(RefusalCode.WIRE_VERSION, "wire versions differ: 3, 4")))
    driven.hello(1)
    assert not driven.state.neighbors[1].refusal


def test_warning_on_rounds_alone_says_why_a_neighbor_does_not_agree():
    driven = Driven("lockstep", peers=2, start={"wait_for": "deadline", "deadline_s": 5.0})
    driven.step(ev.HelloRefused(1, Refusal(RefusalCode.FROZEN_MISMATCH, "frozen weights differ: 3, 4")))
    effects = driven.step(ev.Tick(), after=5.0) + driven.work("assign") + driven.work("train") + driven.work("close")
    assert [line.message for line in of(effects, do.Log) if "without any" in line.message] == [
        "round 0 was without any neighbor: training alone (peer 1 frozen_mismatch: frozen weights differ: 3, 4) "
        "(docs/trouble.md#training-alone)"
    ]


def test_round_with_a_model_of_a_neighbor_that_died_later_is_not_alone():
    driven = Driven("lockstep", peers=2)
    driven.exchange()
    arrival = Arrival(header(1), stream=1)
    for event in (ev.ArrivalOffered, ev.ArrivalComplete, ev.ArrivalFolded):
        driven.step(event(arrival))
    while driven.engine.stage is Stage.EXCHANGING:  # our own model is not taken
        driven.step(ev.Tick(), after=0.5)
    assert not driven.state.neighbors[1].liveness.is_live
    driven.work("close")
    assert driven.state.totals["models_folded"] == 1 and driven.state.totals["rounds_alone"] == 0

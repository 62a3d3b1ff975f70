"""The engine, event by event: what it refuses, when it sends, when a round ends. Whole runs are in tests/simulation."""

import itertools
from dataclasses import asdict, replace

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RefusalCode
from coordinator_free_bootstrap.handshake import Compared
from peer.algorithms.dfca import Dfca, DfcaState
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.engine import Engine, make_hello
from peer.core.liveness import NeighborState
from peer.core.messages import Heartbeat, ModelHeader, Numbers, Outcome, Pass, Phase, Select
from peer.core.stages import Stage
from peer.core.state import State
from tests.simulation.options import manifest
from tests.unit.algorithms.messages import hello_of

START = 100.0


class Driven:
    """Peer 0 of a complete graph (of three peers by default); the test plays its neighbors 1, 2, ..."""

    def __init__(self, peers=3, budget=None, **run):
        self.graph = make_graph("complete", peers, manifest=manifest(**({"clusters": 1} | run)))
        algorithm = Dfca(self.graph.manifest, 0, self.graph)
        self.engine = Engine(
            State(0, self.graph, algorithm, 7, model_bytes=24, algorithm_state=DfcaState((0,), 4), budget=budget)
        )
        self.now = START
        self.arrivals: list[Arrival] = []
        self.step(ev.Tick())

    def step(self, event, after=0.0):
        self.now += after
        return self.engine.step(event, self.now)

    def hello(self, sender, incarnation=1, round_index=0, phase=Phase.RUNNING, *, answered=True, seen=0):
        hello = hello_of(sender, incarnation, round_index, phase=phase, seen_incarnation=seen)
        return self.step(ev.HandshakeDone(hello, answered))

    def header(self, sender=1, **changes):
        fields = {
            **{"sender": sender, "incarnation": 1, "round_index": 0, "step": 0, "slot": 0, "index": 0, "total": 1},
            **{"sample_count": 4, "mass": 1.0, "size_bytes": 24, "encoding": "float32"},
        }
        return ModelHeader(**(fields | changes))

    def offer(self, sender=1, **changes):
        self.arrivals.append(Arrival(self.header(sender, **changes), stream=len(self.arrivals) + 1))
        return self.step(ev.ArrivalOffered(self.arrivals[-1]))

    def arrival(self, stream):
        return self.arrivals[stream - 1]

    def complete(self, stream):
        return self.step(ev.ArrivalComplete(self.arrival(stream)))

    def work(self, kind, **fields):
        state = DfcaState((0,), 4, cluster_index=0, masses=(1.0,), relayed_losses=(0.0,))
        return self.step(ev.WorkDone(kind, state, **fields))

    def begin(self):
        """Complete all handshakes, and the work `assign`."""
        for n in self.engine.state.neighbors:
            self.hello(n)
        assert self.engine.stage is Stage.ASSIGNING
        return self.work("assign")

    def deliver(self, sender, **changes):
        """Let a neighbor's model arrive complete; acknowledge its fold."""
        effects = self.offer(sender, **changes)
        effects += self.step(ev.ArrivalComplete(self.arrivals[-1])) + self.step(ev.ArrivalFolded(self.arrivals[-1]))
        return effects

    def answered(self, neighbor):
        return self.step(ev.SendAnswered(neighbor))

    def heartbeat(self, sender, round_index=0, phase=Phase.RUNNING, after=0.0):
        return self.step(ev.HeartbeatReceived(Heartbeat(sender, 1, round_index, phase)), after)

    def state_of(self, neighbor):
        return self.engine.state.neighbors[neighbor].liveness.state


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def test_first_round_begins_when_all_neighbors_have_answered():
    driven = Driven()
    effects = driven.engine.step(ev.Tick(), START)
    assert driven.engine.stage is Stage.JOINING and not of(effects, do.Work)
    driven.hello(1)
    assert driven.engine.stage is Stage.JOINING
    (work,) = of(driven.hello(2), do.Work)
    assert (work.kind, work.round_index) == ("assign", 0)


@pytest.mark.parametrize(("wait_for", "met"), [("all", 2), (1, 2), (0.6, 2), (0.5, 1)])
def test_wait_for_decides_how_many_neighbors_are_waited_for(wait_for, met):
    driven = Driven(start={"wait_for": wait_for, "deadline_s": 5.0})
    for n in range(1, met + 1):
        assert driven.engine.stage is Stage.JOINING
        driven.hello(n)
    assert driven.engine.stage is Stage.ASSIGNING


def test_first_round_begins_at_the_start_deadline():
    driven = Driven(start={"wait_for": "deadline", "deadline_s": 5.0})
    driven.hello(1)
    driven.step(ev.Tick(), after=4.9)
    assert driven.engine.stage is Stage.JOINING
    driven.step(ev.Tick(), after=0.1)
    assert driven.engine.stage is Stage.ASSIGNING


def test_with_everyone_a_run_begins_with_all_neighbors_or_ends_naming_the_missing_ones():
    driven = Driven(start={"wait_for": "everyone", "deadline_s": 5.0})
    driven.hello(1)
    assert driven.engine.waits.waiting_for(driven.now) == [2]
    assert (driven.engine.waits.since(), driven.engine.waits.until()) == (START, START + 5.0)
    effects = driven.step(ev.Tick(), after=4.9)
    assert driven.engine.stage is Stage.JOINING and of(effects, do.SetTimer)[-1].at <= START + 5.0
    effects = driven.step(ev.Tick(), after=0.1)
    assert driven.engine.stage is Stage.STOPPED and of(effects, do.Stop) == [do.Stop("alone")]
    assert [line.message for line in of(effects, do.Log) if line.level == "error"] == [
        "not started: neighbors [2] were missing after 5 s, and run.start.wait_for is everyone (peer 2 unknown)"
    ]
    assert not of(effects, do.Work) and of(effects, do.Record)[-1].fields["rounds_completed"] == 0


def test_with_everyone_a_neighbor_that_has_died_again_is_missing_however_long_ago():
    driven = Driven(start={"wait_for": "everyone", "deadline_s": 60.0}, timeouts={"suspicion_s": 1.0})
    driven.hello(1)
    for _ in range(20):  # beyond six suspicion times, after which `all` begins without it
        driven.step(ev.Tick(), after=1.0)
    assert driven.state_of(1) is NeighborState.DEAD
    driven.hello(2)
    assert driven.engine.stage is Stage.JOINING and driven.engine.waits.waiting_for(driven.now) == [1]
    driven.hello(1, incarnation=2)
    assert driven.engine.stage is Stage.ASSIGNING


def test_with_everyone_a_restarted_peer_continues_without_those_that_are_gone():
    driven = Driven(start={"wait_for": "everyone", "deadline_s": 5.0})
    driven.hello(1, seen=6)  # it knows an earlier incarnation of this peer
    driven.step(ev.Tick(), after=5.0)
    assert driven.engine.stage is Stage.ASSIGNING


def test_arrivals_are_read_from_training_on_and_folded_by_neighbor_id():
    driven = Driven()
    driven.hello(1)
    driven.hello(2)
    driven.offer(2)
    assert not of(driven.step(ev.Tick()), do.ReadArrival), "nothing is read before assign is done"
    assert of(driven.work("assign"), do.ReadArrival) == [do.ReadArrival(driven.arrival(1))], (
        "one buffer stays free for the neighbor in turn"
    )
    assert of(driven.offer(1), do.ReadArrival) == [do.ReadArrival(driven.arrival(2))]
    assert not of(driven.complete(1), do.FoldArrival), "2 waits for 1"
    folds = of(driven.complete(2), do.FoldArrival)
    assert [fold.header.sender for fold in folds] == [1, 2]


def test_step_closes_when_all_models_are_folded_and_own_offers_answered():
    driven = Driven()
    driven.begin()
    sent = of(driven.work("train"), do.SendModel)
    assert [effect.neighbor for effect in sent] == [1, 2]
    assert all(effect.header.incarnation == 7 for effect in sent)
    driven.deliver(1)
    assert driven.engine.waits.waiting_for(driven.now) == [2]
    driven.deliver(2)
    assert driven.engine.stage is Stage.EXCHANGING, "our own offers are not answered yet"
    driven.answered(1)
    (work,) = of(driven.answered(2), do.Work)
    assert (work.kind, work.present) == ("close", (1, 2))


def test_step_closes_with_the_model_that_completes_it_though_it_is_of_no_use():
    driven = Driven()
    driven.engine.state.algorithm.targets = lambda state, header: None
    driven.begin()
    driven.work("train")
    driven.answered(1), driven.answered(2)
    driven.offer(1), driven.complete(1)
    assert driven.engine.stage is Stage.EXCHANGING
    driven.offer(2), driven.complete(2)
    assert driven.engine.stage is Stage.CLOSING and driven.engine.state.totals["models_unused"] == 2


def test_step_does_not_wait_until_neighbors_of_a_later_round_have_taken_what_they_cannot_use():
    driven = Driven()
    driven.begin()
    for n in (1, 2):
        driven.step(ev.PassReceived(Pass(n, 1, 0, 0)))
        driven.heartbeat(n, 1)
    effects = driven.work("train")
    assert driven.engine.stage is Stage.CLOSING and not of(effects, do.SendModel)


def test_neighbor_that_passed_is_not_waited_for():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.deliver(1)
    driven.step(ev.PassReceived(Pass(2, 1, 0, 0)))
    assert driven.engine.waits.waiting_for(driven.now) == []


def test_offers_of_a_round_wait_for_the_checkpoint_of_the_round_before():
    driven = Driven()
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.deliver(n)
        driven.answered(n)
    (persist,) = of(driven.work("close"), do.WriteCheckpoint)
    assert persist.round_index == 1 and persist.state["folded"] == [[1, 0, 0, 0], [2, 0, 0, 0]]
    driven.work("assign")
    assert not of(driven.work("train"), do.SendModel)
    assert len(of(driven.step(ev.CheckpointWritten(1)), do.SendModel)) == 2


def test_run_continues_when_a_checkpoint_cannot_be_written():
    driven = Driven()
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.deliver(n)
        driven.answered(n)
    driven.work("close")
    driven.work("assign")
    driven.work("train")
    effects = driven.step(ev.CheckpointWritten(1, "no space left on device"))
    assert len(of(effects, do.SendModel)) == 2 and driven.engine.state.disk.error
    assert [log.level for log in of(effects, do.Log)] == ["error"]


def test_silent_neighbor_delays_one_round_by_the_suspicion_time():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.deliver(1)
    for _ in range(3):
        effects = driven.heartbeat(1, after=0.5)
    assert driven.engine.stage is Stage.EXCHANGING
    effects = driven.step(ev.Tick(), after=0.5)
    assert of(effects, do.CancelSend) == [do.CancelSend(2)]
    assert driven.engine.stage is Stage.CLOSING
    assert list(driven.engine.pace.counted_on()) == [1]


def test_round_deadline_closes_the_round_and_records_missing_neighbors():
    driven = Driven(timeouts={"suspicion_s": 2.0, "round_deadline_s": 4.0})
    driven.begin()
    driven.work("train")
    for _ in range(4):
        for n in (1, 2):
            driven.heartbeat(n)
        assert driven.engine.stage is Stage.EXCHANGING
        driven.step(ev.Tick(), after=1.0)
    assert driven.engine.stage is Stage.CLOSING
    (record,) = [r for r in of(driven.work("close"), do.Record) if r.kind == "round"]
    assert record.fields["missing"] == [1, 2]


@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 1)])
def test_a_record_names_the_neighbor_that_the_round_waited_for_longest(first, last):
    driven = Driven()
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.deliver(n)
    driven.heartbeat(last, after=0.5)
    driven.answered(first)
    driven.heartbeat(last, after=1.0)
    driven.answered(last)
    (record,) = [r for r in of(driven.work("close"), do.Record) if r.kind == "round"]
    assert record.fields["awaited"] == last


def test_a_round_that_did_not_wait_names_nobody():
    driven = Driven()
    driven.begin()
    for n in (1, 2):
        driven.deliver(n)
    driven.work("train")
    for n in (1, 2):
        driven.answered(n)
    (record,) = [r for r in of(driven.work("close"), do.Record) if r.kind == "round"]
    assert "awaited" not in record.fields


def test_long_wait_is_logged_with_its_cause_at_doubling_times():
    driven = Driven(timeouts={"suspicion_s": 5.0, "round_deadline_s": 600.0})
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.deliver(2)
    logged = {}
    for second in range(1, 101):
        for n in (1, 2):
            for log in of(driven.heartbeat(n, after=0.5), do.Log):
                logged[second] = log.message
    assert list(logged) == [20, 40, 80]
    assert logged[20] == "round 0 has waited 20 s for models from [1] and for [2] to take ours"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"round_index": -1}, RefusalCode.ROUND_OUT_OF_RANGE),
        ({"round_index": 5}, RefusalCode.ROUND_OUT_OF_RANGE),
        ({"round_index": 3}, RefusalCode.ROUND_TOO_FAR_AHEAD),
        ({"step": 1}, RefusalCode.ROUND_OUT_OF_RANGE),
        ({"slot": 1}, RefusalCode.SLOT_OUT_OF_RANGE),
        ({"slot": -1}, RefusalCode.SLOT_OUT_OF_RANGE),
        ({"index": 1}, RefusalCode.MALFORMED),
        ({"total": 2}, RefusalCode.MALFORMED),
        ({"total": 0}, RefusalCode.MALFORMED),
        ({"mass": 0.0}, RefusalCode.WEIGHT_OUT_OF_RANGE),
        ({"mass": float("nan")}, RefusalCode.WEIGHT_OUT_OF_RANGE),
        ({"mass": 1.1e6}, RefusalCode.WEIGHT_OUT_OF_RANGE),
        ({"sample_count": 0}, RefusalCode.WEIGHT_OUT_OF_RANGE),
        ({"sample_count": 10**7}, RefusalCode.WEIGHT_OUT_OF_RANGE),
    ],
)
def test_impossible_header_is_refused_and_changes_nothing(changes, code):
    driven = Driven()
    driven.begin()
    before = driven.engine.state.checkpoint()
    (reply,) = of(driven.offer(1, **changes), do.AnswerArrival)
    assert reply.reply.code is code
    after = driven.engine.state.checkpoint()
    assert after.pop("refusals") == {code: 1} and before.pop("refusals") == {}
    assert after == before and driven.engine.state.arrivals.buffers() == 0


@pytest.mark.parametrize("limits", [{"round_index": 2}, {"round_index": 4}])
def test_models_up_to_rounds_ahead_are_held_and_later_ones_refused(limits):
    driven = Driven()
    driven.begin()
    assert bool(of(driven.offer(1, **limits), do.AnswerArrival)) == (limits["round_index"] > 2)


@pytest.mark.parametrize(
    ("sender", "incarnation", "code"),
    [
        (9, 1, RefusalCode.NOT_A_NEIGHBOR),
        (1, 4, RefusalCode.OLD_INCARNATION),
        (1, 6, RefusalCode.NO_HANDSHAKE),
        (1, 5, None),
    ],
)
def test_messages_are_accepted_only_from_the_connected_incarnation(sender, incarnation, code):
    driven = Driven()
    driven.hello(1, incarnation=5)
    rejection = driven.engine.rejects_sender(sender, incarnation)
    assert (rejection.code if rejection else None) == code


def test_repeated_model_is_answered_duplicate_and_folded_once():
    driven = Driven()
    driven.begin()
    driven.deliver(1)
    (reply,) = of(driven.offer(1), do.AnswerArrival)
    assert reply.reply is Outcome.DUPLICATE and driven.engine.state.totals["models_folded"] == 1


def test_unanswered_push_is_retried_at_doubling_times():
    driven = Driven(timeouts={"suspicion_s": 5.0, "round_deadline_s": 600.0})
    driven.begin()
    driven.work("train")
    driven.answered(1)
    retried = []
    for second in range(1, 150):
        for n in (1, 2):
            for again in of(driven.heartbeat(n, after=0.5), do.RetryIfStalled):
                assert again == do.RetryIfStalled(2, 10.0)
                (sent,) = of(driven.step(ev.SendStalled(2)), do.SendModel)
                assert sent.neighbor == 2
                retried.append(second)
    assert retried == [20, 60, 140]


@pytest.mark.parametrize("lost", [False, True])
def test_copy_of_a_complete_model_is_read_only_if_the_first_is_lost(lost):
    driven = Driven()
    driven.begin()
    driven.offer(2)
    driven.complete(1)
    effects = driven.offer(2)
    assert not of(effects, do.ReadArrival) and not of(effects, do.AnswerArrival)
    if lost:
        assert of(driven.step(ev.ArrivalLost(driven.arrival(1))), do.ReadArrival) == [do.ReadArrival(driven.arrival(2))]
    else:
        effects = driven.deliver(1)
        assert {fold.arrival.stream for fold in of(effects, do.FoldArrival)} == {1, 3}
        assert do.AnswerArrival(driven.arrival(2), Outcome.DUPLICATE) in effects


def test_model_of_a_closed_round_is_stale():
    driven = Driven()
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.step(ev.PassReceived(Pass(n, 1, 0, 0)))
        driven.answered(n)
    driven.work("close")
    (reply,) = of(driven.offer(1), do.AnswerArrival)
    assert reply.reply is Outcome.STALE


def test_restarted_neighbor_gets_all_messages_again_and_its_delivery_counts():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.deliver(1)
    effects = driven.hello(1, incarnation=2)
    (again,) = of(effects, do.SendModel)
    assert again.neighbor == 1
    assert driven.engine.waits.waiting_for(driven.now) == [2]


def test_restarted_neighbor_that_passes_is_not_waited_for_after_a_partial_delivery():
    driven = Driven(clusters=2)
    driven.begin()
    driven.work("train")
    driven.deliver(1, total=2)
    driven.hello(1, incarnation=2, round_index=1)
    assert driven.engine.waits.waiting_for(driven.now) == [1, 2]
    driven.step(ev.PassReceived(Pass(1, 2, 0, 0)))
    assert driven.engine.waits.waiting_for(driven.now) == [2]


def test_peer_with_a_raised_incarnation_sends_all_messages_again():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.answered(2)
    effects = driven.step(ev.IncarnationRaised(70))
    assert [(e.neighbor, e.header.incarnation) for e in of(effects, do.SendModel)] == [(1, 70), (2, 70)]


def test_dead_neighbor_becomes_alive_when_it_answers_not_when_it_is_heard():
    """Otherwise a link cut in one direction would make it alive with each message, and rounds would wait for it again."""
    driven = Driven()
    driven.begin()
    timeouts = driven.graph.manifest.timeouts
    for _ in range(3):
        driven.heartbeat(2, after=timeouts.suspicion_s / 3)
    assert driven.state_of(1) is NeighborState.DEAD
    driven.step(ev.HandshakeFailed(1, "no answer"))
    heard = driven.heartbeat(1)
    heard += driven.hello(1, answered=False) + driven.offer(1)
    assert driven.state_of(1) is NeighborState.DEAD
    assert of(heard + driven.step(ev.Tick(), after=0.2), do.SendHello) == [do.SendHello(1)], "after 0.1 s, and once"
    driven.hello(1, answered=True)
    assert driven.state_of(1) is NeighborState.ALIVE


def test_repeated_hellos_of_a_known_incarnation_do_not_keep_a_neighbor_alive():
    driven = Driven()
    driven.begin()
    for _ in range(12):
        driven.heartbeat(2, after=driven.graph.manifest.timeouts.suspicion_s / 10)
        driven.hello(1, answered=False)
    assert driven.state_of(1) is NeighborState.DEAD


def test_neighbor_that_sends_hellos_but_never_answers_is_not_waited_for():
    driven = Driven(start={"wait_for": "all", "deadline_s": 30.0})
    driven.hello(1)
    driven.hello(2, answered=False)
    assert driven.engine.stage is Stage.JOINING
    driven.step(ev.Tick(), after=30.0)
    driven.work("assign")
    driven.work("train")
    assert driven.engine.waits.waiting_for(driven.now) == [1]


def test_heard_neighbor_must_answer_until_it_does_or_leaves():
    driven = Driven()
    driven.hello(1, answered=False)
    driven.heartbeat(1)
    assert driven.engine.must_answer(1)
    driven.hello(1, answered=True)
    assert not driven.engine.must_answer(1)
    driven.heartbeat(1, phase=Phase.LEAVING)
    assert not driven.engine.must_answer(1), "it said goodbye"


def test_unreachable_neighbor_is_logged_after_4_8_16_and_32_failures():
    driven = Driven()
    driven.hello(1, answered=False)
    effects = [effect for _ in range(40) for effect in driven.step(ev.HandshakeFailed(1, "connection refused"))]
    warnings = [log.message for log in of(effects, do.Log) if log.level == "warning"]
    assert len(warnings) == 4 and all("peer 1 sends messages but does not answer ours" in w for w in warnings)
    assert warnings[0].endswith("connection refused (docs/trouble.md#unreachable)")
    driven.hello(1, answered=True)
    assert not driven.engine.state.neighbors[1].unreachable


@pytest.mark.parametrize(
    ("refusal", "says_hello", "retries"),
    [
        (RefusalCode.NO_HANDSHAKE, True, True),
        (RefusalCode.OLD_INCARNATION, True, True),
        (RefusalCode.TOO_MANY_STREAMS, False, True),
        (RefusalCode.RATE_LIMITED, False, True),
        (RefusalCode.DIGEST_MISMATCH, False, True),
        (RefusalCode.NON_FINITE, False, False),
        (RefusalCode.NORM_BOUND, False, False),
    ],
)
def test_refusal_leads_to_a_hello_or_a_retry_or_neither(refusal, says_hello, retries):
    driven = Driven()
    driven.begin()
    driven.work("train")
    effects = driven.step(ev.SendAnswered(1, Refusal(refusal)), after=1.0)
    assert bool(of(effects, do.SendHello)) == says_hello
    assert bool(of(driven.step(ev.Tick(), after=0.3), do.SendModel)) == retries


def test_hellos_are_rate_limited_to_a_neighbor_that_refuses_everything_else():
    driven = Driven()
    driven.begin()
    driven.work("train")
    hellos = 0
    for _ in range(1000):
        effects = driven.step(ev.SendAnswered(1, Refusal(RefusalCode.NO_HANDSHAKE)), after=0.01)
        if do.SendHello(1) in effects:
            hellos += 1
            driven.hello(1)
    heartbeats = 10 / driven.graph.manifest.timeouts.heartbeat_s
    assert heartbeats / 2 <= hellos <= heartbeats, "in ten seconds"


def test_peer_two_rounds_behind_pulls_before_its_first_round():
    driven = Driven(peers=4)
    driven.hello(1, round_index=3)
    driven.hello(3, round_index=1)
    effects = driven.hello(2, round_index=4)
    assert driven.engine.stage is Stage.CATCHING_UP
    assert [pull.neighbor for pull in of(effects, do.Pull)] == [1, 2]
    effects = driven.step(ev.PullDone(1, True, 3))
    assert of(effects, do.Work) == [do.Work("adopt", 0, present=(1,))], "the first complete answer is enough"
    sent = [(effect.neighbor, effect.message) for effect in of(effects, do.SendControl)]
    assert sent == [(3, Pass(0, 7, 2, 0))], "the pass for the last skipped round; the others have closed it"
    effects = driven.work("adopt")
    assert driven.engine.round_index == 3 and of(effects, do.WriteCheckpoint)


def test_first_round_begins_when_all_pulls_fail():
    driven = Driven()
    driven.hello(1, round_index=3)
    driven.hello(2)
    effects = driven.step(ev.PullDone(1, False))
    assert [work.kind for work in of(effects, do.Work)] == ["assign"] and driven.engine.round_index == 0


@pytest.mark.parametrize("began", ["after a failed pull", "alone", "with new peers", "with its neighbors"])
def test_in_async_pace_a_peer_that_began_without_the_others_catches_up_with_them_once(began):
    driven = Driven(pace="async", rounds=100)
    if began == "after a failed pull":
        driven.hello(1, round_index=30), driven.hello(2)
        driven.step(ev.PullDone(1, False))
    elif began == "alone":
        driven.step(ev.Tick(), after=driven.graph.manifest.start.deadline_s)
        driven.hello(1), driven.hello(2)
    else:
        if began == "with new peers":
            driven.engine.state.graph = replace(driven.graph, continues=("0" * 64,))
        driven.hello(1), driven.hello(2)
    assert driven.engine.stage is Stage.ASSIGNING and driven.engine.round_index == 0

    def another_round():
        driven.work("assign"), driven.work("train")
        return driven.work("close") + driven.step(ev.CheckpointWritten(driven.engine.round_index))

    another_round()
    for n in (1, 2):
        driven.heartbeat(n, 40, after=1.0)
    pulls = of(another_round(), do.Pull)
    if began == "with its neighbors":
        assert not pulls, "it is slower than they are"
        return
    assert pulls == [do.Pull(1), do.Pull(2)]
    driven.step(ev.PullDone(2, True, 40))
    assert do.Work("adopt", 3, present=(2,)) in another_round()
    driven.step(ev.PullDone(1, True, 40))
    driven.work("adopt"), driven.step(ev.CheckpointWritten(40))
    for n in (1, 2):
        driven.heartbeat(n, 90)
    assert not of(another_round(), do.Pull) and driven.engine.round_index == 41, "rounds drift apart in this pace"


@pytest.mark.parametrize("answers", [True, False])
def test_a_neighbor_that_goes_on_is_caught_up_with_before_one_that_has_finished(answers):
    driven = Driven(pace="async", rounds=100)
    driven.hello(1, round_index=100, phase=Phase.FINISHED), driven.hello(2, round_index=50)
    driven.step(ev.PullDone(1, True, 100))
    assert driven.engine.stage is Stage.CATCHING_UP, "of the last round nothing is left to take part in"
    effects = driven.step(ev.PullDone(2, answers, 50 if answers else 0))
    assert of(effects, do.Work)[0].kind == "adopt" and driven.engine.round_index == (50 if answers else 100)


def close_round(driven, neighbors):
    """Train, exchange with some neighbors, close; return the effects of the close."""
    driven.work("train")
    for n in neighbors:
        driven.deliver(n, round_index=driven.engine.round_index)
        driven.answered(n)
    effects = driven.work("close")
    return effects + driven.step(ev.CheckpointWritten(driven.engine.round_index))


def test_round_that_one_neighbor_alone_claims_is_not_believed_without_its_model():
    """An attacker claims a far round and answers pulls without end: its victim's rounds continue."""
    driven = Driven(peers=4, rounds=100)
    driven.begin()
    driven.heartbeat(3, round_index=60)
    effects = close_round(driven, (1, 2))
    assert of(effects, do.Pull) == [do.Pull(3)] and driven.engine.stage is Stage.ASSIGNING
    assert driven.engine.round_index == 1
    driven.work("assign")
    effects = close_round(driven, (1, 2))
    assert not of(effects, do.Pull), "the pull is still under way"
    assert driven.engine.round_index == 2 and not of(effects, do.Record)[1:]


def test_neighbor_whose_pull_fails_is_asked_again_ever_more_rarely():
    driven = Driven(peers=4, rounds=100)
    driven.begin()
    driven.heartbeat(3, round_index=60)
    suspicion_s, asked_at = driven.graph.manifest.timeouts.suspicion_s, []
    for _ in range(40):
        for n in (1, 2, 3):
            driven.heartbeat(n, round_index=driven.engine.round_index if n < 3 else 60, after=0.1)
        if of(close_round(driven, (1, 2)), do.Pull):
            asked_at.append(driven.now)
            driven.step(ev.PullDone(3, False))
        driven.work("assign")
    pauses = [after - before for before, after in itertools.pairwise(asked_at)]
    assert pauses[0] >= suspicion_s and pauses[1] >= 2 * suspicion_s and driven.engine.round_index == 40


@pytest.mark.parametrize("confirmed", ["by another neighbor", "by its model"])
def test_confirmed_round_is_caught_up_with(confirmed):
    driven = Driven(peers=4, rounds=100)
    driven.begin()
    driven.heartbeat(3, round_index=60)
    if confirmed == "by another neighbor":
        driven.heartbeat(2, round_index=59)
    effects = close_round(driven, (1,) if confirmed == "by another neighbor" else (1, 2))
    assert do.Pull(3) in of(effects, do.Pull) and driven.engine.round_index == 1, "the own round continues"
    driven.work("assign")
    driven.step(ev.PullDone(3, True, 60))
    effects = close_round(driven, (1,) if confirmed == "by another neighbor" else (1, 2))
    assert do.Work("adopt", 2, present=(3,)) in effects and driven.engine.round_index == 60


def test_neighbor_that_delivers_an_older_round_than_it_claims_moves_nothing():
    driven = Driven(peers=4, rounds=100)
    driven.begin()
    driven.heartbeat(3, round_index=60)
    close_round(driven, (1, 2))
    driven.work("assign")
    driven.step(ev.PullDone(3, True, 1))
    close_round(driven, (1, 2))
    assert driven.engine.round_index == 2 and driven.engine.stage is Stage.ASSIGNING


@pytest.mark.parametrize("wait_for", ["all", 0.5])
def test_peer_that_all_neighbors_refuse_ends(wait_for):
    driven = Driven(start={"wait_for": wait_for, "deadline_s": 50.0})
    driven.step(ev.HandshakeFailed(1, Refusal(RefusalCode.MANIFEST_MISMATCH, "run.rounds: 3 here, 4 there")))
    assert driven.engine.stage is Stage.JOINING
    effects = driven.step(ev.HandshakeFailed(2, Refusal(RefusalCode.MANIFEST_MISMATCH, "run.rounds: 3 here, 5 there")))
    assert of(effects, do.Stop) == [do.Stop("refused")]
    (line,) = [line for line in of(effects, do.Log) if line.message.startswith("refused by all neighbors")]
    code = RefusalCode.MANIFEST_MISMATCH
    assert f"peer 1: {code}: run.rounds: 3 here, 4 there; peer 2: {code}: run.rounds: 3 here, 5 there" in line.message


def test_peer_that_may_train_alone_goes_on_where_all_neighbors_refuse_it():
    driven = Driven(start={"wait_for": "deadline", "deadline_s": 5.0})
    for n in (1, 2):
        driven.step(ev.HandshakeFailed(n, Refusal(RefusalCode.GRAPH_MISMATCH, "other graph")))
    driven.step(ev.Tick(), after=5.0)
    assert driven.engine.stage is Stage.ASSIGNING


def test_finished_peer_stays_for_a_dead_neighbor_as_long_as_a_restart_may_take():
    driven = Driven(rounds=1, start={"deadline_s": 60.0})
    driven.begin()
    suspicion_s = driven.graph.manifest.timeouts.suspicion_s
    close_round(driven, (1, 2))
    driven.work("final")
    finished_at, stopped = driven.now, []
    while not stopped:
        assert driven.engine.stage is Stage.LINGERING
        driven.heartbeat(1, 1, Phase.FINISHED)
        stopped = of(driven.step(ev.Tick(), after=0.25), do.Stop)
    assert driven.state_of(2) is NeighborState.DEAD and stopped == [do.Stop("completed")]
    assert driven.now - finished_at == 6 * suspicion_s


def test_restarted_peer_waits_for_absent_neighbors_as_long_as_a_restart_may_take_and_logs_it():
    before = Driven(start={"deadline_s": 600.0})
    engine = Engine(
        State(
            0, before.graph, before.engine.state.algorithm, 8, model_bytes=24, resume=before.engine.state.checkpoint()
        )
    )
    suspicion_s, lines, now = before.graph.manifest.timeouts.suspicion_s, [], START
    engine.step(ev.Tick(), now)
    while engine.stage is Stage.JOINING:
        now += 0.5
        lines += [line.message for line in of(engine.step(ev.Tick(), now), do.Log)]
    assert now - START == 6 * suspicion_s
    assert len([line for line in lines if line.startswith("waiting for neighbors [1, 2]")]) == 3


def test_leaving_closes_the_round_writes_a_checkpoint_and_tells_the_neighbors():
    driven = Driven(checkpoint_rounds=0)
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.deliver(n)
        driven.answered(n)
    driven.work("close")
    assert not of(driven.step(ev.LeaveRequested()), do.Stop), "assign is under way"
    effects = driven.work("assign")
    assert not of(effects, do.WriteCheckpoint), "in the middle of a round"
    effects = driven.work("close")
    assert [persist.round_index for persist in of(effects, do.WriteCheckpoint)] == [2]
    effects = driven.step(ev.CheckpointWritten(2))
    assert of(effects, do.Stop) == [do.Stop("left")]
    assert {effect.heartbeat.phase for effect in of(effects, do.SendHeartbeat)} == {Phase.LEAVING}
    assert driven.step(ev.Tick()) == []


def test_async_folds_at_most_two_models_of_a_neighbor_per_round():
    driven = Driven(pace="async", rounds=9)
    driven.begin()
    for round_index in range(5):
        driven.deliver(1, round_index=round_index)
    driven.deliver(2)
    assert driven.engine.state.totals["models_folded"] == 3 and driven.engine.state.totals["models_unused"] == 3
    driven.work("train")
    driven.work("close")
    driven.work("assign")
    driven.deliver(1, round_index=5)
    assert driven.engine.state.totals["models_folded"] == 4, "a new round"


@pytest.mark.parametrize("mass", [0.0, 5e-324, 1e-10, 2e6])
def test_weight_that_would_overflow_or_vanish_is_refused(mass):
    driven = Driven(options={"warmup_rounds": 1})
    driven.begin()
    (reply,) = of(driven.offer(1, mass=mass, numbers=Numbers.of(0.5), total=1), do.AnswerArrival)
    assert reply.reply.code is RefusalCode.WEIGHT_OUT_OF_RANGE


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1.7e308])
def test_relayed_loss_that_would_become_infinite_is_refused(loss):
    driven = Driven(options={"warmup_rounds": 1})
    driven.begin()
    (reply,) = of(driven.offer(1, numbers=Numbers.of(loss)), do.AnswerArrival)
    assert reply.reply.code is RefusalCode.MALFORMED


@pytest.mark.parametrize("during", ["train", "exchange"])
def test_leaving_in_mid_round_discards_the_round_or_closes_it(during):
    for every, written in ((1, []), (3, [2])):
        driven = Driven(checkpoint_rounds=every)
        driven.begin()
        for _ in range(2):
            if driven.engine.round_index == 1 and during == "train":
                break
            driven.work("train")
            for n in (1, 2):
                if driven.engine.round_index == 0:
                    driven.deliver(n)
                    driven.answered(n)
            if driven.engine.round_index == 0:
                effects = driven.work("close")
                if of(effects, do.WriteCheckpoint):
                    driven.step(ev.CheckpointWritten(1))
                driven.work("assign")
        driven.deliver(1, round_index=1)
        effects = driven.step(ev.LeaveRequested())
        if written and during == "train":
            assert not of(effects, do.Stop), "training under way is kept"
            effects = driven.work("train")
        if written:
            assert [work.kind for work in of(effects, do.Work)] == ["close"]
            effects = driven.work("close")
        assert [persist.round_index for persist in of(effects, do.WriteCheckpoint)] == written
        if written:
            effects = driven.step(ev.CheckpointWritten(2))
        assert of(effects, do.Stop) == [do.Stop("left")]


@pytest.mark.parametrize("during", ["assign", "close", "end_step", "final"])
def test_leaving_waits_only_for_the_work_under_way(during):
    run = {"rounds": 1, "checkpoint_rounds": 0} | (
        {"options": {"warmup_rounds": 1, "relay_steps": 2}} if during == "end_step" else {}
    )
    driven = Driven(**run)
    driven.hello(1)
    driven.hello(2)
    for kind, stage in (("assign", Stage.ASSIGNING), ("train", Stage.TRAINING)):
        assert driven.engine.stage is stage
        if kind == during:
            break
        driven.work(kind)
    else:
        for n in (1, 2):
            driven.deliver(n, numbers=Numbers.of(0.0) if during == "end_step" else Numbers())
            driven.answered(n)
        if during == "final":
            assert driven.engine.stage is Stage.CLOSING
            driven.work("close")
    assert driven.engine.stage in (Stage.ASSIGNING, Stage.CLOSING, Stage.ENDING_STEP, Stage.FINISHING)
    assert not of(driven.step(ev.LeaveRequested()), do.Stop), f"{during} is under way"
    effects = driven.work(during)
    if of(effects, do.WriteCheckpoint):
        effects = driven.step(ev.CheckpointWritten(driven.engine.round_index))
    assert of(effects, do.Stop) == [do.Stop("left")]
    assert {effect.heartbeat.phase for effect in of(effects, do.SendHeartbeat)} == {Phase.LEAVING}


def test_restarted_peer_waits_for_the_start_deadline_until_it_meets_a_neighbor():
    run = {"start": {"wait_for": "all", "deadline_s": 30.0}}
    driven = Driven(**run)
    state = driven.engine.state.checkpoint()

    def restarted():
        again = Driven(**run)
        again.engine = Engine(State(0, again.graph, again.engine.state.algorithm, 8, resume=state))
        again.step(ev.Tick())
        return again

    suspicion_s = driven.graph.manifest.timeouts.suspicion_s
    alone = restarted()
    alone.step(ev.Tick(), after=suspicion_s)
    assert alone.engine.stage is Stage.JOINING, "it has met no neighbor"
    alone.step(ev.Tick(), after=30.0)
    assert alone.engine.stage is Stage.ASSIGNING
    met = restarted()
    met.hello(1)
    met.step(ev.Tick(), after=suspicion_s)
    assert met.engine.stage is Stage.ASSIGNING, "it waits for the other one no longer than the suspicion time"


@pytest.mark.parametrize(
    ("seen", "round_index", "phase", "starts"),
    [
        (3, 0, Phase.RUNNING, True),
        (3, 1, Phase.STARTING, True),
        (3, 0, Phase.STARTING, False),  # it still waits for the others, as the earlier incarnation did
        (7, 0, Phase.RUNNING, False),
        (0, 0, Phase.RUNNING, False),
    ],
)
def test_peer_without_its_disk_learns_from_a_neighbor_that_it_restarted(seen, round_index, phase, starts):
    driven = Driven(start={"wait_for": "all", "deadline_s": 30.0})
    driven.hello(1, round_index=round_index, phase=phase, seen=seen)
    driven.step(ev.Tick(), after=driven.graph.manifest.timeouts.suspicion_s)
    assert (driven.engine.stage is Stage.ASSIGNING) is starts


def test_round_in_which_a_neighbor_died_does_not_count_for_the_round_rate():
    driven = Driven(peers=4, rounds=20)
    driven.begin()

    def round_of(seconds, *senders):
        now = driven.engine.round_index
        driven.work("train")
        for n in senders:
            driven.answered(n)
            driven.deliver(n, round_index=now)
        for _ in range(round(seconds / 0.25)):
            for n in senders:
                driven.heartbeat(n, now, after=0.25 / len(senders))
        assert driven.engine.stage is Stage.CLOSING
        driven.work("close")
        driven.step(ev.CheckpointWritten(now + 1))
        driven.work("assign")

    for _ in range(3):
        round_of(0.25, 1, 2, 3)
    assert driven.engine.pace.rate.duration_min_s() == pytest.approx(0.25)
    round_of(driven.graph.manifest.timeouts.suspicion_s, 1, 2)
    assert driven.state_of(3) is NeighborState.DEAD
    assert not driven.engine.pace.partition.is_likely()
    assert driven.engine.pace.rate.duration_min_s() == pytest.approx(0.25)


@pytest.mark.parametrize(("suspicion_s", "pause_s"), [(2.5, 2.0), (50.0, 10.0)])
def test_hellos_to_an_absent_neighbor_are_as_rare_as_heartbeats(suspicion_s, pause_s):
    timeouts = {"suspicion_s": suspicion_s, "round_deadline_s": 600.0}
    driven = Driven(timeouts=timeouts, start={"wait_for": "all", "deadline_s": 3600.0})
    for _ in range(12):
        driven.step(ev.HandshakeFailed(1, "no answer"))
        assert of(driven.step(ev.Tick(), after=pause_s), do.SendHello)
    driven.step(ev.HandshakeFailed(1, "no answer"))
    assert not of(driven.step(ev.Tick(), after=0.99 * pause_s), do.SendHello)
    assert of(driven.step(ev.Tick(), after=0.02 * pause_s), do.SendHello)


def test_checkpoint_resumes_with_folded_models_and_incarnations():
    driven = Driven()
    driven.begin()
    driven.deliver(1)
    state = driven.engine.state.checkpoint()
    resumed = Engine(State(0, driven.graph, driven.engine.state.algorithm, 8, resume=state))
    assert resumed.state.checkpoint() == state | {"incarnation": 8}
    assert resumed.state.arrivals.is_duplicate(driven.header(1))
    assert resumed.rejects_sender(1, 0).code is RefusalCode.OLD_INCARNATION


def test_timer_is_in_the_future_when_nothing_is_due():
    """A tick with nothing to do must not ask for another tick at once: that would never end."""
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.step(ev.SendAnswered(1, Refusal(RefusalCode.NO_HANDSHAKE)))
    for _ in range(3):
        driven.step(ev.Tick())
    (timer,) = of(driven.step(ev.Tick()), do.SetTimer)
    assert timer.at > driven.now


def test_equal_event_sequences_give_equal_effects():
    def effects():
        driven = Driven()
        return [driven.begin(), driven.work("train"), driven.deliver(1), driven.deliver(2), driven.step(ev.Tick(), 1.0)]

    assert repr(effects()) == repr(effects()), "arrivals are equal by identity only"


def test_hello_is_made_only_for_a_neighbor():
    driven = Driven()
    mine = Compared(wire_version=2, manifest_digest="m", graph_digest="g", schema_digest="s", initial_models_digest="i")
    hello = make_hello(driven.engine, mine, 1)
    assert (hello.sender, hello.incarnation, hello.phase) == (0, 7, Phase.STARTING)
    assert {name: getattr(hello, name) for name in Compared.__slots__} == asdict(mine), (
        "a hello says all that is compared"
    )
    with pytest.raises(LocalProtocolError, match="no neighbor"):
        make_hello(driven.engine, mine, 0)


def test_pass_after_a_selection_says_that_no_more_models_come():
    driven = Driven()
    driven.begin()
    select, later = Select(1, 1, 0, 0), Pass(1, 1, 0, 0)
    assert driven.engine.rejects_control(select).code is RefusalCode.MALFORMED, "DFCA makes no selections"
    driven.work("train")
    driven.step(ev.SelectReceived(select))
    assert driven.engine.rejects_control(later) is None
    driven.step(ev.PassReceived(later))
    assert driven.engine.waits.waiting_for(driven.now) == [2]


def test_refused_complete_model_is_counted_by_code_and_not_waited_for():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.offer(1)
    driven.step(ev.ArrivalLost(driven.arrival(1), Refusal(RefusalCode.NORM_BOUND)))
    assert driven.engine.waits.waiting_for(driven.now) == [2] and driven.engine.state.totals["models_rejected"] == 1
    driven.deliver(2)
    driven.answered(1)
    driven.answered(2)
    (record,) = [r for r in of(driven.work("close"), do.Record) if r.kind == "round"]
    assert record.fields["rejected"] == {RefusalCode.NORM_BOUND: 1} and record.fields["models_rejected"] == 1
    assert [row[0] for row in record.fields["folded"]] == [2]


@pytest.mark.parametrize(
    ("kind", "stage"), [("train", "joining"), ("close", "training"), ("assign", "training"), ("end_step", "closing")]
)
def test_work_that_was_not_asked_for_raises(kind, stage):
    driven = Driven()
    if stage != "joining":
        driven.begin()
    if stage == "closing":
        driven.work("train")
        for n in (1, 2):
            driven.deliver(n)
            driven.answered(n)
    assert driven.engine.stage == stage
    with pytest.raises(LocalProtocolError, match=f"{stage} cannot take '{kind}'"):
        driven.work(kind)


def test_pull_that_was_not_asked_for_raises():
    driven = Driven()
    with pytest.raises(LocalProtocolError, match="pull from peer 1"):
        driven.step(ev.PullDone(1, True, 3))


def test_neighbor_that_passed_after_a_partial_delivery_may_restart():
    driven = Driven(clusters=2)
    driven.begin()
    driven.work("train")
    driven.deliver(1, total=2)
    driven.step(ev.PassReceived(Pass(1, 1, 0, 0)))
    driven.hello(1, incarnation=2)
    assert driven.engine.waits.waiting_for(driven.now) == [1, 2], "the new incarnation may send the rest"
    driven.step(ev.PassReceived(Pass(1, 2, 0, 0)))
    assert driven.engine.waits.waiting_for(driven.now) == [2]

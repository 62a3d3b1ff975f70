"""The engine, event by event: what it refuses, when it sends, when a round ends. Whole runs: tests/simulation."""

from dataclasses import replace

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal
from coordinator_free_bootstrap.membership import NeighborState
from peer.algorithms.dfca import Dfca
from peer.core import effects as do
from peer.core import events as ev
from peer.core.engine import Engine, Stage, make_hello
from peer.core.messages import Announce, Beat, Hello, ModelHeader, Outcome, Phase
from tests.simulation.options import manifest

START = 100.0


class Driven:
    """Peer 0 of a complete graph, of three unless said; its neighbors 1, 2, ... are what the test says."""

    def __init__(self, peers=3, **run):
        self.graph = make_graph("complete", peers, manifest=manifest(**({"clusters": 1} | run)))
        algorithm = Dfca(self.graph.manifest, 0, self.graph)
        self.engine = Engine(0, self.graph, algorithm, 7, model_bytes=24, facts={"trained": [0], "sample_count": 4})
        self.now = START
        self.streams = 0
        self.step(ev.Tick())

    def step(self, event, after=0.0):
        self.now += after
        return self.engine.step(event, self.now)

    def hello(self, sender, incarnation=1, round_index=0, phase=Phase.RUNNING, *, answered=True, seen=0):
        hello = Hello(sender, incarnation, 1, "", "", "", "", round_index, phase, "", seen)
        return self.step(ev.Greeted(hello, answered))

    def header(self, sender=1, **changes):
        fields = {
            **{"sender": sender, "incarnation": 1, "round_index": 0, "step": 0, "slot": 0, "index": 0, "total": 1},
            **{"sample_count": 4, "degree": 2, "mass": 1.0, "scalars": (), "size_bytes": 24, "encoding": "float32"},
        }
        return ModelHeader(**(fields | changes))

    def offer(self, sender=1, **changes):
        self.streams += 1
        return self.step(ev.Offered(self.streams, self.header(sender, **changes)))

    def work(self, kind, **fields):
        facts = {"trained": [0], "sample_count": 4, "cluster_index": 0, "masses": [1.0], "relayed_losses": [0.0]}
        return self.step(ev.WorkDone(kind, facts, **fields))

    def begin(self):
        """Shake hands with all neighbors and assign."""
        for n in self.engine.neighbors:
            self.hello(n)
        assert self.engine.stage is Stage.ASSIGNING
        return self.work("assign")

    def deliver(self, sender, **changes):
        """Let a neighbor's model arrive and be folded."""
        effects = self.offer(sender, **changes)
        stream = self.streams
        effects += self.step(ev.Arrived(stream)) + self.step(ev.Folded(stream))
        return effects

    def answered(self, neighbor):
        return self.step(ev.Sent(neighbor, Outcome.FOLDED))


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def test_it_greets_all_neighbors_and_begins_when_all_have_answered():
    driven = Driven()
    effects = driven.engine.step(ev.Tick(), START)
    assert driven.engine.stage is Stage.JOINING and not of(effects, do.Work)
    driven.hello(1)
    assert driven.engine.stage is Stage.JOINING
    (work,) = of(driven.hello(2), do.Work)
    assert (work.kind, work.round_index) == ("assign", 0)


@pytest.mark.parametrize(("rule", "met"), [("all", 2), ("quorum", 1)])
def test_the_start_rule(rule, met):
    driven = Driven(start={"rule": rule, "quorum": 0.5, "deadline_s": 5.0})
    for n in range(1, met + 1):
        assert driven.engine.stage is Stage.JOINING
        driven.hello(n)
    assert driven.engine.stage is Stage.ASSIGNING


def test_the_start_deadline():
    driven = Driven(start={"rule": "deadline", "deadline_s": 5.0})
    driven.hello(1)
    driven.step(ev.Tick(), after=4.9)
    assert driven.engine.stage is Stage.JOINING
    driven.step(ev.Tick(), after=0.1)
    assert driven.engine.stage is Stage.ASSIGNING


def test_arrivals_are_admitted_from_training_on_and_folded_in_the_order_of_ids():
    driven = Driven()
    driven.hello(1)
    driven.hello(2)
    driven.offer(2)
    assert not of(driven.step(ev.Tick()), do.Admit), "not before assign is done"
    assert of(driven.work("assign"), do.Admit) == [do.Admit(1)], "a buffer is left for the neighbor in turn"
    assert of(driven.offer(1), do.Admit) == [do.Admit(2)]
    assert not of(driven.step(ev.Arrived(1)), do.Fold), "2 waits for 1"
    folds = of(driven.step(ev.Arrived(2)), do.Fold)
    assert [fold.header.sender for fold in folds] == [1, 2]


def test_a_step_ends_when_everything_is_here_folded_and_answered():
    driven = Driven()
    driven.begin()
    sent = of(driven.work("train"), do.SendModel)
    assert [effect.neighbor for effect in sent] == [1, 2]
    assert all(effect.header.incarnation == 7 for effect in sent)
    driven.deliver(1)
    assert driven.engine.waiting_for() == [2]
    driven.deliver(2)
    assert driven.engine.stage is Stage.EXCHANGING, "our own offers are not answered yet"
    driven.answered(1)
    (work,) = of(driven.answered(2), do.Work)
    assert (work.kind, work.present) == ("close", (1, 2))


def test_a_neighbor_that_passes_is_not_waited_for():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.deliver(1)
    driven.step(ev.Announced(Announce(2, 1, 0, 0, total=0)))
    assert driven.engine.waiting_for() == []


def test_the_next_round_is_not_offered_before_its_checkpoint_is_safe():
    driven = Driven()
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.deliver(n)
        driven.answered(n)
    (persist,) = of(driven.work("close"), do.Persist)
    assert persist.round_index == 1 and persist.state["marks"] == [[1, 0, 0, 0], [2, 0, 0, 0]]
    driven.work("assign")
    assert not of(driven.work("train"), do.SendModel)
    assert len(of(driven.step(ev.Persisted(1)), do.SendModel)) == 2


def test_a_checkpoint_that_cannot_be_written_does_not_stop_the_run():
    driven = Driven()
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.deliver(n)
        driven.answered(n)
    driven.work("close")
    driven.work("assign")
    driven.work("train")
    effects = driven.step(ev.Persisted(1, "no space left on device"))
    assert len(of(effects, do.SendModel)) == 2 and driven.engine.storage_error
    assert [log.level for log in of(effects, do.Log)] == ["error"]


def test_a_silent_neighbor_costs_the_suspicion_time_and_is_not_waited_for_again():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.deliver(1)
    for _ in range(3):
        effects = driven.step(ev.Heard(Beat(1, 1, 0, 0, Phase.RUNNING)), after=0.5)
    assert driven.engine.stage is Stage.EXCHANGING
    effects = driven.step(ev.Tick(), after=0.5)
    assert of(effects, do.CancelSend) == [do.CancelSend(2)]
    assert driven.engine.stage is Stage.CLOSING
    assert driven.engine.expected() == [1]


def test_the_round_deadline_closes_without_whom_is_missing():
    driven = Driven(timeouts={"heartbeat_s": 0.5, "suspicion_s": 2.0, "idle_transfer_s": 4.0, "round_deadline_s": 4.0})
    driven.begin()
    driven.work("train")
    for _ in range(4):
        for n in (1, 2):
            driven.step(ev.Heard(Beat(n, 1, 0, 0, Phase.RUNNING)))
        assert driven.engine.stage is Stage.EXCHANGING
        driven.step(ev.Tick(), after=1.0)
    assert driven.engine.stage is Stage.CLOSING
    (record,) = [r for r in of(driven.work("close"), do.Record) if r.kind == "round"]
    assert record.fields["missing"] == [1, 2]


def test_a_long_wait_says_what_it_is_for_and_ever_more_rarely():
    driven = Driven(timeouts={"heartbeat_s": 1.0, "suspicion_s": 5.0, "round_deadline_s": 600.0})
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.deliver(2)
    told = {}
    for second in range(1, 101):
        for n in (1, 2):
            for log in of(driven.step(ev.Heard(Beat(n, 1, 0, 0, Phase.RUNNING)), after=0.5), do.Log):
                told[second] = log.message
    assert list(told) == [20, 40, 80]
    assert told[20] == "round 0 has waited 20 s for the models of [1] and for [2] to take ours"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"round_index": -1}, Refusal.ROUND_OUT_OF_RANGE),
        ({"round_index": 5}, Refusal.ROUND_OUT_OF_RANGE),
        ({"round_index": 3}, Refusal.ROUND_TOO_FAR_AHEAD),
        ({"step": 1}, Refusal.ROUND_OUT_OF_RANGE),
        ({"slot": 1}, Refusal.SLOT_OUT_OF_RANGE),
        ({"slot": -1}, Refusal.SLOT_OUT_OF_RANGE),
        ({"index": 1}, Refusal.MALFORMED),
        ({"total": 2}, Refusal.MALFORMED),
        ({"total": 0}, Refusal.MALFORMED),
        ({"mass": 0.0}, Refusal.WEIGHT_OUT_OF_RANGE),
        ({"mass": float("nan")}, Refusal.WEIGHT_OUT_OF_RANGE),
        ({"mass": 1.1e6}, Refusal.WEIGHT_OUT_OF_RANGE),
        ({"sample_count": 0}, Refusal.WEIGHT_OUT_OF_RANGE),
        ({"sample_count": 10**7}, Refusal.WEIGHT_OUT_OF_RANGE),
    ],
)
def test_an_impossible_header_is_refused_and_changes_nothing(changes, code):
    driven = Driven()
    driven.begin()
    before = driven.engine.state()
    (reply,) = of(driven.offer(1, **changes), do.Reply)
    assert (reply.outcome, reply.refusal) == (Outcome.REFUSED, code)
    after = driven.engine.state()
    assert after.pop("refusals") == {code: 1} and before.pop("refusals") == {}
    assert after == before and driven.engine.inbox.buffers() == 0


@pytest.mark.parametrize("limits", [{"round_index": 2}, {"round_index": 4}])
def test_the_rounds_that_a_neighbor_may_be_ahead(limits):
    driven = Driven()
    driven.begin()
    assert bool(of(driven.offer(1, **limits), do.Reply)) == (limits["round_index"] > 2)


@pytest.mark.parametrize(
    ("sender", "incarnation", "code"),
    [(9, 1, Refusal.NOT_A_NEIGHBOR), (1, 4, Refusal.OLD_INCARNATION), (1, 6, Refusal.NO_HANDSHAKE), (1, 5, None)],
)
def test_only_the_greeted_life_of_a_neighbor_is_heard(sender, incarnation, code):
    driven = Driven()
    driven.hello(1, incarnation=5)
    rejection = driven.engine.admits(sender, incarnation)
    assert (rejection.code if rejection else None) == code


def test_a_repeated_model_is_answered_as_a_duplicate_and_folded_once():
    driven = Driven()
    driven.begin()
    driven.deliver(1)
    (reply,) = of(driven.offer(1), do.Reply)
    assert reply.outcome is Outcome.DUPLICATE and driven.engine.totals["models_folded"] == 1


def test_a_push_that_goes_unanswered_is_made_again_ever_more_rarely():
    driven = Driven(timeouts={"heartbeat_s": 1.0, "suspicion_s": 5.0, "round_deadline_s": 600.0})
    driven.begin()
    driven.work("train")
    driven.answered(1)
    asked = []
    for second in range(1, 150):
        for n in (1, 2):
            for again in of(driven.step(ev.Heard(Beat(n, 1, 0, 0, Phase.RUNNING)), after=0.5), do.SendAgain):
                assert again == do.SendAgain(2, 20.0)
                asked.append(second)
    assert asked == [20, 60, 140]
    (sent,) = of(driven.step(ev.Unanswered(2)), do.SendModel)
    assert sent.neighbor == 2


@pytest.mark.parametrize("lost", [False, True])
def test_a_model_that_comes_again_while_it_waits_for_its_turn_is_read_only_if_the_first_is_lost(lost):
    driven = Driven()
    driven.begin()
    driven.offer(2)
    driven.step(ev.Arrived(1))
    effects = driven.offer(2)
    assert not of(effects, do.Admit) and not of(effects, do.Reply)
    if lost:
        assert of(driven.step(ev.Cut(1)), do.Admit) == [do.Admit(2)]
    else:
        effects = driven.deliver(1)
        assert {fold.stream for fold in of(effects, do.Fold)} == {1, 3}
        assert do.Reply(2, Outcome.DUPLICATE) in effects


def test_a_model_of_a_closed_round_is_stale():
    driven = Driven()
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.step(ev.Announced(Announce(n, 1, 0, 0, total=0)))
        driven.answered(n)
    driven.work("close")
    (reply,) = of(driven.offer(1), do.Reply)
    assert reply.outcome is Outcome.STALE


def test_a_neighbor_that_restarts_gets_everything_again_and_what_it_delivered_stays():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.deliver(1)
    effects = driven.hello(1, incarnation=2)
    (again,) = of(effects, do.SendModel)
    assert again.neighbor == 1
    assert driven.engine.waiting_for() == [2]


def test_a_new_life_that_passes_is_not_waited_for_although_its_old_one_began_to_deliver():
    driven = Driven(clusters=2)
    driven.begin()
    driven.work("train")
    driven.deliver(1, total=2)
    driven.hello(1, incarnation=2, round_index=1)
    assert driven.engine.waiting_for() == [1, 2]
    driven.step(ev.Announced(Announce(1, 2, 0, 0, total=0)))
    assert driven.engine.waiting_for() == [2]


def test_a_peer_that_takes_a_higher_incarnation_says_everything_again():
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.answered(2)
    effects = driven.step(ev.Outgrown(70))
    assert [(e.neighbor, e.header.incarnation) for e in of(effects, do.SendModel)] == [(1, 70), (2, 70)]


def test_a_dead_neighbor_is_alive_when_it_answers_and_not_when_it_is_heard():
    """Else a link that is cut one way would raise it again and again, and each time a round would wait for it."""
    driven = Driven()
    driven.begin()
    timeouts = driven.engine.manifest.timeouts
    for _ in range(3):
        driven.step(ev.Heard(Beat(2, 1, 0, 0, Phase.RUNNING)), after=timeouts.suspicion_s / 3)
    assert driven.engine.membership.state(1) is NeighborState.DEAD
    driven.step(ev.GreetFailed(1, None, "no answer"))
    heard = driven.step(ev.Heard(Beat(1, 1, 0, 0, Phase.RUNNING)))
    heard += driven.hello(1, answered=False) + driven.offer(1)
    assert driven.engine.membership.state(1) is NeighborState.DEAD
    assert of(heard + driven.step(ev.Tick(), after=0.2), do.Greet) == [do.Greet(1)], "soon, and once"
    driven.hello(1, answered=True)
    assert driven.engine.membership.state(1) is NeighborState.ALIVE


def test_a_hello_of_a_life_that_is_known_is_no_sign_that_it_hears_us():
    driven = Driven()
    driven.begin()
    for _ in range(12):
        driven.step(ev.Heard(Beat(2, 1, 0, 0, Phase.RUNNING)), after=driven.engine.manifest.timeouts.suspicion_s / 10)
        driven.hello(1, answered=False)
    assert driven.engine.membership.state(1) is NeighborState.DEAD


def test_a_neighbor_that_says_hello_and_cannot_be_reached_is_not_waited_for():
    driven = Driven(start={"rule": "all", "deadline_s": 30.0})
    driven.hello(1)
    driven.hello(2, answered=False)
    assert driven.engine.stage is Stage.JOINING
    driven.step(ev.Tick(), after=30.0)
    driven.work("assign")
    driven.work("train")
    assert driven.engine.waiting_for() == [1]


def test_the_beat_of_one_that_cannot_be_reached_is_answered_so_that_it_learns_our_round():
    driven = Driven()
    driven.hello(1, answered=False)
    driven.step(ev.Heard(Beat(1, 1, 0, 0, Phase.RUNNING)))
    assert driven.engine.answer_to_beat(1) is Refusal.NO_HANDSHAKE
    driven.hello(1, answered=True)
    assert driven.engine.answer_to_beat(1) is None
    driven.step(ev.Heard(Beat(1, 1, 0, 0, Phase.LEAVING)))
    assert driven.engine.answer_to_beat(1) is None, "it said goodbye"


def test_a_person_is_told_of_a_neighbor_that_is_heard_and_cannot_be_reached_but_not_each_time():
    driven = Driven()
    driven.hello(1, answered=False)
    effects = [effect for _ in range(40) for effect in driven.step(ev.GreetFailed(1, None, "nobody listens there"))]
    sentences = [log.message for log in of(effects, do.Log) if log.level == "warning"]
    assert len(sentences) == 4 and all("peer 1 is heard but does not answer" in s for s in sentences)
    assert sentences[0].endswith("nobody listens there")
    driven.hello(1, answered=True)
    assert not driven.engine.views[1].unreachable


@pytest.mark.parametrize(
    ("refusal", "greets", "repeats"),
    [
        (Refusal.NO_HANDSHAKE, True, True),
        (Refusal.OLD_INCARNATION, True, True),
        (Refusal.TOO_MANY_STREAMS, False, True),
        (Refusal.RATE_LIMITED, False, True),
        (Refusal.DIGEST_MISMATCH, False, True),
        (Refusal.NON_FINITE, False, False),
        (Refusal.NORM_BOUND, False, False),
    ],
)
def test_what_a_refusal_leads_to(refusal, greets, repeats):
    driven = Driven()
    driven.begin()
    driven.work("train")
    effects = driven.step(ev.Sent(1, Outcome.REFUSED, refusal), after=1.0)
    assert bool(of(effects, do.Greet)) == greets
    assert bool(of(driven.step(ev.Tick(), after=0.3), do.SendModel)) == repeats


def test_who_answers_hellos_and_refuses_all_else_is_greeted_now_and_then_only():
    driven = Driven()
    driven.begin()
    driven.work("train")
    greetings = 0
    for _ in range(1000):
        effects = driven.step(ev.Sent(1, Outcome.REFUSED, Refusal.NO_HANDSHAKE), after=0.01)
        if do.Greet(1) in effects:
            greetings += 1
            driven.hello(1)
    beats = 10 / driven.engine.manifest.timeouts.heartbeat_s
    assert beats / 2 <= greetings <= beats, "in ten seconds"


def test_a_peer_that_is_two_rounds_behind_pulls_before_it_begins():
    driven = Driven()
    driven.hello(1, round_index=3)
    effects = driven.hello(2, round_index=4)
    assert driven.engine.stage is Stage.CATCHING_UP
    assert [pull.neighbor for pull in of(effects, do.Pull)] == [1, 2]
    driven.step(ev.Pulled(1, True, 3))
    effects = driven.step(ev.Pulled(2, True, 4))
    assert [(work.kind, work.round_index) for work in of(effects, do.Work)] == [("adopt", 0)]
    effects = driven.work("adopt")
    assert driven.engine.round_index == 3 and of(effects, do.Persist)
    said = {(e.neighbor, e.announce.round_index, e.announce.total) for e in of(effects, do.SendAnnounce)}
    assert said <= {(1, 2, 0), (2, 2, 0)}


def test_pulls_that_all_fail_do_not_hold_it_up():
    driven = Driven()
    driven.hello(1, round_index=3)
    driven.hello(2)
    effects = driven.step(ev.Pulled(1, False))
    assert [work.kind for work in of(effects, do.Work)] == ["assign"] and driven.engine.round_index == 0


def test_leaving_persists_what_the_disk_lacks_and_says_goodbye():
    driven = Driven(checkpoint_rounds=0)
    driven.begin()
    driven.work("train")
    for n in (1, 2):
        driven.deliver(n)
        driven.answered(n)
    driven.work("close")
    assert not of(driven.step(ev.LeaveRequested()), do.Stop), "assign is under way"
    effects = driven.work("assign")
    assert not of(effects, do.Persist), "in the middle of a round"
    effects = driven.work("close")
    assert [persist.round_index for persist in of(effects, do.Persist)] == [2]
    effects = driven.step(ev.Persisted(2))
    assert of(effects, do.Stop) == [do.Stop("left")]
    assert {beat.beat.phase for beat in of(effects, do.SendBeat)} == {Phase.LEAVING}
    assert driven.step(ev.Tick()) == []


def test_a_neighbor_that_is_faster_or_claims_to_be_has_two_says_in_a_round():
    driven = Driven(pace="async", rounds=9)
    driven.begin()
    for round_index in range(5):
        driven.deliver(1, round_index=round_index)
    driven.deliver(2)
    assert driven.engine.totals["models_folded"] == 3 and driven.engine.totals["models_unused"] == 3
    driven.work("train")
    driven.work("close")
    driven.work("assign")
    driven.deliver(1, round_index=5)
    assert driven.engine.totals["models_folded"] == 4, "a new round"


@pytest.mark.parametrize("mass", [0.0, 5e-324, 1e-10, 2e6])
def test_a_weight_that_arithmetic_cannot_bear_is_refused(mass):
    driven = Driven(options={"warmup_rounds": 1})
    driven.begin()
    (reply,) = of(driven.offer(1, mass=mass, scalars=(0.5,), total=1), do.Reply)
    assert reply.refusal is Refusal.WEIGHT_OUT_OF_RANGE


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1.7e308])
def test_a_relayed_loss_that_would_not_stay_a_number_is_refused(loss):
    driven = Driven(options={"warmup_rounds": 1})
    driven.begin()
    (reply,) = of(driven.offer(1, scalars=(loss,)), do.Reply)
    assert reply.refusal is Refusal.MALFORMED


@pytest.mark.parametrize("during", ["train", "exchange"])
def test_leaving_in_mid_round_writes_nothing_of_it_or_all_of_it(during):
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
                if of(effects, do.Persist):
                    driven.step(ev.Persisted(1))
                driven.work("assign")
        driven.deliver(1, round_index=1)
        effects = driven.step(ev.LeaveRequested())
        if written and during == "train":
            assert not of(effects, do.Stop), "what is trained is kept"
            effects = driven.work("train")
        if written:
            assert [work.kind for work in of(effects, do.Work)] == ["close"]
            effects = driven.work("close")
        assert [persist.round_index for persist in of(effects, do.Persist)] == written
        if written:
            effects = driven.step(ev.Persisted(2))
        assert of(effects, do.Stop) == [do.Stop("left")]


@pytest.mark.parametrize("during", ["assign", "close", "end_step", "final"])
def test_leaving_waits_for_the_work_under_way_and_for_nothing_more(during):
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
            driven.deliver(n, scalars=(0.0,) if during == "end_step" else ())
            driven.answered(n)
        if during == "final":
            assert driven.engine.stage is Stage.CLOSING
            driven.work("close")
    assert driven.engine.stage in (Stage.ASSIGNING, Stage.CLOSING, Stage.ENDING_STEP, Stage.FINISHING)
    assert not of(driven.step(ev.LeaveRequested()), do.Stop), f"{during} is under way"
    effects = driven.work(during)
    if of(effects, do.Persist):
        effects = driven.step(ev.Persisted(driven.engine.round_index))
    assert of(effects, do.Stop) == [do.Stop("left")]
    assert {beat.beat.phase for beat in of(effects, do.SendBeat)} == {Phase.LEAVING}


def test_a_restarted_peer_does_not_run_ahead_alone():
    run = {"start": {"rule": "all", "deadline_s": 30.0}}
    driven = Driven(**run)
    state = driven.engine.state()

    def restarted():
        again = Driven(**run)
        again.engine = Engine(0, again.graph, again.engine.algorithm, 8, facts=None, resume=state)
        again.step(ev.Tick())
        return again

    suspicion_s = driven.engine.manifest.timeouts.suspicion_s
    alone = restarted()
    alone.step(ev.Tick(), after=suspicion_s)
    assert alone.engine.stage is Stage.JOINING, "it has met nobody"
    alone.step(ev.Tick(), after=30.0)
    assert alone.engine.stage is Stage.ASSIGNING
    met = restarted()
    met.hello(1)
    met.step(ev.Tick(), after=suspicion_s)
    assert met.engine.stage is Stage.ASSIGNING, "it does not wait for the other one longer than for a death"


@pytest.mark.parametrize(("seen", "starts"), [(3, True), (7, False), (0, False)])
def test_who_lost_its_disk_learns_from_a_neighbor_that_it_returns_and_does_not_wait_for_the_dead(seen, starts):
    driven = Driven(start={"rule": "all", "deadline_s": 30.0})
    driven.hello(1, seen=seen)
    driven.step(ev.Tick(), after=driven.engine.manifest.timeouts.suspicion_s)
    assert (driven.engine.stage is Stage.ASSIGNING) is starts


def test_a_round_in_which_a_neighbor_died_says_nothing_about_the_tempo():
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
                driven.step(ev.Heard(Beat(n, 1, now, 0, Phase.RUNNING)), after=0.25 / len(senders))
        assert driven.engine.stage is Stage.CLOSING
        driven.work("close")
        driven.step(ev.Persisted(now + 1))
        driven.work("assign")

    for _ in range(3):
        round_of(0.25, 1, 2, 3)
    assert driven.engine.tempo.least_s() == pytest.approx(0.25)
    round_of(driven.engine.manifest.timeouts.suspicion_s, 1, 2)
    assert driven.engine.membership.state(3) is NeighborState.DEAD
    assert not driven.engine._cut_off()
    assert driven.engine.tempo.least_s() == pytest.approx(0.25)


@pytest.mark.parametrize(("heartbeat_s", "pause_s"), [(0.5, 2.0), (10.0, 10.0)])
def test_greetings_to_who_is_away_are_as_rare_as_beats(heartbeat_s, pause_s):
    timeouts = {"heartbeat_s": heartbeat_s, "suspicion_s": 60.0, "round_deadline_s": 600.0}
    driven = Driven(timeouts=timeouts, start={"rule": "all", "deadline_s": 3600.0})
    for _ in range(12):
        driven.step(ev.GreetFailed(1, None, "away"))
        assert of(driven.step(ev.Tick(), after=pause_s), do.Greet)
    driven.step(ev.GreetFailed(1, None, "away"))
    assert not of(driven.step(ev.Tick(), after=0.99 * pause_s), do.Greet)
    assert of(driven.step(ev.Tick(), after=0.02 * pause_s), do.Greet)


@pytest.mark.parametrize(("theirs", "cut_off"), [(0, True), (9, False), (22, False)])
def test_cut_off_is_who_lost_half_of_its_neighbors_or_left_them_far_behind_not_who_is_behind_itself(theirs, cut_off):
    driven = Driven()
    driven.begin()
    driven.engine.round_index = 9
    driven.hello(2, incarnation=2, round_index=9)
    driven.hello(1, incarnation=2, round_index=theirs)
    assert driven.engine._cut_off() is cut_off


def test_a_checkpoint_resumes_where_it_was_taken():
    driven = Driven()
    driven.begin()
    driven.deliver(1)
    state = driven.engine.state()
    resumed = Engine(0, driven.graph, driven.engine.algorithm, 8, facts=None, resume=state)
    assert resumed.state() == state | {"incarnation": 8}
    assert resumed.inbox.is_duplicate(driven.header(1))
    assert resumed.admits(1, 0).code is Refusal.OLD_INCARNATION


def test_no_timer_is_asked_for_in_the_past_for_long():
    """A tick that finds nothing to do must not ask for another one at once (it would never end)."""
    driven = Driven()
    driven.begin()
    driven.work("train")
    driven.step(ev.Sent(1, Outcome.REFUSED, Refusal.NO_HANDSHAKE))
    for _ in range(3):
        driven.step(ev.Tick())
    (timer,) = of(driven.step(ev.Tick()), do.SetTimer)
    assert timer.at > driven.now


def test_every_effect_of_equal_histories_is_equal():
    def history():
        driven = Driven()
        return [driven.begin(), driven.work("train"), driven.deliver(1), driven.deliver(2), driven.step(ev.Tick(), 1.0)]

    assert history() == history()


def test_a_hello_is_only_for_neighbors():
    driven = Driven()
    digests = {"wire_version": "1", "manifest": "m", "graph": "g", "schema": "s", "initial_models": "i"}
    hello = make_hello(driven.engine, digests, "{}", 1)
    assert (hello.sender, hello.incarnation, hello.phase) == (0, 7, Phase.STARTING)
    assert replace(hello, sender=1).sender == 1
    with pytest.raises(LocalProtocolError, match="no neighbor"):
        make_hello(driven.engine, digests, "{}", 0)

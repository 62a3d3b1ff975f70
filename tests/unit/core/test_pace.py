"""The rules of both paces, each by a table: near and late, whom a step waits for, catching up, round rate, retries."""

from dataclasses import replace

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import RefusalCode
from peer.algorithms.dfca import Dfca
from peer.algorithms.fedspd import FedSpd
from peer.algorithms.fedspd_decisions import FedSpdState
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.asynchronous import Async
from peer.core.constants import DEFAULTS, Constants
from peer.core.engine import Engine
from peer.core.liveness import NeighborState
from peer.core.lockstep import Lockstep, RoundRate
from peer.core.messages import Heartbeat, ModelHeader, Outcome, Pass, Phase, Select
from peer.core.stages import Stage
from peer.core.state import State
from tests.simulation.options import manifest
from tests.unit.algorithms.messages import hello_of

SUSPICION_S, DEADLINE_S = 4.0, 400.0
TIMEOUTS = {"suspicion_s": SUSPICION_S, "round_deadline_s": DEADLINE_S}


class Driven:
    """Peer 0 of a complete graph and its pace; the test plays the neighbors."""

    def __init__(self, pace, peers=3, constants=DEFAULTS, budget=None, **run):
        settings = {"rounds": 40, "clusters": 2, "pace": pace, "timeouts": TIMEOUTS} | run
        self.graph = make_graph("complete", peers, manifest=manifest(**settings))
        algorithm = {"dfca": Dfca, "fedspd": FedSpd}[self.graph.manifest.algorithm](self.graph.manifest, 0, self.graph)
        first = {"model_bytes": 24, "algorithm_state": FedSpdState((0,)), "constants": constants, "budget": budget}
        self.engine = Engine(State(0, self.graph, algorithm, 1, **first))
        self.pace, self.state, self.now = self.engine.pace, self.engine.state, 100.0
        self.step(ev.Tick())

    def step(self, event, after=0.0):
        self.now += after
        return self.engine.step(event, self.now)

    def hello(self, n, round_index=0, incarnation=1):
        hello = hello_of(n, incarnation, round_index)
        return self.step(ev.HandshakeDone(hello, answered=True))

    def heartbeat(self, n, round_index=0, after=0.0):
        return self.step(ev.HeartbeatReceived(Heartbeat(n, 1, round_index, Phase.RUNNING)), after)

    def work(self, kind, **changes):
        state = FedSpdState((0,), 4, selected=0, selected_at=(0, 0))
        return self.step(ev.WorkDone(kind, replace(state, **changes)))

    def passes(self, n, round_index=0, step=0):
        return self.step(ev.PassReceived(Pass(n, 1, round_index, step)))

    def exchange(self):
        """Meet all neighbors, assign and train."""
        for n in self.state.neighbors:
            self.hello(n)
        self.work("assign")
        return self.work("train")

    def round_of(self, seconds, *present):
        """One more round, of this duration from its beginning, in which these neighbors pass."""
        t = self.engine.round_index
        effects = self.work("assign") + self.work("train")
        effects += self.take_all(*present)
        while self.now < self.state.round.began_at + seconds - 1e-9:
            for n in present:
                effects += self.heartbeat(n, t)
            effects += self.step(ev.Tick(), after=0.25)
        for n in present:
            effects += self.passes(n, t)
        effects += self.work("close") + self.step(ev.CheckpointWritten(t + 1))
        return effects

    def take_all(self, *neighbors):
        """Let neighbors take everything that is offered to them."""
        effects = []
        for n in neighbors:
            while self.state.neighbors[n].outbox.pending():
                effects += self.step(ev.SendAnswered(n))
        return effects

    def round_by_timers(self, *present):
        """One more round, in which these neighbors pass at once, and then only timers are due."""
        t = self.engine.round_index
        effects = self.work("assign") + self.work("train") + self.take_all(*present)
        for n in present:
            effects += self.passes(n, t)
        while self.engine.stage is Stage.EXCHANGING:
            self.now = max(self.now, of(effects, do.SetTimer)[-1].at)
            effects += self.step(ev.Tick())
        return effects + self.work("close") + self.step(ev.CheckpointWritten(t + 1))


def header(sender, round_index=0, step=0, slot=0):
    return ModelHeader(sender, 1, round_index, step, slot, 0, 1, 4, 1.0, 24, "float32")


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


# ---- near, behind, late: whom a step counts on ------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", ["lockstep", "async"])
@pytest.mark.parametrize(
    ("round_of_1", "late", "expected"),
    [
        (12, False, False),  # two rounds ahead: it has closed our round
        (11, False, True),
        (10, False, True),
        (2, False, True),  # 8 behind, as `wait_rounds_behind` allows
        (1, False, False),
        (10, True, True),
        (9, True, True),
        (8, True, False),  # late: waited for only one round behind
    ],
)
def test_near_neighbors_are_expected(pace, round_of_1, late, expected):
    driven = Driven(pace)
    driven.exchange()
    driven.state.enter_round(10)
    driven.hello(2, 10, incarnation=2)
    driven.hello(1, round_of_1, incarnation=2)
    driven.state.neighbors[1].is_straggler = late
    assert list(driven.pace.counted_on()) == [1, 2] if expected else list(driven.pace.counted_on()) == [2]


@pytest.mark.parametrize(("most", "expected"), [(1, []), (3, []), (4, [1]), (8, [1])])
def test_wait_rounds_behind_decides_how_far_behind_a_neighbor_is_waited_for(most, expected):
    driven = Driven("lockstep", peers=2, constants=Constants(wait_rounds_behind=most))
    driven.exchange()
    driven.state.enter_round(4)
    assert list(driven.pace.counted_on()) == driven.engine.waits.waiting_for(driven.now) == expected


@pytest.mark.parametrize(("pace", "counted_on"), [("lockstep", [1, 2, 4]), ("async", [1, 4])])
def test_reachable_neighbors_are_counted_on_and_in_lockstep_one_that_may_be_restarting(pace, counted_on):
    driven = Driven(pace, peers=5, start={"wait_for": "all", "deadline_s": 30.0})
    for n in (1, 2, 4):
        driven.hello(n)
    driven.step(ev.HeartbeatReceived(Heartbeat(2, 1, 0, Phase.LEAVING)))
    driven.step(ev.HeartbeatAnswered(4, lost=True))  # suspect is live
    assert list(driven.pace.counted_on()) == counted_on  # 2 left, 3 was never met


@pytest.mark.parametrize("pace", ["lockstep", "async"])
def test_no_neighbor_is_expected_in_a_round_without_an_exchange(pace):
    driven = Driven(pace)
    driven.exchange()
    driven.state.plan = replace(driven.state.plan, steps=0)
    assert list(driven.pace.counted_on()) == [] and driven.engine.catch_up.ahead() == []


def test_neighbor_that_misses_the_deadline_is_late_until_it_delivers_in_time():
    driven = Driven("lockstep", timeouts=TIMEOUTS | {"round_deadline_s": 4.0})
    driven.exchange()
    for _ in range(5):
        driven.heartbeat(1), driven.heartbeat(2)
        driven.passes(2)
        driven.step(ev.Tick(), after=1.0)
    assert driven.engine.stage is Stage.CLOSING
    assert [driven.state.neighbors[n].is_straggler for n in (1, 2)] == [True, False]
    driven.work("close")
    driven.step(ev.CheckpointWritten(1))
    driven.heartbeat(1, 1), driven.heartbeat(2, 1)
    driven.round_of(0.25, 1, 2)
    assert not driven.state.neighbors[1].is_straggler


# ---- what a step waits for --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pace", "waiting"), [("lockstep", [1, 2]), ("async", [])])
def test_lockstep_waits_for_models_and_answers_and_async_for_neither(pace, waiting):
    driven = Driven(pace)
    driven.exchange()
    assert driven.engine.waits.waiting_for(driven.now) == driven.engine.waits.owed_to() == waiting
    assert driven.engine.stage is (Stage.EXCHANGING if waiting else Stage.CLOSING)


def test_lockstep_step_is_over_when_delivered_and_taken_or_at_the_deadline():
    driven = Driven("lockstep")
    driven.exchange()
    assert not driven.pace.may_close(driven.now)
    assert driven.pace.may_close(driven.state.round.began_at + DEADLINE_S)
    driven.passes(1), driven.passes(2)
    assert driven.engine.waits.waiting_for(driven.now) == [] and not driven.pace.may_close(driven.now), (
        "our offers are not answered"
    )
    driven.step(ev.SendAnswered(1))
    assert driven.engine.waits.owed_to() == [2]
    driven.step(ev.SendAnswered(2))
    assert driven.engine.stage is Stage.CLOSING


def test_lockstep_asks_for_a_tick_at_the_round_deadline():
    driven = Driven("lockstep")
    driven.exchange()
    began = driven.state.round.began_at
    assert list(driven.pace.next_time(began)) == [began + DEADLINE_S]
    assert list(driven.pace.next_time(began + DEADLINE_S)) == []
    assert list(Driven("async").pace.next_time(began)) == []


@pytest.mark.parametrize(("pace", "missing"), [("lockstep", [2]), ("async", [])])
def test_lockstep_waits_for_selections_before_offers(pace, missing):
    driven = Driven(pace, algorithm="fedspd", options={"first_round": "paper", "align_every": 0})
    for n in (1, 2):
        driven.hello(n)
    driven.work("assign")
    driven.step(ev.SelectReceived(Select(1, 1, 0, 0)))
    assert driven.pace.missing_selections() == missing
    assert bool(of(driven.work("train"), do.TakeSnapshot)) == (not missing)


@pytest.mark.parametrize(
    ("pace", "aggregation", "turn"),
    [
        ("lockstep", None, 1),
        ("lockstep", "sequential", 1),
        ("lockstep", "batch", 1),
        ("lockstep", "on_arrival", None),
        ("async", None, None),
        ("async", "on_arrival", None),
        ("async", "batch", None),
    ],
)
def test_turn_is_the_first_neighbor_that_has_not_delivered(pace, aggregation, turn):
    driven = Driven(pace, aggregation=aggregation)
    driven.exchange()
    assert driven.pace.turn() == turn
    if turn:
        driven.passes(1)
        assert driven.pace.turn() == 2
        driven.passes(2)
        assert driven.pace.turn() == -1


# ---- age of models and rounds ahead -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pace", "weight", "rho"),
    [("lockstep", None, 0), ("lockstep", 0.9, 0.9), ("async", None, 0.5), ("async", 0.0, 0), ("async", 0.9, 0.9)],
)
def test_stale_models_are_folded_by_default_only_in_async_pace(pace, weight, rho):
    driven = Driven(pace, stale_weight=weight)
    assert driven.state.manifest.rho == rho and driven.pace.stale_rounds_max == (1 if rho else 0)
    driven = Driven(pace, stale_weight=weight, constants=Constants(stale_rounds=3))
    assert driven.pace.stale_rounds_max == (3 if rho else 0)


@pytest.mark.parametrize(
    ("weight", "age", "folded"),
    [(None, 0, 1.0), (None, 1, 0.5), (None, 2, None), (0.3, 1, 0.3), (1.0, 1, 1.0), (0.0, 0, 1.0), (0.0, 1, None)],
)
def test_a_stale_model_weighs_less_or_is_dropped(weight, age, folded):
    driven = Driven("async", stale_weight=weight)
    driven.exchange()
    driven.state.enter_round(5)
    driven.state.stage = Stage.TRAINING
    driven.heartbeat(1, 5)
    arrival = Arrival(header(1, 5 - age), stream=1)
    effects = driven.step(ev.ArrivalOffered(arrival)) + driven.step(ev.ArrivalComplete(arrival))
    assert [target.weight for fold in of(effects, do.FoldArrival) for target in fold.targets] == (
        [folded] if folded else []
    )
    assert (do.AnswerArrival(arrival, Outcome.STALE) in effects) == (folded is None)


@pytest.mark.parametrize(
    ("pace", "stage", "late"),
    [
        ("lockstep", Stage.EXCHANGING, [(3, 1), (4, 0)]),
        ("lockstep", Stage.ENDING_STEP, [(3, 1), (4, 0), (4, 1)]),
        ("lockstep", Stage.CLOSING, [(3, 1), (4, 0), (4, 1)]),
        ("async", Stage.EXCHANGING, [(3, 1), (4, 0)]),
        ("async", Stage.CLOSING, [(3, 1), (4, 0)]),
    ],
)
def test_step_is_late_once_it_is_over_and_in_lockstep_while_it_is_closed(pace, stage, late):
    driven = Driven(pace)
    driven.state.enter_round(4)
    driven.state.stage = stage
    driven.state.round.enter(driven.state.round.index, 1)
    places = [(3, 1), (4, 0), (4, 1), (4, 2), (5, 0)]
    assert [place for place in places if driven.pace.is_closed(place)] == late


@pytest.mark.parametrize(("pace", "refused_from"), [("lockstep", 7), ("async", None)])
def test_lockstep_refuses_messages_more_than_rounds_ahead(pace, refused_from):
    driven = Driven(pace)
    driven.state.enter_round(4)
    driven.hello(1, 4)
    refused = {t: r for t in range(12) if (r := driven.engine.rejects_control(Pass(1, 1, t, 0))) is not None}
    assert list(refused) == (list(range(refused_from, 12)) if refused_from else [])
    assert all(rejection.code is RefusalCode.ROUND_TOO_FAR_AHEAD for rejection in refused.values())


@pytest.mark.parametrize(
    ("pace", "known", "readable"),
    [
        ("lockstep", True, [(0, 0), (1, 0)]),
        ("lockstep", False, [(0, 0)]),  # what is late does not depend on selections
        ("async", True, [(0, 0), (1, 0), (1, 1), (2, 0)]),
        ("async", False, [(0, 0), (1, 0), (1, 1), (2, 0)]),
    ],
)
def test_lockstep_reads_models_of_steps_that_have_begun_and_async_all(pace, known, readable):
    driven = Driven(pace)
    driven.state.enter_round(1)
    places = [(0, 0), (1, 0), (1, 1), (2, 0)]
    found = [place for place in places if driven.pace.may_read(place, selections_known=known)]
    assert found == readable


@pytest.mark.parametrize(
    ("pace", "run", "most"),
    [
        ("lockstep", {}, None),
        ("async", {}, 2),
        ("async", {"constants": Constants(models_per_round=5)}, 5),
        ("async", {"screening": {"trimmed_mean": 0.2}}, 1),
    ],
)
def test_async_takes_so_many_models_of_a_neighbor_and_slot_in_a_round(pace, run, most):
    driven = Driven(pace, **run)
    for folded in range(8):
        unwanted = driven.engine.receiver.is_unwanted
        assert unwanted(header(1)) == (most is not None and folded >= most)
        driven.state.arrivals.mark_folded(header(1, folded))
    assert not unwanted(header(2)) and not unwanted(header(1, slot=1))


# ---- selections of both paces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pace", "counted", "answered"),
    [
        ("lockstep", {1: 5}, 5),  # the present round
        ("async", {1: 6, 2: 4}, 6),  # the newest that is not stale; 3's is too old
    ],
)
def test_selections_that_count_in_round_5(pace, counted, answered):
    driven = Driven(pace, peers=4)
    driven.state.enter_round(5)
    for n, rounds in {1: (4, 5, 6), 2: (3, 4), 3: (3,)}.items():
        for t in rounds:
            driven.state.neighbors[n].note_select(Select(n, 1, t, t % 2))
    assert {select.sender: select.round_index for select in driven.pace.selections()} == counted
    assert driven.pace.selection_of(driven.state.neighbors[1], 5).round_index == answered


def test_lockstep_counts_selections_only_in_the_first_step():
    driven = Driven("lockstep")
    driven.state.neighbors[1].note_select(Select(1, 1, 0, 0))
    assert len(driven.pace.selections()) == 1
    driven.state.round.enter(driven.state.round.index, 1)
    assert driven.pace.selections() == []


@pytest.mark.parametrize(("pace", "wanted_from", "reposted_from"), [("lockstep", 3, 3), ("async", 0, 3)])
def test_rounds_whose_messages_are_sent_and_sent_again(pace, wanted_from, reposted_from):
    driven = Driven(pace)
    driven.hello(1, 3)
    driven.state.enter_round(5)
    neighbor = driven.state.neighbors[1]
    assert driven.pace.oldest_wanted(neighbor) == wanted_from
    assert driven.pace.repost_from(neighbor) == reposted_from
    neighbor.round_index = 7
    assert driven.pace.repost_from(neighbor) == (7 if pace == "lockstep" else 5)


@pytest.mark.parametrize(("pace", "kept"), [("lockstep", []), ("async", [0])])
def test_selections_are_kept_as_long_as_their_models_may_come(pace, kept):
    driven = Driven(pace, peers=2)
    driven.hello(1)
    driven.state.neighbors[1].note_select(Select(1, 1, 0, 0))
    driven.round_of(0.25, 1)
    assert driven.engine.round_index == 1 and list(driven.state.neighbors[1].selections) == kept


# ---- catching up ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "most", "ahead"),
    [
        ((1, 1, 0), 8, []),
        ((2, 0, 0), 8, []),  # a few that are a little ahead wait for us
        ((2, 2, 0), 8, [1, 2]),  # most are
        ((8, 0, 0), 8, []),
        ((9, 0, 0), 8, [1]),  # long ago for one
        ((4, 0, 0), 3, [1]),
        ((9, 2, 0), 8, [1, 2]),
    ],
)
def test_peer_is_behind_when_most_neighbors_are_two_rounds_ahead_or_one_is_far_ahead(rounds, most, ahead):
    driven = Driven("lockstep", peers=4, constants=Constants(wait_rounds_behind=most))
    driven.exchange()
    for n, t in zip((1, 2, 3), rounds, strict=True):
        driven.heartbeat(n, t)
    assert driven.engine.catch_up.claims_ahead() == ahead
    alone = len(ahead) == 1
    assert driven.engine.catch_up.ahead() == ([] if alone else ahead), "one neighbor alone is not believed"
    for n in ahead:
        driven.engine.state.neighbors[n].note_model(rounds[n - 1])
    assert driven.engine.catch_up.ahead() == ahead, "its model is"


def test_joining_peer_is_behind_as_soon_as_one_neighbor_is_two_rounds_ahead():
    driven = Driven("lockstep", peers=4)
    driven.hello(2, 2)
    driven.hello(1), driven.hello(3)
    assert driven.engine.stage is Stage.CATCHING_UP


@pytest.mark.parametrize(("pace", "later"), [("lockstep", True), ("async", False)])
def test_async_catches_up_only_when_it_joins(pace, later):
    driven = Driven(pace)
    assert driven.engine.catch_up.is_due()
    driven.exchange()
    assert driven.engine.catch_up.is_due() == later


# ---- the round rate of a partitioned peer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durations", "least"),
    [
        ([], 0.0),
        ([60.0], 0.0),
        ([60.0, 3.0], 3.0),
        ([60.0, 1.0, 2.0, 3.0, 4.0], 3.0),
        ([60.0, 1.0, 9.0], 1.0),
        ([60.0, 1.0, 2.0, 9.0], 2.0),
        ([60.0] + [1.0] * 6 + [9.0] * 2, 1.0),
        ([60.0] + [1.0] * 5 + [9.0] * 3, 9.0),
        ([9.0] * 8 + [1.0] * 8, 1.0),
    ],
)
def test_round_rate_is_the_upper_quartile_without_the_first_round(durations, least):
    rate = RoundRate(8)
    for seconds in durations:
        rate.add(seconds)
    assert rate.duration_min_s() == least


@pytest.mark.parametrize(("window", "kept_s"), [(1, 1.0), (3, 3.0), (8, 4.0)])
def test_rate_window_rounds_decides_which_rounds_a_partitioned_peer_goes_by(window, kept_s):
    driven = Driven("lockstep", constants=Constants(rate_window_rounds=window))
    driven.hello(1), driven.hello(2)
    for seconds in (1.0, 4.0, 5.0, 3.0, 1.0):
        driven.round_of(seconds, 1, 2)
    driven.round_by_timers()  # both neighbors are silent, and die
    assert {neighbor.liveness.state for neighbor in driven.state.neighbors.values()} == {NeighborState.DEAD}
    began = driven.now
    driven.round_by_timers()
    assert driven.now - began == pytest.approx(kept_s)


def test_a_round_whose_neighbor_went_on_without_us_does_not_count_for_the_round_rate():
    """A link cut from us to 1: 1 marks us dead and is two rounds ahead before our calls to it have failed for long enough."""
    driven = Driven("lockstep", constants=Constants(rate_window_rounds=1))
    driven.hello(1), driven.hello(2)
    for _ in range(2):
        driven.round_of(1.0, 1, 2)
    t = driven.engine.round_index
    driven.work("assign"), driven.work("train"), driven.take_all(1, 2)
    driven.passes(2, t)
    for _ in range(10):
        driven.heartbeat(1, t), driven.heartbeat(2, t, after=1.0)
    driven.heartbeat(2, t + 1), driven.heartbeat(1, t + 2)
    assert driven.engine.stage is Stage.CLOSING
    assert driven.state.neighbors[1].liveness.is_live and driven.state.round.notes.missing == [1]
    driven.work("close")
    assert driven.pace.rate.duration_min_s() == 1.0


def test_partitioned_peer_keeps_its_round_rate_and_logs_it_once():
    driven = Driven("lockstep")
    driven.hello(1), driven.hello(2)
    for _ in range(3):
        driven.round_of(3.0, 1, 2)
    driven.round_of(6.0, 2)  # neighbor 1 dies: half of the neighbors
    durations, logs = [], []
    for t in (4, 5):
        began = driven.now
        driven.heartbeat(2, t)
        logs += of(driven.round_by_timers(2), do.Log)
        durations.append(driven.now - began)
    assert durations == [pytest.approx(3.0)] * 2
    assert len([log for log in logs if "partitioned" in log.message]) == 1
    driven.hello(1, 6, incarnation=2)
    began = driven.now
    driven.round_by_timers(1, 2)
    assert driven.now == began, "neighbor 1 is back"
    assert not driven.pace.partition.holds_rate, "the next partition is logged again"


@pytest.mark.parametrize(
    ("round_of_1", "late", "keeps"),
    [(0, False, True), (0, True, False), (1, False, False), (9, False, False), (22, False, False)],
)
def test_peer_is_partitioned_if_half_of_its_neighbors_are_far_behind_not_if_they_are_ahead(round_of_1, late, keeps):
    driven = Driven("lockstep")
    driven.exchange()
    driven.pace.rate.add(5.0), driven.pace.rate.add(5.0)
    driven.state.enter_round(9)
    driven.hello(2, 9, incarnation=2)
    driven.hello(1, round_of_1, incarnation=2)
    driven.state.neighbors[1].is_straggler = late
    assert driven.pace.partition.keeps_rate(driven.now) == keeps


@pytest.mark.parametrize(("met", "keeps"), [((), True), ((2,), False)])
def test_a_peer_that_no_new_neighbor_answers_keeps_the_rate_that_it_had_with_others(met, keeps):
    """A later graph file has replaced all its edges, and its new neighbors do not have the file yet."""
    driven = Driven("lockstep")
    driven.state.round_seconds.extend([5.0, 5.0])
    driven.state.took_part = True
    driven.state.enter_round(9)
    for n in met:
        driven.hello(n, 9)
    while driven.engine.stage is Stage.JOINING:
        driven.step(ev.Tick(), after=1.0)
        for n in met:
            driven.heartbeat(n, 9)
    began = driven.now
    driven.round_by_timers(*met)
    assert driven.now - began == pytest.approx(5.0 if keeps else 0.0)


# ---- retries ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suspicions", "at"), [(1.0, [4, 12, 28]), (2.0, [8, 24]), (4.0, [16])])
def test_retry_after_suspicions_decides_when_an_unanswered_push_is_retried(suspicions, at):
    driven = Driven("lockstep", peers=2, constants=Constants(retry_after_suspicions=suspicions))
    driven.exchange()
    retried = []
    for second in range(1, 40):
        for effect in of(driven.heartbeat(1, after=1.0), do.RetryIfStalled):
            assert effect == do.RetryIfStalled(1, suspicions * SUSPICION_S / 2)
            driven.step(ev.SendStalled(1))
            retried.append(second)
    assert retried == at


def test_a_push_that_still_moves_is_looked_at_again_after_the_same_time():
    driven = Driven("lockstep", peers=2, constants=Constants(retry_after_suspicions=1.0))
    driven.exchange()
    looked = [second for second in range(1, 14) if of(driven.heartbeat(1, after=1.0), do.RetryIfStalled)]
    assert looked == [4, 8, 12]


@pytest.mark.parametrize(("name", "kind"), [("lockstep", Lockstep), ("async", Async)])
def test_manifest_names_the_pace(name, kind):
    assert type(Driven(name).pace) is kind


# ---- neighbors of another speed, and neighbors that do not do their part -----------------------------------------------------


@pytest.mark.parametrize(
    ("pace", "own", "told", "age"),
    [
        ("async", 5, 5, 0),
        ("async", 6, 6, 1),
        ("async", 8, 8, 3),
        ("async", 90, 6, 1),  # a slower neighbor, which is in its next round: its newest model
        ("async", 90, 0, 1),  # nothing newer was heard of it
        ("async", 90, 9, 4),  # it was under way for four of its rounds
        ("async", 3, 90, 0),  # a faster one
        ("lockstep", 90, 6, 85),  # all count the same rounds
    ],
)
def test_age_of_a_model_of_round_5_is_counted_by_the_slower_end(pace, own, told, age):
    driven = Driven(pace)
    driven.state.enter_round(own)
    driven.state.neighbors[1].round_index = told
    assert driven.pace.age(header(1, 5)) == age


@pytest.mark.parametrize("pace", ["lockstep", "async"])
def test_async_tells_each_round_to_neighbors_and_lockstep_does_not(pace):
    driven = Driven(pace)
    effects = [effect for n in driven.state.neighbors for effect in driven.hello(n)]
    for n in driven.state.neighbors:
        effects += driven.step(ev.HeartbeatAnswered(n))
    driven.now += 0.5
    driven.work("assign"), driven.work("train")
    effects = driven.work("close") + driven.step(ev.CheckpointWritten(1)) if pace == "async" else []
    assert bool([e for e in of(effects, do.SendHeartbeat) if e.heartbeat.round_index == 1]) == (pace == "async")


def test_models_behind_a_neighbor_that_delivers_nothing_are_folded_before_the_deadline():
    driven = Driven("lockstep", timeouts=TIMEOUTS | {"round_deadline_s": 8.0}, clusters=1)
    driven.exchange()
    arrival = Arrival(header(2), stream=1)
    effects = driven.step(ev.ArrivalOffered(arrival)) + driven.step(ev.ArrivalComplete(arrival))
    began = driven.state.round.began_at
    while driven.engine.stage is Stage.EXCHANGING and driven.now < began + 5.5:
        driven.heartbeat(1), driven.heartbeat(2)
        effects += driven.step(ev.Tick(), after=0.5)
    assert not of(effects, do.FoldArrival), "the turn is that of neighbor 1"
    driven.heartbeat(1)
    (fold,) = of(driven.step(ev.Tick(), after=0.6), do.FoldArrival)
    assert fold.header.sender == 2


def missed_rounds(driven, count):
    """Let neighbor 1 miss rounds while neighbor 2 passes; return the seconds that each lasted."""
    lasted = []
    for _ in range(count):
        t, began = driven.engine.round_index, driven.now
        driven.work("assign"), driven.work("train"), driven.take_all(1, 2)
        while driven.engine.stage is Stage.EXCHANGING:
            driven.heartbeat(1, t), driven.heartbeat(2, t), driven.passes(2, t)
            driven.step(ev.Tick(), after=0.25)
        lasted.append(driven.now - began)
        driven.work("close"), driven.step(ev.CheckpointWritten(t + 1))
    return lasted


def test_neighbor_that_does_not_deliver_is_waited_for_ever_less_and_again_when_it_delivers():
    driven = Driven("lockstep", timeouts=TIMEOUTS | {"round_deadline_s": 20.0}, rounds=100)
    for n in driven.state.neighbors:
        driven.hello(n)
    for _ in range(4):
        driven.round_of(1.0, 1, 2)
    lasted = missed_rounds(driven, 12)
    assert lasted[0] >= 20.0 and lasted[1] >= 20.0, "at first to the deadline"
    assert sum(lasted[2:]) < 20.0, lasted
    driven.step(ev.SendAnswered(1))
    for _ in range(60):
        driven.round_of(1.0, 1, 2)
    assert driven.state.neighbors[1].misses == 0 and 1 in list(driven.pace.counted_on())


def test_neighbor_whose_transfers_stop_twice_is_not_waited_for_in_the_step():
    driven = Driven("lockstep", clusters=1)
    driven.exchange()
    driven.take_all(1, 2), driven.passes(2)
    for stream in (1, 2):
        assert driven.engine.stage is Stage.EXCHANGING
        arrival = Arrival(header(1), stream=stream)
        driven.step(ev.ArrivalOffered(arrival)), driven.step(ev.ArrivalLost(arrival, stalled=True))
    assert driven.engine.stage is Stage.CLOSING

"""The numbers of all sites at one peer, event by event; whole runs are in tests/simulation/test_shared_scaling.py."""

from __future__ import annotations

import pytest

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.engine import Engine
from peer.core.messages import Numbers, Statistics
from peer.core.sites import Sites
from peer.core.stages import Stage
from peer.core.state import State
from tests.unit.core.test_engine import Driven, of

OWN = {peer: Numbers.of(5.0, peer) for peer in range(3)}


def problem(numbers):
    return "" if numbers[0] >= 2 else f"expected at least 2 training samples of a site, got {numbers[0]:g}"


def driven(**run):
    """Return peer 0 of three in a run with shared scaling, whose neighbors 1 and 2 the test plays."""
    made = Driven(start={"wait_for": "all", "deadline_s": 60.0}, **run)
    state = made.engine.state
    sites = Sites(0, OWN[0], (0, 1, 2), problem)
    again = State(0, made.graph, state.algorithm, 7, model_bytes=24, algorithm_state=state.algorithm_state, sites=sites)
    made.engine = Engine(again)
    made.step(ev.Tick())
    return made


def said(*sites, sender=1):
    return Statistics(sender, 1, Numbers.of(*[part for site in sites for part in (site, OWN[site].array)]))


def take(made, message):
    assert made.engine.rejects_control(message) is None
    return made.step(ev.StatisticsReceived(message))


def sent(effects):
    return {
        each.neighbor: [int(n) for n in each.message.numbers.array[::3]]
        for each in of(effects, do.SendControl)
        if isinstance(each.message, Statistics)
    }


def test_own_numbers_go_to_each_neighbor_that_is_met_and_others_are_sent_on():
    made = driven()
    assert sent(made.hello(1)) == {1: [0]}
    made.answered(1)
    assert sent(made.hello(2)) == {2: [0]}
    made.answered(2)
    assert sent(take(made, said(1, sender=1))) == {1: [1], 2: [1]}  # back to its site too, which compares
    assert made.engine.stage is Stage.JOINING


def test_the_first_round_begins_once_all_numbers_are_known_and_accepted():
    made = driven()
    made.hello(1), made.hello(2)
    made.answered(1), made.answered(2)
    effects = take(made, said(1, 2, sender=1))
    (agree,) = of(effects, do.Agree)
    assert agree.numbers == tuple(OWN.items())
    assert made.engine.stage is Stage.JOINING, "neighbors have not accepted what is new"
    made.answered(1)
    assert made.engine.stage is Stage.JOINING
    made.answered(2)
    assert made.engine.stage is Stage.ASSIGNING


def test_a_neighbor_that_dies_need_not_accept():
    made = driven(timeouts={"suspicion_s": 2.0, "round_deadline_s": 50.0})
    made.hello(1), made.hello(2)
    made.answered(1)
    take(made, said(1, 2, sender=1))
    made.answered(1)
    assert made.engine.stage is Stage.JOINING
    for _ in range(40):  # the start waits for its return as long as a restart may take
        made.heartbeat(1, after=0.5)
    assert made.engine.stage is Stage.ASSIGNING


@pytest.mark.parametrize(
    ("numbers", "code", "words"),
    [
        (Numbers.of(1, 5.0), RefusalCode.MALFORMED, "expected a peer and its 2 numbers, for each site, got 2 numbers"),
        (Numbers(), RefusalCode.MALFORMED, "got 0 numbers"),
        (Numbers.of(7, 5.0, 1.0), RefusalCode.MALFORMED, "expected a peer of the graph file, got 7"),
        (Numbers.of(0.5, 5.0, 1.0), RefusalCode.MALFORMED, "expected a peer of the graph file, got 0.5"),
        (Numbers.of(2, 1.0, 1.0), RefusalCode.MALFORMED, "statistics of peer 2: expected at least 2 training samples"),
        (
            Numbers.of(0, 5.0, 9.0),
            RefusalCode.MEANING_MISMATCH,
            "statistics of peer 0: expected those that it gave before",
        ),
        (Numbers.of(2, 5.0, 1.0, 2, 5.0, 3.0), RefusalCode.MEANING_MISMATCH, "statistics of peer 2: expected those"),
    ],
)
def test_numbers_that_cannot_be_believed_change_nothing(numbers, code, words):
    made = driven()
    made.hello(1)
    rejection = made.engine.rejects_control(Statistics(1, 1, numbers))
    assert rejection is not None and rejection.code is code and words in rejection.reason
    assert made.engine.state.sites.known == {0: OWN[0]}


def test_numbers_are_refused_from_strangers_and_in_a_run_without_shared_scaling():
    made = driven()
    assert made.engine.rejects_control(said(1, sender=9)).code is RefusalCode.NOT_A_NEIGHBOR
    assert made.engine.rejects_control(said(1)).code is RefusalCode.NO_HANDSHAKE
    plain = Driven()
    plain.hello(1)
    assert "expected none in a run that needs none of sites" in plain.engine.rejects_control(said(1)).reason


def test_a_peer_whose_numbers_are_refused_ends_with_the_reason():
    made = driven()
    made.hello(1)
    refusal = Refusal(
        RefusalCode.MEANING_MISMATCH, "statistics of peer 0: expected those that it gave before, got others"
    )
    effects = made.step(ev.SendAnswered(1, refusal))
    assert [each.status for each in of(effects, do.Stop)] == ["refused"]
    assert any("peer 1 refused the numbers that this peer knows" in each.message for each in of(effects, do.Log))


def test_a_site_that_is_missing_at_the_start_deadline_ends_the_run_and_is_named():
    made = driven()
    made.hello(1), made.hello(2)
    made.answered(1), made.answered(2)
    take(made, said(2, sender=2))
    made.step(ev.Tick(), after=59.9)
    assert made.engine.stage is Stage.JOINING
    effects = made.step(ev.Tick(), after=0.2)
    assert [each.status for each in of(effects, do.Stop)] == ["alone"]
    assert any("got none of peers [1]" in each.message for each in of(effects, do.Log))


def test_numbers_pass_a_model_that_a_restarted_neighbor_does_not_read():
    """Such a model is in its outbox again, in front of all that is queued later."""
    made = driven()
    made.hello(1), made.hello(2)
    made.answered(1), made.answered(2)
    take(made, said(1, 2, sender=1))
    made.answered(1), made.answered(2)
    made.work("assign"), made.work("train")
    effects = made.hello(1, incarnation=2)
    first = [each for each in effects if isinstance(each, do.SendControl | do.SendModel) and each.neighbor == 1]
    assert sent(effects)[1] == [0, 1, 2]
    assert isinstance(first[0], do.SendControl)

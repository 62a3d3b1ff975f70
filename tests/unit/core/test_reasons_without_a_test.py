"""Why a neighbor has no test after the last round: by the schedule first, then by what became of it."""

import pytest

from coordinator_free_bootstrap import make_graph
from peer.algorithms.local import Local
from peer.core import effects as do
from peer.core import events as ev
from peer.core.messages import Pass
from peer.core.model_tests import REASONS, TESTED_MAX, absent, all_skipped, drawn
from peer.core.state import State
from tests.simulation.options import manifest
from tests.unit.core.test_engine import Driven, of


def close_of(driven: Driven, effects: list[do.Effect]) -> do.Work:
    (work,) = (work for work in of(effects, do.Work) if work.kind == "close")
    assert driven.engine.round_index == work.round_index
    return work


def test_the_close_of_the_last_round_names_neighbors_that_passed_and_that_delivered():
    driven = Driven(rounds=1)
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.answered(2)
    driven.deliver(1)
    effects = driven.step(ev.PassReceived(Pass(2, 1, 0, 0)))
    assert close_of(driven, effects).absent == ((1, "none"), (2, "none")), "what counts where nothing was delivered"


def test_earlier_rounds_test_nothing():
    driven = Driven(rounds=2)
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.answered(2)
    driven.deliver(1)
    assert close_of(driven, driven.deliver(2)).absent == ()


def test_a_neighbor_that_is_too_late_and_one_that_is_dead():
    driven = Driven(rounds=1, timeouts={"suspicion_s": 2.0, "round_deadline_s": 60.0})
    driven.begin()
    driven.work("train")
    driven.answered(1)
    driven.answered(2)
    effects: list[do.Effect] = []
    for _ in range(70):  # neighbor 1 is heard, and sends nothing; neighbor 2 is silent
        effects += driven.heartbeat(1, after=1.0)
        effects += driven.step(ev.HeartbeatAnswered(1))
    assert dict(close_of(driven, effects).absent) == {1: "late", 2: "dead"}


@pytest.mark.parametrize(
    ("run", "reason"),
    [({"dynamic_edges": 0.999}, "edge_down"), ({"participation": 0.01}, "sat_out")],
)
def test_what_the_schedule_says_comes_before_the_state_of_the_neighbor(run, reason):
    state = Driven(rounds=1, **run).engine.state
    assert {why for _, why in absent(state)} == {reason}, "choose a seed in which it holds for both"


def test_a_peer_that_skips_the_last_round_says_so_for_every_neighbor():
    state = Driven(rounds=3).engine.state
    assert all_skipped(state) == ((1, "skipped"), (2, "skipped"))


def test_without_an_exchange_there_is_nothing_to_test():
    graph = make_graph("ring", 3, manifest=manifest(algorithm="local", clusters=1, rounds=1))
    state = State(0, graph, Local(graph.manifest, 0, graph), 1)
    assert absent(state) == () and all_skipped(state) == ()


def test_a_peer_tests_all_neighbors_up_to_a_bound_and_then_a_drawn_part():
    assert drawn(0, 0, range(1, TESTED_MAX + 1)) == frozenset(range(1, TESTED_MAX + 1))
    many = range(1, 3 * TESTED_MAX)
    first = drawn(0, 0, many)
    assert len(first) == TESTED_MAX and first < {*many}
    assert first == drawn(0, 0, reversed(many)) != drawn(0, 1, many)
    assert {"not_drawn", "skipped", "late", "dead", "left", "none", "not_kept"} <= {*REASONS}

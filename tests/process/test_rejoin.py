"""Goal: who was away, whose disk is lost and who comes late takes its place again by itself, with its neighbors' models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tools import invariants
from tools.beds import Bed

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
QUICK = {"heartbeat_s": 0.25, "suspicion_s": 1.5}


def _takes_part(run: Bed, peer_id: int) -> None:
    """Its last rounds fold all neighbors, and theirs fold it."""
    last = run.last_rounds(peer_id)
    assert {line[0] for line in last[max(last)]["folded"]} == set(run.graph.neighbors(peer_id))
    for neighbor in run.graph.neighbors(peer_id):
        rows = run.last_rounds(neighbor)
        assert peer_id in {line[0] for line in rows[max(rows)]["folded"]}


def test_a_peer_that_was_away_for_long_catches_up(bed: Make) -> None:
    run = bed(rounds=60, peers=5, kind="complete", timeouts=QUICK, failpoints={1: "train.begin=kill@3"})
    assert run.until_ended(1) == -9
    run.until_round(15, 0, 2, 3, 4)
    run.arm(1, "")
    run.do("restart", 1)
    run.finish()
    invariants.completed(run)
    invariants.check(run)
    caught_up = run.history(1, "caught_up")
    assert caught_up[0]["from_round"] in (1, 2) and caught_up[0]["to_round"] >= 14
    _takes_part(run, 1)


def test_a_peer_that_lost_its_disk_rejoins_from_its_neighbors(bed: Make) -> None:
    run = bed(rounds=60, peers=5, kind="complete", timeouts=QUICK)
    run.until_round(5)
    seen = run.history(1, "start")[0]["incarnation"]
    run.do("kill", 1)
    run.until_round(12, 0)
    run.do("restart", 1, disk="lose")
    run.finish()
    invariants.completed(run)
    invariants.check(run)
    assert run.history(1, "start")[0]["resumed_from"] is None
    assert run.history(1, "caught_up")
    assert run.history(1)[-1]["incarnation"] > seen, "a new life is above the one that its neighbors knew"
    accuracies = [line["accuracy"] for line in run.history(1, "round")]
    assert accuracies[0] > 0.6, "it goes on with its neighbors' models, not from its initial ones"
    _takes_part(run, 1)


def test_a_late_joiner_takes_its_place(bed: Make) -> None:
    script = [{"do": "join", "peers": [3], "at_round": 20}]
    start = {"rule": "deadline", "deadline_s": 1.0}
    run = bed(rounds=80, peers=5, kind="complete", timeouts=QUICK, script=script, start=start)
    run.finish()
    invariants.completed(run)
    invariants.check(run)
    assert run.history(3, "caught_up")[0]["from_round"] == 0
    assert min(run.last_rounds(3)) >= 19
    assert not run.saw(0, 3, "dead"), "a peer that has not come yet is unknown, not dead"
    _takes_part(run, 3)


def test_a_peer_that_comes_back_when_all_others_have_finished_still_finishes(bed: Make) -> None:
    start = {"deadline_s": 4.0}  # so long it looks for neighbors before it goes on alone
    run = bed(rounds=6, timeouts=QUICK | {"suspicion_s": 1.0}, failpoints={1: "train.begin=kill@3"}, start=start)
    assert run.until_ended(1) == -9
    run.arm(1, "")
    run.until(lambda: run.rounds(0) == 6 and run.rounds(2) == 6, 30, "the others finish")
    run.do("restart", 1)
    run.finish()
    invariants.completed(run)


def test_a_dead_neighbor_costs_its_suspicion_time_once(bed: Make) -> None:
    run = bed(rounds=30, timeouts={"heartbeat_s": 0.5, "suspicion_s": 2.0}, failpoints={1: "train.begin=kill@5"})
    assert run.until_ended(1) == -9
    run.until(lambda: run.rounds(0) == 30 and run.rounds(2) == 30, 40, "the survivors finish")
    for survivor in run.graph.neighbors(1):
        waits = [line["seconds"]["wait"] for line in run.history(survivor, "round")]
        assert sum(wait > 1.0 for wait in waits) == 1 and max(waits) < 2.0 + 1.5
        assert run.saw(survivor, 1, "dead")
        last = run.last_rounds(survivor)[29]
        assert last["missing"] == [1]

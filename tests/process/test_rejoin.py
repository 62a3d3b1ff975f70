"""Goal: a peer that was away, lost its disk or starts late rejoins by itself, with its neighbors' models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tools import invariants
from tools.beds import Bed

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
QUICK = {"suspicion_s": 6.0}
ENDLESS = 100_000  # rounds: however late a peer returns, the others still run


def _newest(run: Bed, peer_id: int) -> tuple[int, set[int]]:
    """Return a peer's newest round, and whose models it has folded; -1 before the first."""
    rows = run.last_rounds(peer_id)
    newest = max(rows, default=-1)
    return newest, {line[0] for line in rows[newest]["folded"]} if rows else set()


def _takes_part(run: Bed, peer_id: int) -> bool:
    """Return whether a peer has caught up, and since then folds the models of all neighbors, and they fold its models."""
    caught_up = run.history(peer_id, "caught_up")
    if not caught_up:
        return False
    first, neighbors = caught_up[-1]["to_round"], run.graph.neighbors(peer_id)
    own, *theirs = (_newest(run, p) for p in (peer_id, *neighbors))
    return (
        min(newest for newest, _ in (own, *theirs)) >= first
        and own[1] == set(neighbors)
        and all(peer_id in folded for _, folded in theirs)
    )


def _until_it_takes_part(run: Bed, peer_id: int) -> None:
    """Wait until a peer takes part again, end the run, and check the invariants."""
    run.until(lambda: _takes_part(run, peer_id), f"peer {peer_id} takes part again")
    run.stop()
    invariants.check(run)


@pytest.mark.slow
def test_peer_that_was_away_for_many_rounds_catches_up(bed: Make) -> None:
    run = bed(rounds=ENDLESS, peers=5, kind="complete", timeouts=QUICK, failpoints={1: "train.begin=kill@3"})
    assert run.until_ended(1) == -9
    run.until_round(15, 0, 2, 3, 4)
    run.arm(1, "")
    run.do("restart", 1)
    _until_it_takes_part(run, 1)
    caught_up = run.history(1, "caught_up")
    assert caught_up[0]["from_round"] in (1, 2) and caught_up[0]["to_round"] >= 14


@pytest.mark.slow
def test_peer_that_lost_its_disk_continues_with_its_neighbors_models(bed: Make) -> None:
    run = bed(rounds=ENDLESS, peers=5, kind="complete", timeouts=QUICK)
    run.until_round(5)
    seen = run.history(1, "start")[0]["incarnation"]
    run.do("kill", 1)
    run.until_round(12, 0)
    run.do("restart", 1, disk="lose")
    _until_it_takes_part(run, 1)
    assert run.history(1, "start")[0]["resumed_from"] is None
    assert run.history(1)[-1]["incarnation"] > seen, "the incarnation is not above the one that neighbors know"
    accuracies = [line["metric_value"] for line in run.history(1, "round")]
    assert accuracies[0] > 0.6, "it trains its initial models, not those of its neighbors"


def test_peer_that_starts_late_catches_up(bed: Make) -> None:
    script = [{"do": "join", "peers": [3], "at_round": 20}]
    # The others begin without it, and it cannot begin alone.
    start = {"wait_for": 0.75, "deadline_s": 300.0}
    run = bed(rounds=ENDLESS, peers=5, kind="complete", timeouts=QUICK, script=script, start=start)
    _until_it_takes_part(run, 3)
    assert run.history(3, "caught_up")[0]["from_round"] == 0
    assert min(run.last_rounds(3)) >= 19
    assert not run.saw(0, 3, "dead"), "a peer that has not started yet is unknown, not dead"


def test_peer_that_restarts_after_all_others_have_finished_completes_its_run(bed: Make) -> None:
    start = {"deadline_s": 4.0}  # how long it waits for neighbors before it continues alone
    run = bed(rounds=6, timeouts={"suspicion_s": 1.0}, failpoints={1: "train.begin=kill@3"}, start=start)
    assert run.until_ended(1) == -9
    run.arm(1, "")
    run.until(lambda: run.rounds(0) == 6 and run.rounds(2) == 6, "the others finish")
    run.do("restart", 1)
    run.finish()
    invariants.completed(run)


@pytest.mark.slow
def test_rounds_do_not_wait_for_a_dead_neighbor(bed: Make) -> None:
    run = bed(rounds=30, timeouts=QUICK, failpoints={1: "train.begin=kill@5"})
    assert run.until_ended(1) == -9
    run.until(lambda: run.rounds(0) == 30 and run.rounds(2) == 30, "the survivors finish")
    for survivor in run.graph.neighbors(1):
        states = [line["state"] for line in run.history(survivor, "neighbor") if line["neighbor"] == 1]
        assert states[-2:] == ["suspect", "dead"] and states.count("dead") == 1
        history = run.history(survivor)
        died = next(i for i, line in enumerate(history) if line["kind"] == "neighbor" and line["state"] == "dead")
        after = [line for line in history[died:] if line["kind"] == "round"]
        assert len(after) > 20 and all(line["missing"] == [1] for line in after)

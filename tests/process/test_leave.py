"""Goal: SIGTERM is a goodbye in every stage: exit code 0, `left` and no suspicion at the neighbors, a return that goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from tools import invariants
from tools.beds import Bed

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
SOON_S = 8.0  # the last words to neighbors take up to 2 s, twice; the machine may be busy


def _ends_soon(run: Bed, peer_id: int) -> None:
    began = time.monotonic()
    assert run.until_ended(peer_id) == 0
    assert time.monotonic() - began < SOON_S, run.log(peer_id)


POINTS = ("hello.end", "train.begin", "train.step", "train.end", "send.frame", "fold.begin", "close.begin", "close.end")


@pytest.mark.parametrize("point", [*POINTS, "persist.arrays", "persist.end"])
def test_a_peer_that_is_asked_to_leave_at_any_moment_says_goodbye_and_comes_back(bed: Make, point: str) -> None:
    when = 1 if point == "hello.end" else 6
    run = bed(rounds=12, failpoints={1: f"{point}=leave@{when}"})
    _ends_soon(run, 1)
    assert run.fired(1) == 1, "the fault has not fired"
    assert run.summary(1)["status"] == "left"
    assert run.history(1)[-1]["kind"] == "leave"
    run.arm(1, "")
    run.do("restart", 1)
    run.finish()
    for neighbor in run.graph.neighbors(1):
        assert not run.saw(neighbor, 1, "dead")
        if point != "hello.end":  # in the middle of a handshake there is nobody yet to say goodbye to
            assert run.saw(neighbor, 1, "left") and not run.saw(neighbor, 1, "suspect")
    invariants.completed(run)
    invariants.check(run)


def test_after_a_goodbye_that_all_say_at_once_all_resume(bed: Make) -> None:
    run = bed(rounds=8)
    run.until_round(3)
    run.do("leave", *run.graph.ids)
    run.finish()
    assert {run.summary(p)["status"] for p in run.graph.ids} == {"left"}
    run.start()
    run.finish()
    invariants.completed(run)
    invariants.check(run)


def test_leaving_between_checkpoints_loses_no_round(bed: Make) -> None:
    run = bed(rounds=30, checkpoint_rounds=0)
    run.until_round(5, 1)
    run.do("leave", 1)
    _ends_soon(run, 1)
    left_at = run.summary(1)["rounds_completed"]
    run.do("restart", 1)
    run.finish()
    assert left_at >= 5 and run.history(1, "start")[-1]["resumed_from"] == left_at
    invariants.completed(run)


def test_a_peer_leaves_while_it_waits_for_a_silent_neighbor(bed: Make) -> None:
    run = bed(rounds=12, proxy=True)
    run.until_round(2)
    run.do("stop", 2)
    run.do("leave", 1)
    _ends_soon(run, 1)
    run.do("continue", 2)
    run.do("restart", 1)
    run.finish()
    invariants.completed(run)


def test_a_peer_leaves_while_it_catches_up(bed: Make) -> None:
    run = bed(rounds=200, kind="complete", peers=5, timeouts={"suspicion_s": 2.0}, failpoints={1: "train.begin=kill@3"})
    run.until_ended(1)
    run.until_round(20, 0)
    run.arm(1, "")
    run.do("restart", 1)
    run.until(lambda: "catching up" in run.log(1) or run.history(1, "caught_up"), 20, "peer 1 catches up")
    run.do("leave", 1)
    _ends_soon(run, 1)


def test_a_second_signal_ends_at_once(bed: Make) -> None:
    run = bed(rounds=12, proxy=True, timeouts={"suspicion_s": 30.0})
    run.until_round(2)
    run.do("cut", edges=[(1, 0), (1, 2)])
    run.do("leave", 1)
    began = time.monotonic()
    run.do("leave", 1)
    assert run.until_ended(1) == 0
    assert time.monotonic() - began < 1.5 + SOON_S / 2, run.log(1)
    assert "second signal: stopping at once" in run.log(1) or run.summary(1)["status"] == "left"


def test_a_testbed_whose_peers_were_all_killed_resumes_in_its_directory(bed: Make) -> None:
    run = bed(rounds=10)
    run.until_round(4)
    for pid in run.state()["processes"].values():
        os.kill(pid, signal.SIGKILL)
    run.finish()
    run.start()
    run.finish()
    assert all(run.history(p, "start")[-1]["resumed_from"] >= 3 for p in run.graph.ids)
    invariants.completed(run)
    invariants.check(run)

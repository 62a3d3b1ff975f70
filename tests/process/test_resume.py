"""Goal: a peer killed at any instruction and started again ends with the models of an undisturbed run, bit for bit.

Method: lockstep, a suspicion time longer than the test; a failpoint kills the peer at a named place (its log proves it), then it
is started again on its disk. The undisturbed run is made once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import invariants
from tools.beds import Bed, Models, WarmParent, same_models

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
VICTIM = 1
ROUNDS = 6


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    with Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), rounds=ROUNDS) as run:
        run.finish()
        return run.models()


def _revive(run: Bed, lives: int = 2) -> None:
    """Wait for the victim's death at its failpoint, start it again without one, and wait for the end of all."""
    assert run.until_ended(VICTIM) == -9
    assert run.fired(VICTIM) == lives - 1
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}
    assert len({line["incarnation"] for line in run.history(VICTIM, "start")}) == lives


@pytest.mark.parametrize(
    "failpoint",
    [
        "hello.begin=kill@1",
        "hello.end=kill@1",
        "train.begin=kill@3",
        "train.step=kill@20",
        "train.end=kill@2",
        "send.begin=kill@5",
        "send.frame=kill@4",
        "send.end=kill@5",
        "receive.frame=kill@6",
        "fold.begin=kill@4",
        "fold.end=kill@5",
        "close.begin=kill@2",
        "close.end=kill@3",
        "persist.begin=kill@2",
        "persist.arrays=kill@2",
        "persist.sealed=kill@3",
        "persist.renamed=kill@3",
        "persist.end=kill@2",
        "history.write=kill@9",
    ],
)
def test_a_kill_anywhere_changes_no_bit(bed: Make, undisturbed: dict[int, Models], failpoint: str) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: failpoint})
    _revive(run)
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed, run.models())


@pytest.mark.parametrize("lost", ["send.answer=lose@3", "send.answer=lose@4-6"])
def test_an_answer_that_never_comes_is_asked_for_again_and_changes_no_bit(
    bed: Make, undisturbed: dict[int, Models], lost: str
) -> None:
    timeouts = {"heartbeat_s": 0.25, "suspicion_s": 1.0}  # it is missed after four of these
    run = bed(rounds=ROUNDS, failpoints={VICTIM: lost}, timeouts=timeouts)
    assert run.finish()["failed"] == {}
    assert run.fired(VICTIM)
    assert any(line["seconds"]["wait"] > 3.0 for line in run.history(VICTIM, "round")), "the loss has cost nothing"
    assert not any(line["missing"] for line in run.history(VICTIM, "round"))
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed, run.models())


def test_a_neighbor_killed_in_the_same_round_changes_no_bit(bed: Make, undisturbed: dict[int, Models]) -> None:
    """Both have sent in that round, so both have its checkpoint: without it one would need what the other cannot send again."""
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "send.begin=kill@5", 2: "send.end=kill@5"})
    for peer_id in (VICTIM, 2):
        assert run.until_ended(peer_id) == -9 and run.fired(peer_id)
        run.arm(peer_id, "")
    run.do("restart", VICTIM, 2)
    assert run.finish()["failed"] == {}
    invariants.check(run)
    same_models(undisturbed, run.models())


def test_all_peers_killed_and_started_again_go_on(bed: Make) -> None:
    """Not bit for bit: what one has folded and another cannot send again is lost when both die between two checkpoints."""
    run = bed(rounds=ROUNDS, script=[{"do": "kill", "peers": [0, 1, 2, 3], "at_round": 3, "for_s": 0.5}])
    assert run.finish()["failed"] == {}
    invariants.completed(run)
    invariants.check(run)


def test_restarts_one_after_another_change_no_bit(bed: Make, undisturbed: dict[int, Models]) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "train.step=kill@9"})
    for number in (11, 14, 30):
        assert run.until_ended(VICTIM) == -9
        run.arm(VICTIM, f"train.step=kill@{number}")
        run.do("restart", VICTIM)
    _revive(run, lives=5)
    same_models(undisturbed, run.models())


def _damage(path: Path, how: str, other: Path) -> None:
    arrays = path / "arrays.safetensors"
    data = bytearray(arrays.read_bytes())
    if how == "torn":
        arrays.write_bytes(data[: len(data) // 2])
    elif how == "rotten":
        data[len(data) // 2] ^= 1
        arrays.write_bytes(data)
    elif how == "manifest":
        (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:-20])
    elif how == "foreign":
        shutil.rmtree(path)
        shutil.copytree(other, path)
    elif how == "empty":
        for file in path.iterdir():
            file.unlink()


@pytest.mark.parametrize("how", ["torn", "rotten", "manifest", "foreign", "empty"])
def test_a_damaged_checkpoint_is_recognized_and_the_one_before_is_used(bed: Make, how: str) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "send.begin=kill@7"})
    assert run.until_ended(VICTIM) == -9
    newest = sorted(run.place(VICTIM).checkpoints.glob("checkpoint-*"))[-1]
    _damage(newest, how, sorted(run.place(2).checkpoints.glob("checkpoint-*"))[-1])
    _revive(run)
    start = run.history(VICTIM, "start")[-1]
    assert start["resumed_from"] == 2 and newest.name in start["notes"][0]
    invariants.completed(run)
    invariants.check(run)


def test_with_no_usable_checkpoint_the_peer_starts_anew_and_says_so(bed: Make) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "send.begin=kill@7"})
    assert run.until_ended(VICTIM) == -9
    for path in run.place(VICTIM).checkpoints.glob("checkpoint-*"):
        _damage(path, "rotten", path)
    _revive(run)
    start = run.history(VICTIM, "start")[-1]
    assert start["resumed_from"] is None and len(start["notes"]) == 2
    assert run.history(VICTIM, "caught_up")
    invariants.completed(run)
    invariants.check(run)


def test_a_full_disk_is_a_sentence_and_the_run_goes_on(bed: Make) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "persist.arrays=error:ENOSPC@2-"})
    assert run.finish()["failed"] == {}
    errors = [line["error"] for line in run.history(VICTIM, "checkpoint")]
    assert errors[0] is None and all("the disk is full; free some space" in error for error in errors[1:])
    assert run.fired(VICTIM) == len(errors) - 1 > 0
    assert "going on without checkpoints" in run.log(VICTIM)
    assert "the disk is full" in run.summary(VICTIM)["storage_error"]
    invariants.completed(run)


def test_an_input_output_error_passes_and_checkpoints_go_on(bed: Make, undisturbed: dict[int, Models]) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "persist.sealed=error:EIO@2-3; history.write=error:EIO@5-6"})
    assert run.finish()["failed"] == {}
    errors = [line["error"] for line in run.history(VICTIM, "checkpoint")]
    assert sum(error is not None for error in errors) in (1, 2) and errors[-1] is None  # one line may be lost itself
    assert run.summary(VICTIM)["storage_error"] == ""
    same_models(undisturbed, run.models())


def test_a_state_directory_that_cannot_be_used_is_a_sentence_and_exit_30(bed: Make) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "train.begin=kill@3"})
    assert run.until_ended(VICTIM) == -9
    checkpoints = run.place(VICTIM).checkpoints
    shutil.rmtree(checkpoints)
    checkpoints.write_text("a file stands here")
    run.do("restart", VICTIM)
    assert run.until_ended(VICTIM) == 30
    assert "a file stands where a directory is needed" in run.log(VICTIM)
    checkpoints.unlink()
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}


def test_a_checkpoint_without_its_incarnation_file_does_not_bring_an_old_life_back(bed: Make) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "send.begin=kill@7"})
    assert run.until_ended(VICTIM) == -9
    (run.place(VICTIM).root / "incarnation.json").unlink()
    _revive(run)
    first, second = (line["incarnation"] for line in run.history(VICTIM, "start"))
    assert second > first
    invariants.check(run)

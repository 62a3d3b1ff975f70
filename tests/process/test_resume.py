"""Goal: a peer killed at any instruction and restarted ends with the models of an undisturbed run, bit for bit.

Method: lockstep, a suspicion time longer than the test; a failpoint kills the peer at a named place (its log shows that), then
it is restarted on its disk. The undisturbed run is made once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import invariants
from tools.beds import Bed, Models, same_models
from tools.warm_parent import WarmParent

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
VICTIM = 1
ROUNDS = 6
SLOW = (
    *(
        "hello.end=kill@1",
        "train.begin=kill@3",
        "train.end=kill@2",
        "send.begin=kill@5",
        "send.frame=kill@4",
        "send.end=kill@5",
        "fold.begin=kill@4",
        "fold.end=kill@5",
        "close.begin=kill@2",
    ),
    *(
        "close.end=kill@3",
        "persist.begin=kill@2",
        "persist.sealed=kill@3",
        "persist.renamed=kill@3",
        "persist.end=kill@2",
    ),
)


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    with Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), rounds=ROUNDS) as run:
        run.finish()
        return run.models()


KEPT = {
    **{"rounds": 4, "kind": "complete", "algorithm": "dpfl", "options": {"budget": 2}},
    **{"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.01, "optimizer_state": "keep"},
    **{"local_unit": "step", "local_epochs": 5, "batch_size": [30, 8], "learning_rate_schedule": "cosine:warm_up=1"},
}


@pytest.fixture(scope="module")
def undisturbed_dpfl(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    with Bed(warm_parent, tmp_path_factory.mktemp("dpfl"), **KEPT) as run:
        run.finish()
        assert any(line["state"]["collaborators"] for line in run.history(VICTIM, "round")), "it averages with nobody"
        return run.models()


PRIVATE = {"rounds": 4, "algorithm": "dfca", "private_parameters": ["3.*"], "encoding": "delta_int8"}


@pytest.fixture(scope="module")
def undisturbed_private(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    with Bed(warm_parent, tmp_path_factory.mktemp("private"), **PRIVATE) as run:
        run.finish()
        return run.models()


def _restart(run: Bed, starts: int = 2) -> None:
    """Wait until the failpoint has killed the victim, restart it without one, and wait for the end of all peers."""
    assert run.until_ended(VICTIM) == -9
    assert run.fired(VICTIM) == starts - 1
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}
    assert len({line["incarnation"] for line in run.history(VICTIM, "start")}) == starts


@pytest.mark.parametrize(
    "failpoint",
    [
        "hello.begin=kill@1",
        "train.step=kill@20",
        "receive.frame=kill@6",
        "persist.arrays=kill@2",
        "history.write=kill@9",
        *(pytest.param(point, marks=pytest.mark.slow) for point in SLOW),
    ],
)
def test_kill_at_any_point_changes_no_bit(bed: Make, undisturbed: dict[int, Models], failpoint: str) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: failpoint})
    _restart(run)
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed, run.models())


@pytest.mark.parametrize(
    ("failpoint", "resumed_from"),
    [
        pytest.param("fold.end=kill@3", None, marks=pytest.mark.slow),
        ("close.begin=kill@3", 2),
        ("persist.end=kill@2", 2),
    ],
)
def test_kill_changes_no_bit_with_a_kept_optimizer_and_chosen_collaborators(
    bed: Make, undisturbed_dpfl: dict[int, Models], failpoint: str, resumed_from: int | None
) -> None:
    run = bed(**KEPT, failpoints={VICTIM: failpoint})
    _restart(run)
    assert run.history(VICTIM, "start")[-1]["resumed_from"] == resumed_from
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed_dpfl, run.models())
    assert "best.safetensors" in run.models()[VICTIM]


@pytest.mark.parametrize("failpoint", ["train.end=kill@3", pytest.param("fold.end=kill@5", marks=pytest.mark.slow)])
def test_kill_changes_no_bit_of_private_tensors(
    bed: Make, undisturbed_private: dict[int, Models], failpoint: str
) -> None:
    run = bed(**PRIVATE, failpoints={VICTIM: failpoint})
    _restart(run)
    invariants.completed(run)
    same_models(undisturbed_private, run.models())


@pytest.mark.parametrize("lost", ["send.answer=lose@3", pytest.param("send.answer=lose@4-6", marks=pytest.mark.slow)])
def test_model_without_a_reply_is_sent_again_and_changes_no_bit(
    bed: Make, undisturbed: dict[int, Models], lost: str
) -> None:
    timeouts = {"suspicion_s": 2.0}  # an unanswered push is sent again after four of them
    run = bed(rounds=ROUNDS, failpoints={VICTIM: lost}, timeouts=timeouts)
    assert run.finish()["failed"] == {}
    assert run.fired(VICTIM)
    assert not any(line["missing"] for line in run.history(VICTIM, "round"))
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed, run.models())


@pytest.mark.slow
def test_two_peers_killed_in_the_same_round_change_no_bit(bed: Make, undisturbed: dict[int, Models]) -> None:
    """Both have sent in that round, so both have its checkpoint. Otherwise one would need models that the other no longer has."""
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "send.begin=kill@5", 2: "send.end=kill@5"})
    for peer_id in (VICTIM, 2):
        assert run.until_ended(peer_id) == -9 and run.fired(peer_id)
        run.arm(peer_id, "")
    run.do("restart", VICTIM, 2)
    assert run.finish()["failed"] == {}
    invariants.check(run)
    same_models(undisturbed, run.models())


def test_run_completes_after_all_peers_were_killed_and_restarted(bed: Make) -> None:
    """Not bit for bit: a model that one peer has folded since its checkpoint is lost if its sender was killed, too."""
    run = bed(rounds=ROUNDS, script=[{"do": "kill", "peers": [0, 1, 2, 3], "at_round": 3, "for_s": 0.5}])
    assert run.finish()["failed"] == {}
    invariants.completed(run)
    invariants.check(run)


def test_repeated_restarts_change_no_bit(bed: Make, undisturbed: dict[int, Models]) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "train.step=kill@9"})
    for number in (11, 14, 30):
        assert run.until_ended(VICTIM) == -9
        run.arm(VICTIM, f"train.step=kill@{number}")
        run.do("restart", VICTIM)
    _restart(run, starts=5)
    same_models(undisturbed, run.models())


def _damage(path: Path, how: str, other: Path) -> None:
    arrays = path / "arrays.safetensors"
    data = bytearray(arrays.read_bytes())
    if how == "torn":
        arrays.write_bytes(data[: len(data) // 2])
    elif how == "flipped bit":
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


@pytest.mark.parametrize(
    "how",
    ["torn", "flipped bit", *(pytest.param(how, marks=pytest.mark.slow) for how in ("manifest", "foreign", "empty"))],
)
def test_damaged_checkpoint_is_detected_and_the_previous_one_is_used(bed: Make, how: str) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "send.begin=kill@7"})
    assert run.until_ended(VICTIM) == -9
    newest = sorted(run.place(VICTIM).checkpoints.glob("checkpoint-*"))[-1]
    _damage(newest, how, sorted(run.place(2).checkpoints.glob("checkpoint-*"))[-1])
    _restart(run)
    start = run.history(VICTIM, "start")[-1]
    assert start["resumed_from"] == 2 and newest.name in start["notes"][0]
    invariants.completed(run)
    invariants.check(run)


def test_peer_without_a_usable_checkpoint_starts_new_and_notes_why(bed: Make) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "send.begin=kill@7"})
    assert run.until_ended(VICTIM) == -9
    for path in run.place(VICTIM).checkpoints.glob("checkpoint-*"):
        _damage(path, "flipped bit", path)
    _restart(run)
    start = run.history(VICTIM, "start")[-1]
    assert start["resumed_from"] is None and len(start["notes"]) == 2
    assert run.history(VICTIM, "caught_up")
    invariants.completed(run)
    invariants.check(run)


def test_full_disk_is_logged_in_one_sentence_and_the_run_continues(bed: Make) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "persist.arrays=error:ENOSPC@2-"})
    assert run.finish()["failed"] == {}
    errors = [line["error"] for line in run.history(VICTIM, "checkpoint")]
    assert errors[0] is None and all("The disk is full. Free space" in error for error in errors[1:])
    assert run.fired(VICTIM) == len(errors) - 1 > 0
    assert "continuing without checkpoints" in run.log(VICTIM)
    assert "The disk is full" in run.summary(VICTIM)["storage_error"]
    invariants.completed(run)


def test_checkpoints_resume_after_an_input_output_error(bed: Make, undisturbed: dict[int, Models]) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "persist.sealed=error:EIO@2-3; history.write=error:EIO@5-6"})
    assert run.finish()["failed"] == {}
    errors = [line["error"] for line in run.history(VICTIM, "checkpoint")]
    assert sum(error is not None for error in errors) in (1, 2) and errors[-1] is None  # one line may be lost
    assert run.summary(VICTIM)["storage_error"] == ""
    same_models(undisturbed, run.models())


def test_unusable_state_directory_is_reported_in_one_sentence_with_exit_30(bed: Make) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "train.begin=kill@3"})
    assert run.until_ended(VICTIM) == -9
    checkpoints = run.place(VICTIM).checkpoints
    shutil.rmtree(checkpoints)
    checkpoints.write_text("a file stands here")
    run.do("restart", VICTIM)
    assert run.until_ended(VICTIM) == 30
    assert "Expected a folder, got a file" in run.log(VICTIM)
    checkpoints.unlink()
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}


def test_checkpoint_without_its_incarnation_file_gets_a_higher_incarnation(bed: Make) -> None:
    run = bed(rounds=ROUNDS, failpoints={VICTIM: "send.begin=kill@7"})
    assert run.until_ended(VICTIM) == -9
    (run.place(VICTIM).root / "incarnation.json").unlink()
    _restart(run)
    first, second = (line["incarnation"] for line in run.history(VICTIM, "start"))
    assert second > first
    invariants.check(run)

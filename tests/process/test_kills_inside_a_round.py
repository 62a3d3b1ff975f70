"""Goal: a peer that ends inside of a round goes on where its training was, and the bits are those of an undisturbed run.

Method: as `test_resume`, with a checkpoint after each step of each training. The round that was repeated says in the history how
many steps were on disk, so that a test fails where the round began anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools import invariants
from tools.beds import Bed, Models, final_models, same_models
from tools.warm_parent import WarmParent

import peer
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
VICTIM = 1
TOOLS = Path(__file__).parents[1] / "tools"
LONG = {"rounds": 3, "algorithm": "dfedavg", "local_epochs": 4, "momentum": 0.9}
SEVERAL = {"rounds": 3, "clusters": 2, "algorithm": "fedem", "local_epochs": 2}


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    return _models(Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), **LONG))


@pytest.fixture(scope="module")
def undisturbed_fedem(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    return _models(Bed(warm_parent, tmp_path_factory.mktemp("fedem"), **SEVERAL))


def _models(bed: Bed) -> dict[int, Models]:
    with bed as run:
        run.finish()
        assert not list(run.place(VICTIM).trainings.glob("*")), "short trainings write nothing"
        return run.models()


def _again(run: Bed, failpoint: str = "") -> None:
    run.arm(VICTIM, failpoint)
    run.do("restart", VICTIM)


def _end(run: Bed, expected: dict[int, Models]) -> list[int]:
    """Wait for the end; check the models; return the steps that were not repeated, of each repeated round."""
    assert run.finish()["failed"] == {}
    invariants.completed(run)
    invariants.check(run)
    same_models(expected, run.models())
    assert not run.place(VICTIM).trainings.exists(), "nothing is left of a run that is over"
    return [line["resumed_steps"] for line in run.history(VICTIM, "round") if line.get("resumed_steps")]


@pytest.mark.parametrize(
    ("failpoint", "steps"),
    [
        ("train.step=kill@12", 10),  # the state before step 12 is not yet written
        ("partial.begin=kill@9", 8),
        ("partial.arrays=kill@9", 8),
        ("partial.renamed=kill@9", 9),
        pytest.param("partial.sealed=kill@9", 8, marks=pytest.mark.slow),
        pytest.param("partial.end=kill@9", 9, marks=pytest.mark.slow),
    ],
)
def test_a_kill_in_mid_round_costs_a_step_and_no_bit(
    bed: Make, undisturbed: dict[int, Models], failpoint: str, steps: int
) -> None:
    run = bed(**LONG, failpoints={VICTIM: failpoint}, checkpoint_minutes=0)
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    _again(run)
    assert _end(run, undisturbed) == [steps]
    assert f"resuming in round 1 of 3 at step {steps} of " in run.log(VICTIM)


def test_repeated_kills_in_one_round(bed: Make, undisturbed: dict[int, Models]) -> None:
    run = bed(**LONG, failpoints={VICTIM: "train.step=kill@6"}, checkpoint_minutes=0)
    for _ in range(2):
        assert run.until_ended(VICTIM) == -9
        _again(run, "train.step=kill@4")
    assert run.until_ended(VICTIM) == -9
    _again(run)
    assert _end(run, undisturbed) == [8]


@pytest.mark.parametrize("point", ["train.end", "send.end", pytest.param("close.begin", marks=pytest.mark.slow)])
def test_a_training_that_has_ended_is_not_repeated(bed: Make, undisturbed: dict[int, Models], point: str) -> None:
    run = bed(**LONG, failpoints={VICTIM: f"{point}=kill@2"}, checkpoint_minutes=0)
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    _again(run)
    (steps,) = _end(run, undisturbed)
    assert f"after a training of {steps} steps" in run.log(VICTIM)


def test_the_round_before_stays_until_its_checkpoint_is_whole(bed: Make, undisturbed: dict[int, Models]) -> None:
    """The checkpoint of a round is written while the next round trains."""
    run = bed(**LONG, failpoints={VICTIM: "persist.sealed=kill@1"}, checkpoint_minutes=0)
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    _again(run)
    assert _end(run, undisturbed)
    assert "resuming in round 1 of 3 after a training of" in run.log(VICTIM)


def test_each_training_of_a_round_goes_on_for_itself(bed: Make, undisturbed_fedem: dict[int, Models]) -> None:
    run = bed(**SEVERAL, failpoints={VICTIM: "train.step=kill@20"}, checkpoint_minutes=0)
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    _again(run)
    assert len(_end(run, undisturbed_fedem)) == 1
    assert run.log(VICTIM).count("resuming in round") == 2


HOOK = {"rounds": 3, "algorithm": "dfedavg", "local_epochs": 3, "task": f"{TOOLS / 'own_loop_inside.py'}:task"}


def test_a_task_with_resumable_loops_goes_on(bed: Make, tmp_path: Path) -> None:
    run = bed(**HOOK, failpoints={VICTIM: "train.step=kill@8"}, checkpoint_minutes=0)
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    _again(run)
    peer.simulate(peer.Graph.of(run.graph), out=tmp_path / "hook", progress=False)
    assert _end(run, final_models(tmp_path / "hook", run.graph))


@pytest.mark.parametrize("loop", ["built_in", "own"])
def test_a_leave_in_mid_round_costs_nothing_although_no_state_is_due(bed: Make, tmp_path: Path, loop: str) -> None:
    """The training waits in mid-round until the peer has been asked to leave."""
    task = shutil.copy(TOOLS / "held_task.py", tmp_path)
    settings: dict[str, Any] = {"rounds": 2, "algorithm": "dfedavg", "local_epochs": 4}
    settings |= {"batch_size": 8} if loop == "built_in" else {}
    (tmp_path / "hold").write_text(str(StateDir.of_peer(tmp_path / "bed", VICTIM).log))
    run = bed(**settings, task=f"{task}:{loop}", goodbye_s=60.0, checkpoint_minutes=1e6)
    run.until((tmp_path / "held").exists, "a step in mid-round")
    run.do("leave", VICTIM)
    assert run.until_ended(VICTIM) == 0
    assert run.summary(VICTIM)["status"] == "left"
    (tmp_path / "hold").unlink()
    _again(run)
    peer.simulate(peer.Graph.of(run.graph), out=tmp_path / "simulated", progress=False)
    assert len(_end(run, final_models(tmp_path / "simulated", run.graph))) == 1


def test_a_full_disk_leaves_a_warning_and_the_round_goes_on(bed: Make, undisturbed: dict[int, Models]) -> None:
    run = bed(**LONG, failpoints={VICTIM: "partial.arrays=error:ENOSPC@2-"}, checkpoint_minutes=0)
    assert _end(run, undisturbed) == []
    assert run.fired(VICTIM) > 10
    assert run.log(VICTIM).count("training goes on without a checkpoint inside the round") == 1


def test_damaged_states_are_named_and_the_round_begins_anew(bed: Make, undisturbed: dict[int, Models]) -> None:
    run = bed(**LONG, failpoints={VICTIM: "train.step=kill@9"}, checkpoint_minutes=0)
    assert run.until_ended(VICTIM) == -9
    (arrays,) = run.place(VICTIM).trainings.glob("*/checkpoint-*/arrays.safetensors")
    arrays.write_bytes(arrays.read_bytes()[:-1])
    _again(run)
    assert _end(run, undisturbed) == []
    assert "arrays.safetensors has" in run.log(VICTIM)


def test_a_restore_of_diverged_models_is_the_same_after_a_kill(
    bed: Make, warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings: dict[str, Any] = {**LONG, "learning_rate": 1e20, "diverged_restores": 3}
    with Bed(warm_parent, tmp_path_factory.mktemp("diverging"), **settings) as run:
        run.finish()
        expected = run.models()
    run = bed(**settings, failpoints={VICTIM: "send.end=kill@2"}, checkpoint_minutes=0)
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    _again(run)
    run.finish()
    same_models(expected, run.models())
    assert "resuming in round" in run.log(VICTIM)

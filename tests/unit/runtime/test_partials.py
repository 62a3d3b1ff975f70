"""Trainings on disk: used by exactly the training that made them, bounded, removed when their round is safe."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import StorageError, TaskError
from peer import failpoints
from peer.algorithms.learner import TrainingPlan, TrainStats
from peer.algorithms.workspace import Workspace
from peer.runtime.partials import PartialCheckpoints
from peer.store.checkpoint import CheckpointStore

OWNER = dict.fromkeys(("manifest_digest", "graph_digest", "schema_digest"), "x")
PLAN = TrainingPlan(epochs=4, seed=1, learning_rate=0.1, round_index=6)
THETA = np.arange(5, dtype=np.float32)
STATE = {"values": np.arange(3, dtype=np.int64)}
RESULT = TrainStats(float("nan"), 40, 4, optimizer_state={"step": THETA * 2}, numbers={"own": 0.1})


def opened(
    place: Path, every_s: float = 0.0, meaning: str = "meaning", owner: dict[str, str] = OWNER, **more: Any
) -> Any:
    store = CheckpointStore(place / "checkpoints", peer_id=0, **owner)
    return PartialCheckpoints(place / "trainings", store, meaning, every_s, rounds=60, **more)


def saved(place: Path, plan: TrainingPlan = PLAN, step: int = 2) -> None:
    opened(place).of(THETA, plan).save(step, 4, lambda: STATE)


def folders(place: Path) -> list[Path]:
    return sorted(place.glob("trainings/*"))


@pytest.fixture(autouse=True)
def _no_failpoints() -> Any:
    yield
    failpoints.arm("")


def test_the_same_training_finds_its_state_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path)
    told: list[int] = []
    with caplog.at_level(logging.INFO, logger="peer"):
        partial = opened(tmp_path, on_resume=told.append).of(THETA.copy(), replace(PLAN, should_stop=lambda: True))
        assert partial.finished() is None
        assert np.array_equal(partial.load()["values"], STATE["values"])
    assert caplog.messages == ["resuming in round 7 of 60 at step 2 of 4"]
    assert told == [2] and partial.resumed == 2
    assert partial.load() is None, "a state is taken once"


OTHERS: dict[str, Callable[[Path], Any]] = {
    "round": lambda place: opened(place).of(THETA, replace(PLAN, round_index=7)),
    "seed": lambda place: opened(place).of(THETA, replace(PLAN, seed=2)),
    "rate": lambda place: opened(place).of(THETA, replace(PLAN, learning_rate=0.2)),
    "samples": lambda place: opened(place).of(THETA, replace(PLAN, indices=np.arange(2))),
    "no samples": lambda place: opened(place).of(THETA, replace(PLAN, indices=np.arange(0))),
    "center": lambda place: opened(place).of(THETA, replace(PLAN, proximal=(THETA, 1.0))),
    "optimizer": lambda place: opened(place).of(THETA, replace(PLAN, optimizer_state={"step": THETA})),
    "fresh optimizer, kept": lambda place: opened(place).of(THETA, replace(PLAN, optimizer_state={})),
    "parameters": lambda place: opened(place).of(THETA, replace(PLAN, only=frozenset({"a", "b"}))),
    "start": lambda place: opened(place).of(THETA + 1, PLAN),
    "task": lambda place: opened(place, meaning="other").of(THETA, PLAN),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_training_does_not_find_it(name: str, tmp_path: Path) -> None:
    saved(tmp_path)
    partial = OTHERS[name](tmp_path)
    assert partial.finished() is None and partial.load() is None and partial.resumed == 0


def test_a_state_that_no_training_has_used_is_removed_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    trainings = opened(tmp_path)
    trainings.of(THETA + 1, PLAN).save(1, 4, lambda: STATE)
    assert len(folders(tmp_path)) == 2
    trainings.drop(7)
    assert folders(tmp_path) == []
    (line,) = caplog.messages
    assert line.startswith("state of a training in round 7 was not used: it belongs to a training with another start")


def test_what_a_safe_round_has_left_is_removed_at_the_start_without_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    opened(tmp_path, safe_round=7)
    assert folders(tmp_path) == [] and not caplog.messages


def test_only_the_last_two_rounds_stay_where_checkpoints_are_rare(tmp_path: Path) -> None:
    trainings = opened(tmp_path)
    for round_index in range(5):
        trainings.of(THETA, replace(PLAN, round_index=round_index)).save(1, 4, lambda: STATE)
    assert [path.name[:12] for path in folders(tmp_path)] == ["round-000003", "round-000004"]


def test_a_result_comes_back_whole(tmp_path: Path) -> None:
    partial = opened(tmp_path).of(THETA, PLAN)
    partial.save(2, 4, lambda: STATE)
    partial.finish(THETA * 3, replace(RESULT, center=THETA * 4))
    assert len(list(folders(tmp_path)[0].glob("checkpoint-*"))) == 1, "one state stays"
    theta, stats = opened(tmp_path).of(THETA, PLAN).finished()
    assert np.array_equal(theta, THETA * 3) and np.array_equal(stats.center, THETA * 4)
    assert np.array_equal(stats.optimizer_state["step"], THETA * 2)
    assert repr(replace(stats, optimizer_state=None, center=None)) == repr(replace(RESULT, optimizer_state=None))


def test_a_short_or_stopped_training_leaves_no_result(tmp_path: Path) -> None:
    now = [0.0]
    trainings = opened(tmp_path, every_s=60.0, clock=lambda: now[0])
    partial = trainings.of(THETA, PLAN)
    now[0] = 59.0
    assert not partial.due()
    partial.finish(THETA, RESULT)
    partial = trainings.of(THETA, PLAN)
    now[0] += 60.0
    assert partial.due()
    partial.finish(THETA, replace(RESULT, stopped=True))
    assert folders(tmp_path) == []
    partial.save(3, None, lambda: STATE)
    assert not partial.due()
    partial.finish(THETA, RESULT)  # it was long enough for a state
    assert opened(tmp_path).of(THETA, PLAN).finished() is not None


def test_a_workspace_repeats_no_training_that_had_ended(tmp_path: Path) -> None:
    class Counting:
        abilities = frozenset({"batches"})
        calls = 0

        def train(self, theta: Any, plan: TrainingPlan) -> Any:
            self.calls += 1
            plan.partial.save(2, 4, lambda: STATE)
            return theta + 1, TrainStats(0.5, 8, 4)

    learner: Any = Counting()
    for _ in range(2):
        space: Any = Workspace(None, 0, None, learner, None, None)  # type: ignore[arg-type]
        space.partials = opened(tmp_path)
        model, stats = space.fit(THETA, PLAN)
        assert np.array_equal(model, THETA + 1) and stats.steps == 4
    assert learner.calls == 1 and space.resumed_steps == 4


@pytest.mark.parametrize("how", ["torn", "flipped", "foreign", "manifest"])
def test_a_damaged_or_foreign_state_is_not_used_and_named(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    (state,) = folders(tmp_path)[0].glob("checkpoint-*")
    arrays = state / "arrays.safetensors"
    data = bytearray(arrays.read_bytes())
    if how == "torn":
        arrays.write_bytes(data[:-3])
    elif how == "flipped":
        data[-1] ^= 1
        arrays.write_bytes(data)
    elif how == "manifest":
        (state / "manifest.json").unlink()
    owner = OWNER | ({"graph_digest": "y"} if how == "foreign" else {})
    partial = opened(tmp_path, owner=owner).of(THETA, PLAN)
    assert partial.finished() is None and partial.load() is None
    (line,) = caplog.messages
    assert "was not used: " in line and str(state) in line
    partial.save(3, 4, lambda: STATE)
    assert opened(tmp_path, owner=owner).of(THETA, PLAN).load() is not None


def test_a_full_disk_is_one_warning_and_the_last_state_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path)
    failpoints.arm("partial.arrays=error:ENOSPC@1-2")
    partial = opened(tmp_path).of(THETA, PLAN)
    for step in (3, 4):
        partial.save(step, 4, lambda: STATE)
    (line,) = caplog.messages
    assert "The disk is full" in line and line.endswith("training goes on without a checkpoint inside the round")
    partial.load()
    again = opened(tmp_path).of(THETA, PLAN)
    again.load()
    assert again.resumed == 2
    partial.save(4, 4, lambda: STATE)  # there is space again
    again = opened(tmp_path).of(THETA, PLAN)
    again.load()
    assert again.resumed == 4


def test_a_state_that_cannot_be_stored_is_asked_for_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def state() -> Any:
        raise TaskError("keep: state['x']: expected a tensor, got an object")

    partial = opened(tmp_path).of(THETA, PLAN)
    assert partial.due()
    partial.save(1, 4, state)
    assert not partial.due() and len(caplog.messages) == 1 and folders(tmp_path) == []


def test_an_unreadable_folder_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "trainings").write_text("a file stands here")
    with pytest.raises(StorageError, match="Expected a folder, got a file"):
        opened(tmp_path)


def test_the_end_of_a_run_leaves_nothing(tmp_path: Path) -> None:
    saved(tmp_path)
    trainings = opened(tmp_path)
    trainings.clear()
    assert not (tmp_path / "trainings").exists()
    assert trainings.of(THETA, PLAN).load() is None

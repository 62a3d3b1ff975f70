"""A training that is ended at any step and continued from its state on disk gives the bits of an undisturbed one."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools.killed_trainings import Killed, fields_of, fit, learner_of, trainings
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from coordinator_free_bootstrap.errors import TaskError
from peer.algorithms.learner import Follow, TrainingPlan, TrainStats
from peer.tasks import Budget, Shard, Task, Trained

FEATURES, CLASSES, SAMPLES = 4, 3, 23


def shard() -> Shard:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(SAMPLES + 6, FEATURES)).astype(np.float32)
    y = (x @ np.arange(FEATURES * CLASSES).reshape(FEATURES, CLASSES)).argmax(1)
    return Shard(train_x=x[:SAMPLES], train_y=y[:SAMPLES], test_x=x[SAMPLES:], test_y=y[SAMPLES:])


class BuiltIn(Task):
    """The built-in loop, on a model that draws numbers, has statistics, and counts batches."""

    classes = CLASSES

    def make_model(self) -> nn.Module:
        norm = nn.BatchNorm1d(6, momentum=None)  # averages by its count of batches, an integer
        return nn.Sequential(nn.Linear(FEATURES, 6), norm, nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, CLASSES))

    def load_shard(self, peer_id: int) -> Shard:
        return shard()


class OwnOptimizer(BuiltIn):
    def make_optimizer(self, parameters: Any, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(parameters, lr=learning_rate, momentum=0.5)


def plan_of(**changes: Any) -> TrainingPlan:
    return TrainingPlan(**{"epochs": 3, "seed": 7, "learning_rate": 0.05, "round_index": 6, **changes})


def same(left: TrainStats, right: TrainStats) -> None:
    for name in ("loss", "samples", "steps", "metric"):
        assert repr(getattr(left, name)) == repr(getattr(right, name)), name  # NaN: a loop that says none
    for name, array in (left.optimizer_state or {}).items():
        assert array.tobytes() == (right.optimizer_state or {})[name].tobytes(), name


WEIGHTS = np.linspace(0, 2, SAMPLES).astype(np.float32)
PLANS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "kept momentum": {"momentum": 0.9, "optimizer_state": {}},
    "adam": {"optimizer": "adam"},
    "all": {"batch_size": "all", "epochs": 9, "optimizer": "adam"},
    "steps": {"unit": "step", "epochs": 11, "momentum": 0.9},
    "some samples": {"indices": np.arange(0, SAMPLES, 2)[:11]},
    "weights": {"sample_weights": WEIGHTS, "gradient_clip": 0.1},
    "proximal": {"proximal": (np.float32(0.0), 0.5)},
    "only": {"only": frozenset({"4.weight"}), "momentum": 0.9},
}


def with_center(task: Task, changes: dict[str, Any]) -> TrainingPlan:
    if "proximal" in changes:
        changes = {**changes, "proximal": (learner_of(task).initial_model(9), changes["proximal"][1])}
    return plan_of(**changes)


@pytest.mark.parametrize("name", PLANS)
def test_the_built_in_loop_continued_at_every_step_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    task = BuiltIn()
    plan = with_center(task, PLANS[name])
    expected, stats, steps = fit(task, trainings(tmp_path / "whole"), plan)
    assert steps == stats.steps == learner_of(task).steps_of(plan) > 5
    for step in range(1, steps):
        place = tmp_path / str(step)
        with pytest.raises(Killed):
            fit(task, trainings(place), plan, die_at=step)
        model, again, taken = fit(task, trainings(place), plan)
        assert taken == steps - step + 1, "the steps before the last state were repeated"
        assert model.tobytes() == expected.tobytes()
        same(again, stats)


def test_an_own_optimizer_is_continued(tmp_path: Path) -> None:
    expected, _, _ = fit(OwnOptimizer(), trainings(tmp_path / "whole"), plan_of())
    with pytest.raises(Killed):
        fit(OwnOptimizer(), trainings(tmp_path), plan_of(), die_at=8)
    assert fit(OwnOptimizer(), trainings(tmp_path), plan_of())[0].tobytes() == expected.tobytes()


def test_repeated_kills_cost_a_step_each(tmp_path: Path) -> None:
    expected, _, steps = fit(BuiltIn(), trainings(tmp_path / "whole"), plan_of())
    for _ in range(steps // 2 - 1):
        with pytest.raises(Killed):
            fit(BuiltIn(), trainings(tmp_path), plan_of(), die_at=3)
    model, _, taken = fit(BuiltIn(), trainings(tmp_path), plan_of())
    assert model.tobytes() == expected.tobytes() and taken < steps / 2 + 1


def test_a_training_that_is_asked_to_stop_keeps_its_state_before_it_is_due(tmp_path: Path) -> None:
    expected, _, steps = fit(BuiltIn(), trainings(tmp_path / "whole"), plan_of())
    learner, asked = learner_of(BuiltIn()), itertools.count()
    theta, plan = learner.initial_model(3), plan_of()
    partial = trainings(tmp_path, every_s=1.0).of(theta, plan)
    stop = {"partial": partial, "should_stop": lambda: next(asked) == 4}
    done = learner.train(theta, TrainingPlan(**{**fields_of(plan), **stop}))
    partial.finish(*done)
    assert done[1].stopped and done[1].steps == 4
    model, stats, taken = fit(BuiltIn(), trainings(tmp_path), plan)
    assert model.tobytes() == expected.tobytes() and stats.steps == steps and taken == steps - 4


# ---- a user's loop ------------------------------------------------------------------------------------------------------


class Own(Task):
    """A plain loop: loader with augmentation by each of the three generators, accumulated gradients, AdamW, a schedule."""

    classes = CLASSES
    inner = True  # whether the loop over batches is resumable, too
    epochs = 3

    def make_model(self) -> nn.Module:
        return BuiltIn().make_model()

    def load_data(self, peer_id: int) -> Any:
        data = shard()
        train = TensorDataset(torch.from_numpy(data.train_x), torch.from_numpy(data.train_y))
        test = TensorDataset(torch.from_numpy(data.test_x), torch.from_numpy(data.test_y))
        return {"train": DataLoader(train, batch_size=5, shuffle=True), "test": test}

    def batches(self, data: Any, budget: Budget) -> Any:
        numbered = enumerate(data["train"])
        return budget.resumable(numbered) if self.inner else numbered

    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained:
        optimizer = budget.keep("optimizer", lambda: torch.optim.AdamW(model.parameters(), 0.05))
        schedule = budget.keep("schedule", lambda: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        for _ in budget.resumable(range(budget.epochs or 0)):
            for number, (x, y) in self.batches(data, budget):
                noise = torch.randn(x.shape) + random.gauss(0, 0.1) + float(np.random.normal())
                nn.functional.cross_entropy(model(x + 0.1 * noise), y).backward()
                if number % 2:
                    continue  # the gradients of two batches
                optimizer.step()
                optimizer.zero_grad()
                if not self.inner and budget.should_stop():
                    break
            schedule.step()
        return Trained()


class OnlyEpochs(Own):
    inner = False


class Unwrapped(Own):
    """Two loops one after the other, and loops inside of one that is not resumable."""

    def train(self, model: nn.Module, data: Any, budget: Budget) -> None:
        optimizer = budget.keep("optimizer", lambda: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))
        for _ in range(2):
            for x, y in budget.resumable(data["train"]):
                self.step(model, optimizer, x, y)
        for _ in budget.resumable(range(3)):
            x, y = next(iter(data["train"]))
            self.step(model, optimizer, x, y)

    def step(self, model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


class Noisy(TensorDataset):
    """With augmentation by each of three generators, which a loader seeds in its workers."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return x + torch.randn(()) + random.gauss(0, 0.1) + float(np.random.normal()), y


class Workers(Own):
    """A loader with workers, which reads ahead, and draws its order when it is asked for an iterator."""

    def load_data(self, peer_id: int) -> Any:
        loader = super().load_data(peer_id)["train"]
        noisy = Noisy(*loader.dataset.tensors)
        seeded = {"worker_init_fn": lambda number: np.random.seed(torch.initial_seed() % 2**32)}
        return {"train": DataLoader(noisy, batch_size=5, shuffle=True, num_workers=2, **seeded), "test": loader.dataset}


def test_a_loader_with_workers_is_continued(tmp_path: Path) -> None:
    plan = plan_of(optimizer_state={}, epochs=2)
    expected, _, asked = fit(Workers(), trainings(tmp_path / "whole"), plan)
    for die_at in (2, asked - 2):
        with pytest.raises(Killed):
            fit(Workers(), trainings(tmp_path / str(die_at)), plan, die_at=die_at)
        model, _, taken = fit(Workers(), trainings(tmp_path / str(die_at)), plan)
        assert model.tobytes() == expected.tobytes() and taken < asked - 1


class Iterators(Unwrapped):
    def train(self, model: nn.Module, data: Any, budget: Budget) -> None:
        for _ in range(2):
            for _, (x, y) in budget.resumable(enumerate(data["train"])):
                self.step(model, torch.optim.SGD(model.parameters(), 0.05), x, y)


def test_an_iterator_that_a_restart_could_not_repeat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"expected a loader or another collection .* got an enumerate.* Make the loop around"
    ):
        fit(Iterators(), trainings(tmp_path), plan_of())


OWN_PLANS: dict[str, dict[str, Any]] = {
    "alone": {"optimizer_state": {}},
    "proximal": {"optimizer_state": {}, "proximal": (np.float32(0.0), 0.5), "follow": Follow(2, 0.5)},
}


@pytest.mark.parametrize("task", [Own(), OnlyEpochs(), Unwrapped()], ids=lambda task: type(task).__name__)
@pytest.mark.parametrize("name", OWN_PLANS)
def test_an_own_loop_continued_at_every_item_gives_the_same_bits(name: str, task: Task, tmp_path: Path) -> None:
    plan = with_center(task, OWN_PLANS[name])
    expected, stats, asked = fit(task, trainings(tmp_path / "whole"), plan)
    resumed = 0
    for die_at in range(asked):
        place = tmp_path / str(die_at)
        with pytest.raises(Killed):
            fit(task, trainings(place), plan, die_at=die_at)
        model, again, taken = fit(task, trainings(place), plan)
        assert model.tobytes() == expected.tobytes(), die_at
        same(again, stats)
        assert (again.center is None) or again.center.tobytes() == stats.center.tobytes()
        resumed += taken < asked
    assert resumed >= (asked - 1 if task.inner else task.epochs - 1), "the loop began anew"


def test_an_own_loop_that_left_out_a_part_of_an_epoch_does_not_count_it_as_done(tmp_path: Path) -> None:
    expected, _, _ = fit(OnlyEpochs(), trainings(tmp_path / "whole"), plan_of(optimizer_state={}))
    learner, plan, asked = learner_of(OnlyEpochs()), plan_of(optimizer_state={}), itertools.count()
    theta = learner.initial_model(3)
    for every_s in (0.0, 1.0):
        partial = trainings(tmp_path, every_s).of(theta, plan)
        stop = {"partial": partial, "should_stop": lambda: next(asked) >= 1}
        assert learner.train(theta, TrainingPlan(**{**fields_of(plan), **stop}))[1].stopped
    assert fit(OnlyEpochs(), trainings(tmp_path), plan)[0].tobytes() == expected.tobytes()


def test_other_loops_than_before_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(Own(), trainings(tmp_path), plan_of(), die_at=8)
    with pytest.raises(
        TaskError, match=r"resumable: expected the same resumable loops .* remove .*files and start again"
    ):
        fit(OnlyEpochs(), trainings(tmp_path), plan_of())


class InFolder(Own):
    """A loop with checkpoints of its own."""

    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained:
        optimizer, file, first = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), budget.folder / "last.pt", 0
        if file.exists():
            saved = torch.load(file, weights_only=True)
            first = saved["epoch"]
            budget.resumed(first * len(data["train"]))
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        for epoch in range(first, budget.epochs or 0):
            if epoch and budget.due():
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({"epoch": epoch, **states}, file)
            torch.manual_seed(epoch)
            for x, y in data["train"]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            budget.should_stop()
        return Trained()


def test_a_folder_is_kept_over_a_restart_and_belongs_to_its_training(tmp_path: Path) -> None:
    expected, stats, _ = fit(InFolder(), trainings(tmp_path / "whole"), plan_of())
    with pytest.raises(Killed):
        fit(InFolder(), trainings(tmp_path), plan_of(), die_at=4)
    files = list(tmp_path.glob("trainings/*/files/last.pt"))
    assert len(files) == 1
    model, again, taken = fit(InFolder(), trainings(tmp_path), plan_of())
    assert model.tobytes() == expected.tobytes() and again.steps == stats.steps and taken < 4
    fit(InFolder(), trainings(tmp_path), plan_of(seed=8))
    assert len(list(tmp_path.glob("trainings/*/files/last.pt"))) == 2
    trainings(tmp_path).drop(7)
    assert not list(tmp_path.glob("trainings/*"))


def test_without_a_state_directory_the_folder_is_temporary(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    learner = learner_of(InFolder())
    learner.train(learner.initial_model(3), plan_of())
    assert not list(tmp_path.iterdir())

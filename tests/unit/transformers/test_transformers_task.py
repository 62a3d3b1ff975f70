"""A `Trainer` as a task: what it does is what a plain loop does, and its optimizer and schedule last over rounds."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tools.killed_trainings import Killed, fit, trainings
from torch import Tensor, nn

import peer
from coordinator_free_bootstrap.errors import TaskError
from peer.algorithms.learner import TrainingPlan
from peer.learning.check import check_task
from peer.tasks.torchvision_shim import import_for_user_code

import_for_user_code()  # transformers imports torchvision
transformers = pytest.importorskip("transformers", reason="no package transformers: pip install 'coordinator-free[hf]'")
SAMPLES, BATCH, ROUNDS = 24, 8, 4


@pytest.fixture(scope="module", autouse=True)
def _modules_are_frozen() -> None:
    """Import what is imported lazily, and keep it out of the garbage collection that follows each training."""
    assert transformers.Trainer and transformers.TrainingArguments
    gc.freeze()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def arrays(site: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(site)
    x = torch.randn(SAMPLES + 12, 4, generator=draw)
    return x, (x @ torch.arange(12.0).reshape(4, 3)).argmax(1)


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


def load_data(site: int) -> dict[str, Rows]:
    x, y = arrays(site)
    return {"train": Rows(x[:SAMPLES], y[:SAMPLES]), "test": Rows(x[SAMPLES:], y[SAMPLES:])}


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


class Makes:
    """A script's function with settings."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.settings = {
            **{"output_dir": str(folder / "trainer"), "use_cpu": True, "learning_rate": 0.05, "num_train_epochs": 8},
            **{"per_device_train_batch_size": BATCH, "train_sampling_strategy": "sequential", "weight_decay": 0.01},
            **settings,
        }

    def __call__(self, model: Any, data: Any) -> Any:
        args = transformers.TrainingArguments(**self.settings)
        return transformers.Trainer(
            model=model, args=args, train_dataset=data["train"], eval_dataset=data["test"], compute_metrics=accuracy
        )


class Plain(peer.Task):
    """AdamW with a rate that falls to 0 over all rounds, and clipped gradients, as a Trainer does by default."""

    falls = True

    def make_model(self) -> nn.Module:
        return Classifier()

    def load_data(self, peer_id: int) -> Any:
        return {"of": peer_id}

    def count(self, data: Any) -> int:
        return SAMPLES

    def train(self, model: nn.Module, data: Any, budget: peer.Budget) -> peer.Trained:
        x, y = arrays(data["of"])
        rate = 0.05 if self.falls else budget.learning_rate
        groups = [
            {"params": [p for n, p in model.named_parameters() if "weight" in n], "weight_decay": 0.01},
            {"params": [p for n, p in model.named_parameters() if "bias" in n], "weight_decay": 0.0},
        ]
        total = 8 * SAMPLES // BATCH
        optimizer = budget.keep("optimizer", lambda: torch.optim.AdamW(groups, rate))
        falling = lambda step: (total - step) / total if self.falls else 1.0  # noqa: E731
        scheduler = budget.keep("scheduler", lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, falling))
        for _ in range(budget.epochs or 0):
            for start in range(0, SAMPLES, BATCH):
                optimizer.zero_grad()
                model(x[start : start + BATCH], y[start : start + BATCH])["loss"].backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
        return peer.Trained()

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, float]:
        x, y = arrays(data["of"])
        found = model(x[SAMPLES:], y[SAMPLES:])
        return {"accuracy": float((found["logits"].argmax(1) == y[SAMPLES:]).float().mean())}


def simulated(task: peer.Task, folder: Path, **run: Any) -> list[np.ndarray]:
    """Return the personalized models of three peers."""
    settings = {"algorithm": "dfedavg", "rounds": ROUNDS, "local_epochs": 2, **run}
    graph = peer.Graph.make("ring", peers=3, run=settings)
    peer.simulate(graph, task, out=folder, progress=False)
    files = [folder / f"peer-{i}" / "models" / "personalized.safetensors" for i in graph.ids]
    return [np.concatenate([tensor.ravel() for _, tensor in sorted(load_file(file).items())]) for file in files]


def history(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "peer-0" / "history.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "round"]


def as_task(make: Makes, **options: Any) -> peer.Task:
    found: peer.Task = peer.transformers.task(Classifier, load_data, make, **options)
    return found


@pytest.mark.parametrize(
    "settings",
    [{"algorithm": "dfedavg"}, {"algorithm": "ditto", "options": {"strength": 0.5}}],
    ids=["dfedavg", "ditto"],
)
def test_a_trainer_gives_what_the_same_loop_gives(settings: dict[str, Any], tmp_path: Path) -> None:
    expected = simulated(Plain(), tmp_path / "plain", **settings)
    actual = simulated(as_task(Makes(tmp_path)), tmp_path / "trainer", **settings)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    last = history(tmp_path / "trainer")[-1]
    assert last["metric_value"] == pytest.approx(history(tmp_path / "plain")[-1]["metric_value"])
    assert last["train_loss"] > 0 and last["loss"] > 0


def test_the_rate_of_the_run_is_used_where_it_is_asked_for(tmp_path: Path) -> None:
    plain = Plain()
    plain.falls = False
    expected = simulated(plain, tmp_path / "plain", learning_rate=0.02)
    actual = simulated(as_task(Makes(tmp_path), rate="run"), tmp_path / "trainer", learning_rate=0.02)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_each_round_has_another_order_and_a_start_the_same(tmp_path: Path) -> None:
    class Seen(Rows):
        orders: list[tuple[int, ...]] = []  # noqa: RUF012

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            self.orders[-1] += (index,)
            return super().__getitem__(index)

    x, y = arrays(0)
    data = {"train": Seen(x[:SAMPLES], y[:SAMPLES]), "test": Rows(x, y)}
    for settings in ({}, {"data_seed": 3}):
        make = Makes(tmp_path, train_sampling_strategy="random", **settings)

        def made(model: Any, data: Any, make: Makes = make) -> Any:
            Seen.orders.append(())
            return make(model, data)

        task = peer.transformers.task(Classifier, lambda site: data, made)
        seen = []
        for folder in "ab":
            Seen.orders.clear()
            graph = peer.Graph.make("line", peers=2, run={"algorithm": "local", "rounds": 3, "local_epochs": 1})
            peer.simulate(graph, task, out=tmp_path / folder / str(settings), progress=False)
            seen.append(list(Seen.orders))
        assert seen[0] == seen[1]
        assert len({order for order in seen[0] if len(order) == SAMPLES}) >= 6, "of two peers and three rounds"


def test_a_round_shows_and_saves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    simulated(as_task(Makes(tmp_path, save_steps=1, logging_steps=1)), tmp_path / "out", rounds=1)
    assert list((tmp_path / "trainer").iterdir()) == []
    said = capfd.readouterr()
    assert "loss" not in said.out + said.err and "it/s" not in said.out + said.err


def test_a_schedule_that_is_over_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    simulated(as_task(Makes(tmp_path, num_train_epochs=4)), tmp_path / "out", rounds=3)
    assert "learning rate 0 from the begin of round 2" in caplog.text
    assert "round 1:" not in caplog.text


def test_what_is_missing_or_of_another_kind_is_said(tmp_path: Path) -> None:
    def task(**options: Any) -> peer.Task:
        return as_task(Makes(tmp_path, **options))

    cases: list[tuple[peer.Task, str]] = [
        (
            peer.transformers.task(Classifier, load_data, lambda model, data: 3),
            "expected a transformers.Trainer, got an int",
        ),
        (
            peer.transformers.task(Classifier, load_data, lambda model, data: Makes(tmp_path)(Classifier(), data)),
            "expected a Trainer with the model that it gets, got another one",
        ),
        (
            peer.transformers.task(Classifier, arrays, Makes(tmp_path)),
            "load_data: expected a dict of data sets.*got a tuple",
        ),
        (
            task(load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps"),
            "load_best_model_at_end: expected False",
        ),
        (as_task(Makes(tmp_path), metric=peer.Metric("f1")), "expected one of eval_f1, eval_test_f1, got eval_loss"),
    ]
    for each, sentence in cases:
        with pytest.raises(TaskError, match=sentence):
            check_task(each)


class Noisy(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 3))


@pytest.mark.parametrize("step", [1, 3, 5])  # of six in two epochs
def test_a_training_goes_on_inside_an_epoch_with_the_same_bits(tmp_path: Path, step: int) -> None:
    task = peer.transformers.task(Noisy, load_data, Makes(tmp_path, train_sampling_strategy="random"))
    plan = TrainingPlan(epochs=2, seed=7, learning_rate=0.1)
    expected, whole, asked = fit(task, trainings(tmp_path / "whole"), plan)
    with pytest.raises(Killed):
        fit(task, trainings(tmp_path), plan, die_at=2 * step)  # asked before and after each step
    assert [path.name for path in tmp_path.glob("trainings/*/files/checkpoint-*")] == [f"checkpoint-{step}"]
    told: list[int] = []
    model, again, asked_again = fit(task, trainings(tmp_path, on_resume=told.append), plan)
    assert model.tobytes() == expected.tobytes()
    assert told == [step]
    assert again.steps == whole.steps == 6
    assert asked_again < asked


def test_a_checkpoint_that_was_cut_is_not_used(tmp_path: Path) -> None:
    task, plan = as_task(Makes(tmp_path)), TrainingPlan(epochs=2, seed=7, learning_rate=0.1)
    expected, _, _ = fit(task, trainings(tmp_path / "whole"), plan)
    with pytest.raises(Killed):
        fit(task, trainings(tmp_path), plan, die_at=8)
    (last,) = tmp_path.glob("trainings/*/files/checkpoint-4")
    (last.parent / "checkpoint-5").mkdir()  # killed while it was written
    model, _, _ = fit(task, trainings(tmp_path), plan)
    assert model.tobytes() == expected.tobytes()

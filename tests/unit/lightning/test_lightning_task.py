"""A LightningModule as a task: what its Trainer does is what a plain loop does, and what it keeps lasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tools.killed_trainings import Killed, fit, trainings
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import peer
from coordinator_free_bootstrap.errors import TaskError
from peer.algorithms.learner import TrainingPlan
from peer.learning.check import check_task
from peer.learning.learner import TorchLearner
from peer.tasks.torchvision_shim import import_for_user_code

import_for_user_code()  # torchmetrics imports torchvision
pl = pytest.importorskip("lightning.pytorch", reason="no package lightning: pip install 'coordinator-free[lightning]'")
SAMPLES, BATCH = 24, 8


def sets(site: int) -> dict[str, TensorDataset]:
    draw = torch.Generator().manual_seed(site)
    x = torch.randn(SAMPLES + 12, 4, generator=draw)
    y = (x @ torch.arange(12.0).reshape(4, 3)).argmax(1)
    return {"train": TensorDataset(x[:SAMPLES], y[:SAMPLES]), "test": TensorDataset(x[SAMPLES:], y[SAMPLES:])}


def loaders(site: int) -> dict[str, DataLoader[Any]]:
    return {part: DataLoader(each, batch_size=BATCH) for part, each in sets(site).items()}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Net(pl.LightningModule):
    """With a schedule by epochs, and momentum: both are lost unless they last over rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch: Any, index: int) -> None:
        outputs = self(batch[0])
        right = (outputs.argmax(1) == batch[1]).float().mean()
        self.log_dict({"test_accuracy": right, "test_loss": nn.functional.cross_entropy(outputs, batch[1])})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)]


class Plain(peer.Task):
    """The same as a loop."""

    clip: float | None = None

    def make_model(self) -> nn.Module:
        module = nn.Module()
        module.net = network()
        module.forward = module.net.forward
        return module

    def load_data(self, peer_id: int) -> Any:
        return loaders(peer_id)

    def train(self, model: nn.Module, data: Any, budget: peer.Budget) -> peer.Trained:
        optimizer = budget.keep("optimizer", lambda: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        scheduler = budget.keep("scheduler", lambda: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5))
        total = 0.0
        for _ in range(budget.epochs or 0):
            for x, y in data["train"]:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model.net(x), y)
                loss.backward()
                if self.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                total += float(loss.detach()) * len(y)
            scheduler.step()
        return peer.Trained(loss=total / SAMPLES / (budget.epochs or 1))


def simulated(task: peer.Task, folder: Path, **run: Any) -> list[np.ndarray]:
    """Return the personalized models of three peers."""
    settings = {"algorithm": "dfedavg", "rounds": 4, "local_epochs": 2, **run}
    graph = peer.Graph.make("ring", peers=3, run=settings)
    peer.simulate(graph, task, out=folder, progress=False)
    files = [folder / f"peer-{i}" / "models" / "personalized.safetensors" for i in graph.ids]
    return [np.concatenate([tensor.ravel() for _, tensor in sorted(load_file(file).items())]) for file in files]


def history(folder: Path) -> list[dict[str, Any]]:
    import json

    lines = [json.loads(line) for line in (folder / "peer-0" / "history.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "round"]


@pytest.mark.parametrize(
    "settings",
    [{"algorithm": "dfedavg"}, {"algorithm": "ditto", "options": {"strength": 0.5}}],
    ids=["dfedavg", "ditto"],
)
def test_a_trainer_gives_what_the_same_loop_gives(settings: dict[str, Any], tmp_path: Path) -> None:
    expected = simulated(Plain(), tmp_path / "plain", **settings)
    actual = simulated(peer.lightning.task(Net, loaders), tmp_path / "lightning", **settings)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    plain, lightning = history(tmp_path / "plain")[-1], history(tmp_path / "lightning")[-1]
    assert lightning["train_loss"] == pytest.approx(plain["train_loss"], abs=1e-5)
    assert lightning["metric_value"] == pytest.approx(plain["metric_value"])
    assert lightning["train_numbers"].keys() == {"train_loss"}


def test_options_of_the_trainer_are_followed(tmp_path: Path) -> None:
    plain = Plain()
    plain.clip = 0.05
    expected = simulated(plain, tmp_path / "plain")
    actual = simulated(peer.lightning.task(Net, loaders, trainer={"gradient_clip_val": 0.05}), tmp_path / "lightning")
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    parts = lambda: {"accumulate_grad_batches": 3}  # noqa: E731
    simulated(peer.lightning.task(Net, loaders, trainer=parts), tmp_path / "parts", rounds=1)
    whole = {"accumulate_grad_batches": 1, "limit_train_batches": 1}
    simulated(peer.lightning.task(Net, loaders, trainer=whole), tmp_path / "one", rounds=1)
    losses = [history(tmp_path / name)[0]["train_loss"] for name in ("parts", "one")]
    assert losses[0] == pytest.approx(losses[1], rel=0.5), "the loss of a step in parts is not that of a part"


def test_epochs_and_steps_go_on_and_callbacks_keep_their_state(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []

    class Counts(pl.Callback):
        rounds = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            seen.append((self.rounds, trainer.current_epoch, trainer.global_step))
            self.rounds += 1

        def state_dict(self) -> dict[str, Any]:
            return {"rounds": self.rounds}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.rounds = state["rounds"]

    task = peer.lightning.task(Net, loaders, trainer={"callbacks": [Counts()]})
    graph = peer.Graph.make("line", peers=2, run={"algorithm": "local", "rounds": 3, "local_epochs": 2})
    peer.simulate(graph, task, progress=False, out=tmp_path)
    assert seen[-6:] == sorted(2 * [(0, 0, 0), (1, 2, 6), (2, 4, 12)]), "the rounds of two peers"


def test_what_a_trainer_keeps_must_be_plain() -> None:
    class Odd(Net):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["odd"] = object()

    with pytest.raises(TaskError, match=r"keep: state\['trainer'\]\['odd'\]: expected a tensor.* got an object"):
        check_task(peer.lightning.task(Odd, loaders))


def test_a_split_of_a_data_module_is_drawn_once(tmp_path: Path) -> None:
    trained: list[frozenset[float]] = []

    class Module(pl.LightningDataModule):
        def __init__(self, site: int) -> None:
            super().__init__()
            self.site = site

        def setup(self, stage: str) -> None:
            self.train, self.held = random_split(sets(self.site)["train"], [16, 8])
            if stage == "fit":
                trained.append(frozenset(float(x[0]) for x, _ in self.train))

        def train_dataloader(self) -> Any:
            return DataLoader(self.train, batch_size=8, shuffle=True)

        def val_dataloader(self) -> Any:
            return DataLoader(self.held, batch_size=8)

    class Validated(Net):
        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    task = peer.lightning.task(Validated, Module)
    run = {"algorithm": "dfedavg", "rounds": 3}
    peer.simulate(peer.Graph.make("line", peers=2, run=run), task, progress=False, out=tmp_path / "a")
    first = list(trained)
    peer.simulate(peer.Graph.make("line", peers=2, run=run), task, progress=False, out=tmp_path / "b")
    assert len(set(first)) == 2 and set(trained) == set(first), "one split for each peer, the same at each start"
    assert history(tmp_path / "a")[-1]["metric_value"] is not None


def test_a_round_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    simulated(peer.lightning.task(Net, loaders), tmp_path / "out", rounds=2)
    assert list(work.iterdir()) == []
    saving = {"callbacks": [pl.callbacks.ModelCheckpoint(dirpath=work / "asked", save_top_k=-1)]}
    simulated(peer.lightning.task(Net, loaders, trainer=saving), tmp_path / "asked", rounds=2)
    assert [path.name for path in work.iterdir()] == ["asked"] and list((work / "asked").iterdir())


def test_a_run_in_steps_ends_each_round_after_its_steps() -> None:
    class Steps(Net):
        def on_train_start(self) -> None:
            counts.append(self.trainer.global_step)

    counts: list[int] = []
    task = peer.lightning.task(Steps, loaders)
    learner, state = TorchLearner(task, task.load_data(0)), {}
    theta = learner.initial_model(0)
    for _ in range(3):
        plan = TrainingPlan(4, 0, 0.1, unit="step", optimizer_state=state)
        theta, stats = learner.train(theta, plan)
        state = stats.optimizer_state
        assert (stats.steps, stats.samples) == (4, 4 * BATCH)
    assert counts == [0, 4, 8]


def test_what_is_missing_or_of_another_kind_is_said() -> None:
    cases: list[tuple[peer.Task, str]] = [
        (peer.lightning.task(network, loaders), "make_module: expected a LightningModule, got a Sequential"),
        (peer.lightning.task(Net, lambda site: 5), "make_data: expected a LightningDataModule.*got an int"),
        (peer.lightning.task(Net, lambda site: {"training": 5}), "make_data: expected loaders of train.*got training"),
        (
            peer.lightning.task(Net, loaders, metric=peer.Metric("dice")),
            "expected one of test_dice, dice, .*got test_accuracy, test_loss",
        ),
        (
            peer.lightning.task(Net, lambda site: {"train": loaders(site)["train"]}),
            "expected a test_step with test data",
        ),
        (
            peer.lightning.task(Net, loaders, trainer={"num_nodes": 2}),
            "expected one process and device at a peer, got 2",
        ),
    ]
    for task, sentence in cases:
        with pytest.raises(TaskError, match=sentence):
            check_task(task)


class Noisy(Net):
    """With dropout, and random augmentation in its loader: both draw numbers between and within steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 3))


class Augmented(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(4), y


def shuffled(site: int) -> dict[str, DataLoader[Any]]:
    data = sets(site)
    train = DataLoader(Augmented(*data["train"].tensors), batch_size=4, shuffle=True)
    return {"train": train, "test": DataLoader(data["test"], batch_size=4)}


class Shuffled(pl.LightningDataModule):
    def __init__(self, site: int) -> None:
        super().__init__()
        self.loaders = shuffled(site)

    def train_dataloader(self) -> Any:
        return self.loaders["train"]

    def test_dataloader(self) -> Any:
        return self.loaders["test"]


@pytest.mark.parametrize("make_data", [shuffled, Shuffled])
@pytest.mark.parametrize("step", [1, 5, 6, 8])  # of 12 in two epochs; the last batch of an epoch has no checkpoint
def test_a_fit_goes_on_inside_an_epoch_with_the_same_bits(tmp_path: Path, make_data: Any, step: int) -> None:
    plan, task = TrainingPlan(epochs=2, seed=7, learning_rate=0.1), peer.lightning.task(Noisy, make_data)
    expected, whole, asked = fit(task, trainings(tmp_path / "whole"), plan)
    asked_before = 2 * step - (step > 5)  # before and after each step
    assert (whole.steps, asked) == (12, 22)
    with pytest.raises(Killed):
        fit(task, trainings(tmp_path), plan, die_at=asked_before)
    (file,) = tmp_path.glob("trainings/*/files/*")
    assert file.name == "last.safetensors"
    told: list[int] = []
    model, again, asked_again = fit(task, trainings(tmp_path, on_resume=told.append), plan)
    assert model.tobytes() == expected.tobytes()
    assert told == [step - (step == 6)]
    assert again.steps == whole.steps
    assert asked_again < asked


def test_a_damaged_checkpoint_of_a_fit_is_named_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan, task = TrainingPlan(epochs=2, seed=7, learning_rate=0.1), peer.lightning.task(Noisy, shuffled)
    expected, _, asked = fit(task, trainings(tmp_path / "whole"), plan)
    with pytest.raises(Killed):
        fit(task, trainings(tmp_path), plan, die_at=6)
    (file,) = tmp_path.glob("trainings/*/files/*")
    file.write_bytes(file.read_bytes()[:-9])
    model, _, asked_again = fit(task, trainings(tmp_path), plan)
    assert model.tobytes() == expected.tobytes()
    assert asked_again == asked
    assert f"{file}: cannot be read" in caplog.text

"""A task's own training loop: its budget, what it keeps, and that it gives what the built-in loop gives."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peer
from coordinator_free_bootstrap.errors import ConfigError, PeerError, UsageError
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.registry import algorithms
from peer.learning.check import check_task
from peer.tasks import Budget, Shard, Task, Trained

FEATURES, CLASSES, SAMPLES = 4, 3, 24


def arrays(peer_id: int) -> dict[str, Any]:
    draw = np.random.default_rng(peer_id)
    x = draw.normal(size=(SAMPLES + 12, FEATURES)).astype(np.float32)
    y = (x @ np.arange(FEATURES * CLASSES).reshape(FEATURES, CLASSES)).argmax(1)
    x[:, 0] += peer_id % 2
    return {"train_x": x[:SAMPLES], "train_y": y[:SAMPLES], "test_x": x[SAMPLES:], "test_y": y[SAMPLES:]}


class Plain(Task):
    """The built-in loop."""

    classes = CLASSES

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def load_shard(self, peer_id: int) -> Shard:
        return Shard(**arrays(peer_id))


class Same(Plain):
    """The steps of the built-in loop with ``run.batch_size = "all"``, as a user would write them."""

    momentum = 0.0

    def optimizer(self, model: nn.Module, budget: Budget) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), budget.learning_rate, momentum=self.momentum)

    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained:
        optimizer = budget.keep("optimizer", lambda: self.optimizer(model, budget))
        x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
        total = 0.0
        steps = budget.steps or budget.epochs or 0
        for _ in range(steps):
            if budget.should_stop():
                break
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        return Trained(loss=total / steps, samples=steps * len(y))


class Loaders(Same):
    """The same on loaders, evaluated by `loss` and `metric`."""

    def load_data(self, peer_id: int) -> Any:
        found = {name: torch.from_numpy(values) for name, values in arrays(peer_id).items()}
        train, test = (TensorDataset(found[f"{part}_x"], found[f"{part}_y"]) for part in ("train", "test"))
        return {"train": DataLoader(train, batch_size=SAMPLES, shuffle=False), "test": DataLoader(test, batch_size=5)}

    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained:
        optimizer = self.optimizer(model, budget)
        for _ in range(budget.steps or budget.epochs or 0):
            for x, y in data["train"]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        return Trained()


class Opaque(Same):
    """The same on data of which only the task knows what they are."""

    metric_name = "accuracy"

    def load_data(self, peer_id: int) -> Any:
        return {"of": peer_id, **arrays(peer_id)}

    def count(self, data: Any) -> int:
        return len(data["train_y"])

    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained:
        shard = Shard(**{name: values for name, values in data.items() if name != "of"})
        return super().train(model, shard, budget)

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        outputs, targets = model(torch.from_numpy(data["test_x"])), torch.from_numpy(data["test_y"])
        return {
            "accuracy": float((outputs.argmax(1) == targets).float().mean()),
            "loss": float(nn.functional.cross_entropy(outputs, targets)),
        }


class OpaqueWithLosses(Opaque):
    """With what clusters need."""

    def losses(self, model: nn.Module, data: Any) -> Tensor:
        outputs, targets = model(torch.from_numpy(data["train_x"])), torch.from_numpy(data["train_y"])
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def subset(self, data: Any, indices: Any) -> Any:
        return {**data, "train_x": data["train_x"][indices], "train_y": data["train_y"][indices]}


class OfSteps(Plain):
    """A loop that knows steps only."""

    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained:
        assert budget.steps is not None and budget.epochs is None
        optimizer = torch.optim.SGD(model.parameters(), budget.learning_rate)
        x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
        for _ in range(budget.steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return Trained(samples=budget.steps * len(x))


def test_a_trial_counts_what_the_run_counts() -> None:
    graph = peer.Graph.make("line", peers=2, run={"rounds": 1, "local_unit": "step", "local_epochs": 3})
    assert peer.simulate(graph, OfSteps(), progress=False).metrics["rounds"] == 1
    assert "training" in {finding.what for finding in check_task(OfSteps(), unit="step")}
    with pytest.raises(PeerError, match="AssertionError"):  # a run of epochs gives it none
        check_task(OfSteps())


def models_of(task: Task, tmp_path: Any, name: str, **run: Any) -> list[np.ndarray]:
    """Return the personalized model of each of three peers after a run in one process."""
    settings = {"rounds": 3, "batch_size": "all", "local_epochs": 2, "learning_rate": 0.1, **run}
    graph = peer.Graph.make("ring", peers=3, run=settings)
    peer.simulate(graph, task, out=tmp_path / name, progress=False)
    files = [tmp_path / name / f"peer-{i}" / "models" / "personalized.safetensors" for i in graph.ids]
    return [np.concatenate([tensor.ravel() for _, tensor in sorted(load_file(file).items())]) for file in files]


ALGORITHMS: dict[str, dict[str, Any]] = {
    "dfedavg": {},
    "dpsgd": {},
    "local": {},
    "dfca": {"clusters": 2},
    "ditto": {"options": {"strength": 0.5}},
    "fedprox": {},
    "fedsoft": {"clusters": 2},
    "fedrep": {"private_parameters": ["2.*"]},
    "fedspd": {"clusters": 2},
    "pfedme": {"options": {"inner_steps": 1, "strength": 2.0}},
    "cgpfl": {"clusters": 2, "options": {"inner_steps": 1, "strength": 2.0}},
    "ifca": {"clusters": 2},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_loop_gives_the_same_models_as_the_built_in_one(algorithm: str, tmp_path: Any) -> None:
    settings = {"algorithm": algorithm, **ALGORITHMS[algorithm]}
    expected = models_of(Plain(), tmp_path, "built-in", **settings)
    actual = models_of(Same(), tmp_path, "own", **settings)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.parametrize("task", [Same, Loaders, Opaque, OpaqueWithLosses])
def test_data_of_every_kind_train_to_the_same_bits(task: type[Task], tmp_path: Any) -> None:
    expected = models_of(Plain(), tmp_path, "built-in", algorithm="dfedavg")
    for ours, theirs in zip(models_of(task(), tmp_path, "own", algorithm="dfedavg"), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("algorithm", ["dfca", "fedspd", "fedsoft"])
def test_own_losses_choose_the_clusters_that_the_built_in_ones_choose(algorithm: str, tmp_path: Any) -> None:
    expected = models_of(Plain(), tmp_path, "built-in", algorithm=algorithm, clusters=2)
    for task in (Loaders(), OpaqueWithLosses()):
        actual = models_of(task, tmp_path, type(task).__name__, algorithm=algorithm, clusters=2)
        for ours, theirs in zip(actual, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_what_a_loop_keeps_lasts_over_rounds(tmp_path: Any) -> None:
    class WithMomentum(Same):
        momentum = 0.9

    kept = {"momentum": 0.9, "optimizer_state": "keep"}
    expected = models_of(Plain(), tmp_path, "built-in", algorithm="dfedavg", **kept)
    actual = models_of(WithMomentum(), tmp_path, "own", algorithm="dfedavg")
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_an_algorithm_without_what_it_needs_is_refused_with_those_that_work(tmp_path: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"run\.algorithm: expected one .*dfedavg.*got 'dfca', which needs the loss"
    ) as told:
        models_of(Opaque(), tmp_path, "own", algorithm="dfca")
    assert "losses" in str(told.value) and "fedem" not in str(told.value)
    with pytest.raises(ConfigError, match="'apfl', which needs single steps on batches"):
        models_of(Same(), tmp_path, "own", algorithm="apfl")


def test_the_table_of_the_page_says_what_the_algorithms_need() -> None:
    page = (Path(__file__).parents[3] / "docs" / "your-own-loop.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    said: dict[str, frozenset[str]] = {}
    for names, asked in rows:
        words = {"losses(": "losses", "subset(": "subset", "outputs": "outputs", "single steps": "batches"}
        for name in re.findall(r"`(\w+)`", names.split(" with ")[0]):
            said.setdefault(name, frozenset(ability for word, ability in words.items() if word in asked))
    known = algorithms().items()  # those of examples in docstrings too, which are in no module
    ours = {name: kind for name, kind in known if getattr(sys.modules[kind.__module__], kind.__name__, None) is kind}
    ours = {name: kind for name, kind in ours.items() if kind.__module__.startswith("peer.")}
    assert said.keys() == ours.keys()
    for name, kind in ours.items():
        asked = kind.needs(Manifest(algorithm=name, rounds=60, clusters=2))
        strongest = {"batches"} & asked or {"outputs"} & asked or {"subset"} & asked or asked
        assert said[name] == strongest, name


FILE = """
import peer
class Own(peer.Task):
    def make_model(self): ...
    def load_data(self, peer_id): ...
    def train(self, model, data, budget): ...
task = Own()
"""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 10),
        ("optimizer", "adam"),
        ("momentum", 0.5),
        ("gradient_clip", 1.0),
        ("weight_decay", 0.1),
    ],
)
def test_a_key_of_the_built_in_loop_is_refused_where_a_task_has_its_own(key: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FILE)
    with pytest.raises(UsageError, match=f"run.{key}: expected no value .no effect, because .* trains in its own loop"):
        peer.Graph.make("line", peers=2, run={"task": f"{tmp_path}/own.py:task", key: value})

"""A user's task: loading, options and errors; the examples in the repository learn."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import ShardError, TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.learner import TrainingPlan
from peer.learning.check import check_task
from peer.learning.learner import TorchLearner
from peer.tasks.loading import ENTRY_POINTS, load_task
from peer.tasks.shard_file import save_shard
from peer.view.models.saved import SavedModel

EXAMPLES = Path(__file__).parents[3] / "examples"

GOOD = """
import numpy as np
from torch import nn
from peer.tasks import Shard, Task

class Mine(Task):
    classes = 2
    def __init__(self, width=4):
        self.width = width
    def make_model(self):
        return nn.Sequential(nn.Linear(3, self.width), nn.ReLU(), nn.Linear(self.width, 2))
    def load_shard(self, peer_id):
        x = np.random.default_rng(peer_id).normal(size=(30, 3))
        y = (x[:, 0] > 0).astype(int)
        return Shard(train_x=x[:20], train_y=y[:20], test_x=x[20:], test_y=y[20:])

task = Mine()
number = 3
"""

ODD = """
import torch
class Odd(torch.nn.Module):
    def forward(self, x):
        raise KeyError("odd")
"""


def more(head, value):
    """Return the change that gives the class one more method."""
    return ("\ntask =", f"\n    def {head}:\n        return {value}\n\ntask =")


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


def test_a_task_is_an_object_or_a_class_with_options(mine):
    assert load_task(Manifest(task=f"{mine}:task"), 4).width == 4
    assert load_task(Manifest(task=f"{mine}:Mine", task_options={"width": 9}), 4).width == 9


def test_the_check_lists_findings(mine):
    findings = {f.what: f.seen for f in check_task(load_task(Manifest(task=f"{mine}:task"), 4), 2)}
    assert findings["shard"] == "20 train, 0 validation, 10 test samples of 3"
    assert findings["model"].startswith("26 values in 4 tensors")
    assert "reproducible" in findings["training"]
    assert findings["encoding"].startswith("104 bytes")


def test_the_check_shows_the_preprocessing(tmp_path):
    """Without it, a user learned of a missing declaration only when `peer predict` refused the finished model."""
    seen = {}
    for name, value in (("none", None), ("same", "Preprocessing()"), ("scaled", "Preprocessing(255.0, [0, 1, 2])")):
        text = GOOD.replace("import Shard", "import Preprocessing, Shard")
        (tmp_path / f"{name}.py").write_text(
            text.replace("    classes = 2", f"    classes = 2\n    preprocessing = {value}")
        )
        findings = check_task(load_task(Manifest(task=f"{tmp_path / name}.py:task"), 4))
        seen[name] = next(f.seen for f in findings if f.what == "preprocessing")
    assert seen["none"].startswith("not declared, so peer predict refuses raw samples")
    assert seen["same"].startswith("none")
    assert seen["scaled"] == "(raw / 255 - mean) / std"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "preprocessing = Preprocessing(mean=[1.0, 2.0])",
            r"mean: expected a shape that broadcasts.*, got shape \[2\]",
        ),
        ("preprocessing = Preprocessing(std=[1.0, 0.0, 1.0])", "std: expected positive finite numbers, got "),
        ("preprocessing = Preprocessing(mean=['a'])", "expected numbers, or nested lists of numbers"),
        ("preprocessing = (1.0, 2.0)", "preprocessing: expected a Preprocessing, 'shared', or None, got"),
        ("class_names = ('one',)", "class_names: expected one text for each of the 2 classes.*, got .*"),
    ],
)
def test_wrong_declarations_of_a_task_are_task_errors(tmp_path, line, words):
    text = GOOD.replace("import Shard", "import Preprocessing, Shard").replace(
        "    classes = 2", f"    classes = 2\n    {line}"
    )
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(TaskError, match=words):
        check_task(load_task(Manifest(task=f"{tmp_path / 'wrong.py'}:task"), 4))


def test_a_shard_file_replaces_the_data_of_the_task(mine, tmp_path):
    task = load_task(Manifest(task=f"{mine}:task"), 4)
    save_shard(tmp_path / "peer-1.safetensors", task.load_shard(1))
    carried = load_task(Manifest(task=f"{mine}:task", split="shard"), 4, shard_path=tmp_path / "peer-1.safetensors")
    learner = TorchLearner(carried, carried.load_shard(0))
    assert np.array_equal(learner.shard.train_x, task.load_shard(1).train_x.astype(np.float32))
    assert learner.evaluate(learner.initial_model(0)).metric_name == "accuracy"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mine.py:other", {}, "expected the name of an object in mine.py, .* got 'other'"),
        ("mine.py:number", {}, "got an int"),
        ("mine.py:task", {"width": 3}, "expected none for .*, which is an object, got "),
        ("mine.py:Mine", {"depth": 3}, "cannot be made"),
        ("missing.py:task", {}, "got no file"),
        ("data.txt:task", {}, "expected a Python file"),
        ("broken.py:task", {}, r"imported: ModuleNotFoundError.*broken.py, line 1\)"),
        ("half.py:Half", {}, "abstract"),
        (
            "picky.py:Picky",
            {"width": 3},
            r"cannot be made with task_options .*: ValueError: too narrow \(.*picky.py, line 21\)",
        ),
        ("unknown-task", {}, "linear, mnist, tabular, or your file"),
        ("picky.py:Picky", {"width": 3}, "cannot be made with task_options .*: ValueError: too narrow"),
        ("unknown-task", {}, "expected one of cifar10.*, or your file"),
    ],
)
def test_wrong_tasks_are_task_errors(mine, monkeypatch, name, options, words):
    monkeypatch.chdir(mine.parent)
    Path("data.txt").write_text("")
    Path("broken.py").write_text("import nothing_of_this_name")
    picky = "class Picky(Mine):\n    def __init__(self, width):\n        raise ValueError('too narrow')\n"
    Path("picky.py").write_text(GOOD + picky)
    Path("half.py").write_text("from peer.tasks import Task\nclass Half(Task):\n    pass\n")
    with pytest.raises(TaskError, match=words):
        load_task(Manifest(task=name, task_options=options), 4)


def test_a_task_may_import_files_of_its_folder(tmp_path):
    (tmp_path / "beside_my_task.py").write_text(GOOD)
    (tmp_path / "mine.py").write_text("from beside_my_task import task")
    assert load_task(Manifest(task=f"{tmp_path / 'mine.py'}:task"), 4).width == 4


def test_an_installed_entry_point_is_loaded_and_its_saved_model_predicts(mine, monkeypatch, tmp_path):
    (tmp_path / "installed_task.py").write_text(GOOD)
    (tmp_path / "installed-1.dist-info").mkdir()
    (tmp_path / "installed-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    (tmp_path / "installed-1.dist-info" / "entry_points.txt").write_text(
        f"[{ENTRY_POINTS}]\nweather = installed_task:task\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    task = load_task(Manifest(task="weather"), 4)
    assert task.width == 4
    tensors = {name: tensor.numpy() for name, tensor in task.make_model().state_dict().items()}
    saved = SavedModel(tmp_path, tensors, {"sample_shape": "[3]", "frozen_digest": ""})
    assert saved.predict(Manifest(task="weather"), np.zeros((5, 3), np.float32)).shape == (5, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("(30, 3)", "(30, 5)"), "accepts samples of shape"),
        (("(x[:, 0] > 0).astype(int)", "np.arange(30)"), "expected 0..1"),
        (("classes = 2", "classes = 3"), "expected 3 outputs, one for each class of the task, got 2"),
        (("nn.Linear(3, self.width)", "nn.Linear(3, self.width).double()"), "float64"),
        (("x = np.random", "x = np.load('nowhere.npy'); x = np.random"), r"load_shard\(0\): FileNotFoundError"),
        (("normal(size=(30, 3))", "normal(size=(30, 3)) * 1e30"), "expected finite numbers"),
        (("return nn.Seq", "raise KeyError('x') ; return nn.Seq"), r"make_model\(\): KeyError: 'x'"),
        (("return nn.Seq", "return None and nn.Seq"), r"make_model\(\): expected a Module, got None"),
        (("nn.Linear(3, self.width)", "nn.LazyLinear(4)"), "make_model: expected a shape of 0.weight, got none"),
        (("return Shard(", "return None and Shard("), r"load_shard\(0\): expected a Shard, got None"),
        (("return Shard(", "return dict("), r"load_shard\(0\): expected .*, got a dict"),
        (("return Shard(", "assert x is None\n        return Shard("), r"load_shard\(0\): AssertionError"),
        (more("loss(self, outputs, targets)", "{}['w']"), r"loss\(float32 \[2, 2\], .*KeyError: 'w'"),
        (more("loss(self, outputs, targets)", "outputs.detach().sum(1)"), "training: RuntimeError: element 0"),
        (more("metric(self, outputs, targets)", "1 / 0"), r"metric\(.*: ZeroDivisionError"),
        (more("make_optimizer(self, parameters, rate)", "1 / 0"), r"make_optimizer\(.*: ZeroDivisionError"),
        (more("make_optimizer(self, parameters, rate)", "'sgd'"), "make_optimizer: expected .*, got a str"),
        (("classes = 2", "classes = 'two'"), "expected classes to be an integer of 2 or more, or None, got 'two'"),
        (
            ("classes = 2", "classes = 2\n    kind = 'ranking'"),
            "expected kind to be one of classification, multilabel, regression, got 'ranking'",
        ),
        (("classes = 2", "classes = 2\n    metric_name = 7"), "metric_name: expected .*, got an int"),
        (("nn.ReLU()", "Odd()"), r"accepts samples of shape \[3\], got KeyError: 'odd' \(.*wrong.py, line 5\)"),
    ],
)
def test_the_check_names_the_fault(tmp_path, change, words):
    assert change[0] in GOOD
    path = tmp_path / "wrong.py"
    path.write_text(ODD + GOOD.replace(*change))
    with pytest.raises((TaskError, ShardError), match=words):
        check_task(load_task(Manifest(task=f"{path}:task"), 4))


def test_the_check_refuses_unseeded_initial_values(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(
        GOOD
        + textwrap.dedent(
            """
            class Unseeded(Mine):
                calls = 0
                def make_model(self):
                    model = super().make_model()
                    Unseeded.calls += 1
                    nn.init.constant_(model[0].bias, Unseeded.calls)
                    return model
            """
        )
    )
    with pytest.raises(TaskError, match="expected the same values for the same seed"):
        check_task(load_task(Manifest(task=f"{path}:Unseeded"), 4))


def train_two(task, **settings):
    """Train peer 0's model; return its metric on peer 2's data (the same kind) and on peer 1's (the other kind)."""
    learners = [TorchLearner(task, task.load_shard(i), batch_size=20) for i in range(3)]
    theta = learners[0].initial_model(0)
    theta, _ = learners[0].train(theta, TrainingPlan(seed=0, **settings))
    return learners[2].evaluate(theta).metric, learners[1].evaluate(theta).metric


def test_the_sensor_example_learns_two_kinds_of_machine():
    task = load_task(Manifest(task=f"{EXAMPLES / 'sensor_task.py'}:task"), 6)
    same, other = train_two(task, epochs=20, learning_rate=0.1, momentum=0.9)
    assert same > 0.9
    assert other < 0.6
    assert {f.what for f in check_task(task, 3)} >= {"training", "encoding"}


@pytest.mark.slow
def test_a_task_file_may_import_torchvision(tmp_path):
    """Before, ``import torchvision`` in a user's file failed beside a CPU build of torch: no operator torchvision::nms.

    A fresh process, since torchvision is imported only once per process.
    """
    head = "from torchvision.transforms import Normalize\nimport torchvision\nfrom torchvision import datasets\n"
    (tmp_path / "mine.py").write_text(f"{head}{GOOD}\nassert torchvision.transforms.Normalize is Normalize\n")
    code = "from peer.tasks.loading import load_task; from coordinator_free_bootstrap.manifest import Manifest; "
    code += "load_task(Manifest(task='mine.py:task'), 4); import sys; assert 'torchvision' in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_a_task_file_without_torchvision_does_not_import_it(mine):
    code = "from peer.tasks.loading import load_task; from coordinator_free_bootstrap.manifest import Manifest; "
    code += "load_task(Manifest(task='mine.py:task'), 4); import sys; assert 'torchvision' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=mine.parent, check=True)

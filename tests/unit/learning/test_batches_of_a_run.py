"""Before a run the model gets batches of all its sizes; a wrong form of outputs, losses or labels is named with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coordinator_free_bootstrap.errors import ShardError, TaskError
from peer.algorithms.learner import TrainingPlan
from peer.learning.bench import EVALUATION_BATCH
from peer.learning.check import check_task, try_learner
from peer.learning.learner import TorchLearner
from peer.tasks import Shard, Task
from peer.tasks.user_code import user_code

FEATURES, CLASSES, BATCH = 6, 3, 10
WHOLE = EVALUATION_BATCH["cpu"]


class Rows(Task):
    """Random rows with labels, or with numbers in regression."""

    classes = CLASSES

    def __init__(self, build, train=2 * BATCH, test=BATCH, regression=False):
        self.build, self.train, self.test = build, train, test
        self.kind = "regression" if regression else "classification"

    def make_model(self):
        return self.build()

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        count = self.train + self.test
        x = draw.normal(size=(count, FEATURES)).astype(np.float32)
        y = draw.normal(size=count) if self.kind == "regression" else draw.integers(0, CLASSES, count)
        cut = self.train
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])


def attempts(task):
    """Yield what finds faults before a run: the check of a task, and the start of a peer."""
    yield lambda: check_task(task, batch_size=BATCH)
    yield lambda: try_learner(TorchLearner(task, task.load_shard(0), batch_size=BATCH), 0.01)


class Squeezed(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.last = nn.Linear(FEATURES, outputs)

    def forward(self, x):
        hidden = x[:, None, :].tanh()
        return self.last(hidden.squeeze()).squeeze()  # the line


class Raising(Squeezed):
    def forward(self, x):
        return self.last(torch.stack([x.squeeze().mean(1)] * FEATURES, 1))  # raises


def line_with(text):
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(f"# {text}"))


@pytest.mark.parametrize(("outputs", "regression"), [(1, True), (CLASSES, False)])
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        ({}, "a batch of 1 sample, as in peer predict"),
        ({"train": 2 * BATCH + 1}, rf"the last training batch \(21 samples, run.batch_size {BATCH}\), 1 sample"),
        (
            {"test": WHOLE + 1},
            rf"the last test batch of an evaluation \({WHOLE + 1} samples, {WHOLE} at a time\), 1 sample",
        ),
    ],
    ids=["one sample", "training", "evaluation"],
)
def test_a_dropped_axis_is_refused_with_batch_and_line(outputs, regression, sizes, batch):
    task = Rows(lambda: Squeezed(outputs), regression=regression, **sizes)
    for attempt in attempts(task):
        with pytest.raises(
            TaskError, match=rf"^{batch}: model: expected one tensor .*, got outputs of shape \["
        ) as error:
            attempt()
        assert f"({__file__}, line {line_with('the line')})" in str(error.value)
        assert "as in .squeeze(-1)" in str(error.value)


def test_a_model_that_fails_for_one_sample_is_refused_with_batch_and_line():
    for attempt in attempts(Rows(lambda: Raising(CLASSES))):
        with pytest.raises(TaskError, match=r"a batch of 1 sample, .*IndexError") as error:
            attempt()
        assert f"({__file__}, line {line_with('raises')})" in str(error.value)


def test_with_its_axis_named_a_squeeze_trains_with_a_last_batch_of_one():
    class Right(Squeezed):
        def forward(self, x):
            return self.last(x).squeeze(-1)

    for attempt in attempts(Rows(lambda: Right(1), regression=True, train=2 * BATCH + 1, test=WHOLE + 1)):
        attempt()


def test_batch_statistics_leave_a_last_training_batch_of_one_out_and_may_refuse_one_sample():
    def build(**settings):
        return lambda: nn.Sequential(nn.BatchNorm1d(FEATURES, **settings), nn.Linear(FEATURES, CLASSES))

    for attempt in attempts(Rows(build(), train=2 * BATCH + 1, test=WHOLE + 1)):
        attempt()
    untracked = build(track_running_stats=False)
    (finding,) = [f for f in check_task(Rows(untracked), batch_size=BATCH) if f.what == "batches"]
    assert finding.seen.startswith("a batch of 1 sample, as in peer predict: model: ")
    for attempt in attempts(Rows(untracked, test=WHOLE + 1)):
        with pytest.raises(TaskError, match="the last test batch of an evaluation"):
            attempt()


def test_outputs_that_depend_on_the_others_of_a_batch_are_told():
    class Centered(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    (finding,) = [f for f in check_task(Rows(lambda: Centered(FEATURES, CLASSES))) if f.what == "batches"]
    assert "depends on the others of its batch" in finding.seen


class Named(nn.Linear):
    def forward(self, x):
        found = super().forward(x)
        return {"logits": found, "hidden": x}


class Paired(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Reduced(nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean()


@pytest.mark.parametrize(
    ("build", "said"),
    [(Named, "got a dict with logits, hidden"), (Paired, "got a tuple"), (Reduced, r"got outputs of shape \[\]")],
)
def test_other_outputs_than_one_tensor_are_refused_with_the_line_of_forward(build, said):
    for attempt in attempts(Rows(lambda: build(FEATURES, CLASSES))):
        with pytest.raises(
            TaskError, match=rf"model: expected one tensor .*, {said} for a batch of 2 samples \(.*, line \d+\)"
        ):
            attempt()


class OwnLoss(Rows):
    def loss(self, outputs, targets):
        return (outputs - targets).square().flatten(1).mean(1)


class OwnMetric(Rows):
    def metric(self, outputs, targets):
        return float(1 - (outputs - targets).square().mean())


class Careful(Rows):
    def loss(self, outputs, targets):
        return functional.mse_loss(outputs.squeeze(-1), targets, reduction="none")


@pytest.mark.parametrize(("kind", "name"), [(OwnLoss, "loss"), (OwnMetric, "metric")])
def test_outputs_that_broadcast_against_the_targets_are_refused(kind, name):
    for attempt in attempts(kind(lambda: nn.Linear(FEATURES, 1), regression=True)):
        with pytest.raises(TaskError, match=rf"{name}: expected outputs of the targets' shape \[2\], got \[2, 1\]"):
            attempt()


def test_outputs_with_an_axis_more_than_the_targets_are_taken_where_the_loss_pairs_them():
    for kind in (Rows, Careful):
        for attempt in attempts(kind(lambda: nn.Linear(FEATURES, 1), regression=True)):
            attempt()


def test_more_outputs_than_targets_are_refused_in_regression():
    for attempt in attempts(Rows(lambda: nn.Linear(FEATURES, 2), regression=True)):
        with pytest.raises(
            TaskError,
            match=r"model: expected as many outputs as targets, got outputs of shape \[2, 2\] for targets of shape \[2\]",
        ):
            attempt()


def test_a_label_without_an_output_is_refused_with_its_row():
    class Open(Rows):
        classes = None

    for attempt in attempts(Open(lambda: nn.Linear(FEATURES, CLASSES - 1))):
        with pytest.raises(ShardError, match=r"train_y\[\d+\]: expected 0..1, got label 2"):
            attempt()


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"weight_decay": 0.01}, {"optimizer": "adam"}, {"gradient_clip": 0.1}]
)
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_train_as_dense_ones(settings, layer):
    """Without momentum and decay the step is that of `torch.optim.SGD`, which takes them; the others are those of dense ones."""

    def build(sparse):
        rest = (nn.Flatten(),) if layer is nn.Embedding else ()
        return nn.Sequential(layer(20, 2, sparse=sparse), *rest, nn.Linear(2 * (FEATURES if rest else 1), CLASSES))

    found = []
    for sparse in (False, True):
        task = Rows(lambda sparse=sparse: build(sparse))
        ids = np.random.default_rng(0).integers(0, 20, (30, FEATURES))
        shard = Shard(train_x=ids, train_y=ids[:, 0] % CLASSES, test_x=ids, test_y=ids[:, 0] % CLASSES)
        learner = TorchLearner(task, shard, batch_size=BATCH)
        try_learner(learner, 0.1)
        found.append(
            learner.train(learner.initial_model(0), TrainingPlan(epochs=3, seed=0, learning_rate=0.1, **settings))[0]
        )
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_an_own_optimizer_for_sparse_gradients_gets_them():
    class Own(Rows):
        def make_optimizer(self, parameters, learning_rate):
            return torch.optim.SparseAdam(list(parameters), lr=learning_rate)

    task = Own(lambda: nn.Sequential(nn.EmbeddingBag(20, CLASSES, sparse=True)))
    ids = np.random.default_rng(0).integers(0, 20, (30, FEATURES))
    shard = Shard(train_x=ids, train_y=ids[:, 0] % CLASSES, test_x=ids, test_y=ids[:, 0] % CLASSES)
    try_learner(TorchLearner(task, shard, batch_size=BATCH), 0.1)


def test_an_error_names_the_users_line_and_not_that_of_a_package_elsewhere(tmp_path):
    """Packages may lie outside of this environment (PYTHONPATH, a user's folder)."""
    package = tmp_path / "lib" / "site-packages" / "other.py"
    package.parent.mkdir(parents=True)
    package.write_text("def fail():\n    raise ValueError('inside')\n")
    own = tmp_path / "mine.py"
    own.write_text("def call(other):\n\n    other()\n")
    spaces = {}
    for path in (package, own):
        exec(compile(path.read_text(), str(path), "exec"), spaces)
    with (
        pytest.raises(TaskError, match=r"ValueError: inside \(.*mine.py, line 3\)"),
        user_code("x"),
    ):
        spaces["call"](spaces["fail"])

"""Stacked training: each model of a stack ends as if it had been trained alone."""

import numpy as np
import pytest
import torch
from torch import nn

from peer.algorithms.learner import TrainingPlan
from peer.lab.stacked import StackedTrainer, TrainRequest
from peer.learning.learner import TorchLearner
from peer.tasks import Shard, Task
from peer.zoo.tasks.models import make_model


class Images(Task):
    """Random images; ``model`` decides which kinds of layers are stacked."""

    classes = 3

    def __init__(self, model):
        self.model = model

    def make_model(self):
        if callable(self.model):
            return self.model()
        return make_model(self.model, (1, 8, 8), 3, {"hidden": 12} if self.model == "mlp" else {})

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        n = 20 + 5 * peer_id
        x = draw.normal(size=(n, 1, 8, 8)).astype(np.float32)
        return Shard(train_x=x, train_y=draw.integers(0, 3, n), test_x=x[:4], test_y=draw.integers(0, 3, 4))


def requests_for(model, peers=3, change=None, size=8, **settings):
    task = Images(model)
    learners = [TorchLearner(task, task.load_shard(peer_id), batch_size=size) for peer_id in range(peers)]
    asked = []
    for peer_id, learner in enumerate(learners):
        own = change(peer_id, learner) if change else {}
        theta = learner.initial_model(peer_id)
        asked.append(
            TrainRequest(
                learner, theta, TrainingPlan(**{"epochs": 2, "learning_rate": 0.05, "seed": peer_id} | settings | own)
            )
        )
    return asked


def agree(asked, atol=1e-5):
    expected = [request.alone() for request in asked]
    found = StackedTrainer().train(asked)
    for (vector, stats), (theirs, their_stats) in zip(expected, found, strict=True):
        np.testing.assert_allclose(theirs, vector, atol=atol)
        assert (their_stats.samples, their_stats.steps) == (stats.samples, stats.steps)
        assert their_stats.loss == pytest.approx(stats.loss, rel=1e-4)
        assert their_stats.metric == pytest.approx(stats.metric, abs=2 / stats.samples)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.1, "momentum": 0.5},
        {"batch_size": "all", "epochs": 3},
        {"unit": "step", "epochs": 7},
        {"batch_size": 5},
    ],
    ids=str,
)
def test_stacked_mlps_with_unequal_shards_equal_single_training(settings):
    agree(requests_for("mlp", **settings))


def test_convolutions_and_batch_norm_see_no_padding():
    agree(requests_for("dfca_cnn"), atol=1e-4)


def test_batch_norm_with_equal_batches_stacks_all():
    agree(requests_for("dfca_cnn", change=lambda i, learner: {"indices": np.arange(16) + i}), atol=1e-4)


def test_each_model_keeps_its_own_samples_weights_and_center():
    def change(peer_id, learner):
        draw = np.random.default_rng(peer_id)
        return {
            "indices": draw.permutation(learner.count())[: 6 + 4 * peer_id],
            "sample_weights": draw.random(learner.count()).astype(np.float32),
            "proximal": (learner.initial_model(99 + peer_id), 0.1 * (peer_id + 1)),
        }

    agree(requests_for("mlp", change=change))


def test_a_model_without_samples_is_unchanged():
    asked = requests_for("mlp", change=lambda i, learner: {"indices": np.arange(0 if i == 1 else 9)})
    found = StackedTrainer().train(asked)
    assert np.array_equal(found[1][0], asked[1].theta)
    assert found[1][1].steps == 0
    assert not np.array_equal(found[0][0], asked[0].theta)


def test_a_stack_runs_the_module_once_per_step():
    """Shows that stacking happens: the module runs once per step, not once per step and model."""
    calls = []

    class Counting(nn.Sequential):
        def forward(self, x):
            calls.append(x.shape)
            return super().forward(x)

    asked = requests_for(lambda: Counting(nn.Flatten(), nn.Linear(64, 3)), peers=3, unit="step", epochs=4)
    calls.clear()
    StackedTrainer().train(asked)
    assert len(calls) == 4


def test_dropout_is_drawn_for_each_model():
    dropout = lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))  # noqa: E731
    task = Images(dropout)
    learner = TorchLearner(task, task.load_shard(0), batch_size=8)
    theta = learner.initial_model(0)
    twice = [TrainRequest(learner, theta, TrainingPlan(epochs=1, learning_rate=0.1, seed=1)) for _ in range(2)]
    (first, _), (second, _) = StackedTrainer().train(twice)
    assert not np.array_equal(first, second)
    assert np.isfinite(first).all()


class Untraceable(nn.Module):
    """A model whose forward depends on values, which vmap does not support."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, x):
        outputs = self.linear(x.flatten(1))
        return outputs if float(outputs.detach().sum()) > -1e9 else -outputs


@pytest.mark.parametrize(
    ("model", "size", "settings"),
    [
        (Untraceable, 8, {}),
        ("mlp", 8, {"optimizer": "adam"}),
        ("mlp", 8, {"optimizer": "adamw", "weight_decay": 0.1}),
        ("mlp", [8, 3], {}),
    ],
    ids=["data-dependent", "adam", "adamw", "in parts"],
)
def test_models_that_cannot_be_stacked_train_one_by_one(model, size, settings):
    asked = requests_for(model, size=size, **settings)
    expected = [request.alone()[0] for request in asked]
    assert all(map(np.array_equal, expected, (vector for vector, _ in StackedTrainer().train(asked))))


def test_an_error_in_the_model_is_raised():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 3)

        def forward(self, x):
            if self.training and torch.is_grad_enabled():
                raise RuntimeError("the sensor is off")
            return self.linear(x.flatten(1))

    with pytest.raises(RuntimeError, match="sensor"):
        StackedTrainer().train(requests_for(Broken))

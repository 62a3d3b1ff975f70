"""A private step: clipped gradients of samples, noise of the system's entropy, batches drawn sample by sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coordinator_free_bootstrap.errors import TaskError
from peer.algorithms.learner import PrivateSteps, TrainingPlan
from peer.learning.private_gradient import PrivateGradient, poisson_batches
from peer.tasks import Preprocessing, Shard
from tests.unit.learning.test_learner import CLASSES, FEATURES, N, Rows, batch_norm, learner


def with_groups():
    return nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, CLASSES)
    )


def private(clip_norm=1.0, noise=1.0, rate=0.3, steps=1):
    return PrivateSteps(steps, rate, noise, clip_norm)


def clipped_sum(subject, batch, clip_norm, weights=None):
    gradient = PrivateGradient(subject, private(clip_norm), N, weights)
    return torch.cat([total.flatten() for total in gradient.clipped_sum(torch.tensor(batch))])


def by_hand(subject, batch, clip_norm):
    """Return the same sum by one backward pass for each sample."""
    total = 0
    for row in batch:
        x, y = subject.samples().batch(torch.tensor([row]))
        loss = functional.cross_entropy(subject.model.module(x), y)
        found = torch.cat([g.flatten() for g in torch.autograd.grad(loss, subject.model.parameters)])
        total = total + found * min(1.0, clip_norm / float(found.norm()))
    return total


@pytest.mark.parametrize("build", [None, with_groups])
@pytest.mark.parametrize("clip_norm", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("at_a_time", [None, 1, 3])
def test_sum_of_clipped_gradients_is_that_of_single_backward_passes(build, clip_norm, at_a_time):
    subject = learner(Rows(build), batch_size=16 if at_a_time is None else [16, at_a_time])
    subject.model.load(subject.initial_model(1))
    rows = list(range(0, 20, 2))
    torch.testing.assert_close(
        clipped_sum(subject, rows, clip_norm), by_hand(subject, rows, clip_norm), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e12])
def test_one_sample_moves_the_sum_by_no_more_than_the_clip_norm(scale):
    """Also where inputs are far from ordinary, or a gradient overflows: it then counts as 0."""
    task = Rows()
    shard = task.load_shard(0)
    subject = learner(task)
    data = replace(shard, train_x=(shard.train_x * scale).astype(np.float32))
    subject.use(data)
    subject.model.load(subject.initial_model(1))
    rows = list(range(N))
    whole = clipped_sum(subject, rows, 0.7)
    assert whole.isfinite().all()
    for left_out in (0, 7, N - 1):
        without = clipped_sum(subject, [row for row in rows if row != left_out], 0.7)
        assert float((whole - without).norm()) <= 0.7 * (1 + 1e-3)


def test_weights_of_samples_count_before_the_clipping():
    subject = learner()
    subject.model.load(subject.initial_model(1))
    weights = torch.zeros(N)
    weights[3] = 1.0
    torch.testing.assert_close(
        clipped_sum(subject, [2, 3, 4], 1.0, weights), by_hand(subject, [3], 1.0), atol=1e-6, rtol=1e-4
    )


def test_noise_has_the_deviation_that_is_charged():
    """With a step of rate 1 and a gradient clipped to almost 0, the change is the noise over the expected batch size."""
    subject = learner(Rows(lambda: nn.Sequential(nn.Linear(FEATURES, 4000), nn.Tanh(), nn.Linear(4000, CLASSES))))
    theta = subject.initial_model(1)
    plan = TrainingPlan(1, 0, learning_rate=1.0, private=private(clip_norm=1e-3, noise=50.0, rate=0.5))
    trained, stats = subject.train(theta, plan)
    change = (trained - theta).astype(np.float64)
    expected = 50.0 * 1e-3 / (0.5 * N)
    assert change.std() == pytest.approx(expected, rel=0.02) and abs(change.mean()) < 0.05 * expected
    assert np.isnan(stats.loss) and stats.metric is None and stats.steps == 1


def test_no_seed_gives_the_noise():
    subject = learner()
    theta, plan = subject.initial_model(1), TrainingPlan(3, 7, 0.1, private=private(steps=3))
    first, second = subject.train(theta, plan)[0], subject.train(theta, plan)[0]
    assert not np.array_equal(first, second)


def test_without_noise_and_clipping_a_step_on_all_samples_is_an_ordinary_one():
    subject = learner()
    theta = subject.initial_model(1)
    plan = TrainingPlan(1, 0, 0.1, batch_size="all")
    expected, _ = subject.train(theta, plan)
    found, _ = subject.train(theta, replace(plan, private=private(1e6, 1e-12, rate=1.0)))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_batch_has_each_sample_with_the_same_probability():
    indices = np.arange(100, 400)
    batches = list(poisson_batches(indices, private(rate=0.1, steps=400), done=0))
    sizes = np.array([len(batch) for batch in batches])
    assert len(batches) == 400 and sizes.mean() == pytest.approx(30, rel=0.05)
    assert sizes.std() == pytest.approx(np.sqrt(300 * 0.1 * 0.9), rel=0.15)
    counts = np.bincount(np.concatenate(batches), minlength=400)
    assert not counts[:100].any() and counts[100:].min() > 15 and counts[100:].max() < 70
    assert len(list(poisson_batches(indices, private(steps=10), done=7))) == 3


def test_a_step_without_samples_is_noise_alone():
    subject = learner()
    theta = subject.initial_model(1)
    trained, stats = subject.train(theta, TrainingPlan(1, 0, 0.1, private=private(rate=1e-9)))
    assert stats.steps == 1 and stats.samples == 0 and not np.array_equal(trained, theta)


def test_momentum_decay_and_restricted_parameters_work_on_the_noisy_gradient():
    subject = learner()
    theta = subject.initial_model(1)
    only = frozenset({"2.weight"})
    plan = TrainingPlan(4, 0, 0.1, momentum=0.9, weight_decay=0.01, only=only, private=private(steps=4))
    trained, stats = subject.train(theta, plan)
    for spec, where in subject.schema.slices():
        assert np.array_equal(trained[where], theta[where]) == (spec.name != "2.weight")
    assert stats.steps == 4


class OwnLoopRows(Rows):
    def train(self, model, data, budget):
        raise AssertionError("it is refused before")


def recurrent():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.out(self.rnn(x.unsqueeze(-1))[0][:, -1])

    return Recurrent()


def dead():
    return nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Threshold(1e9, 0.0))


@pytest.mark.parametrize(
    ("subject", "what"),
    [
        (lambda: learner(Rows(batch_norm)), r"1: expected no statistics of a batch.*torch\.nn\.GroupNorm"),
        (lambda: learner(Rows(recurrent)), r"expected what torch\.func can differentiate.*GroupNorm"),
        (lambda: learner(Rows(dead)), "gradient of each sample that is finite and not 0"),
        (lambda: learner(OwnLoopRows()), "expected the built-in loop .*an own training loop"),
        (lambda: learner(amp=True), "expected the built-in loop in float32 .*bfloat16"),
    ],
)
def test_what_cannot_be_private_is_refused_with_what_works(subject, what):
    with pytest.raises(TaskError, match=what):
        subject().check_private()


def test_scaling_by_training_samples_is_refused():
    task = Rows()
    shard = task.load_shard(0)
    for scaling, allowed in ((Preprocessing.standardizing(shard.train_x), False), (Preprocessing(1.0, 0.5, 2.0), True)):
        data = Shard(**{**vars(shard), "preprocessing": Preprocessing.from_json(scaling.to_json())})
        subject = learner(task)
        subject.use(data)
        if allowed:
            subject.check_private()
        else:
            with pytest.raises(TaskError, match="mean and deviation from no training sample"):
                subject.check_private()

"""The learner is a function of vectors: correct gradients, reproducible bits, no state between calls."""

from __future__ import annotations

import inspect
import multiprocessing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coordinator_free_bootstrap.errors import ShardError, TaskError
from peer.algorithms.learner import Learner, TrainingPlan
from peer.lab.together import _PausingLearner
from peer.learning.learner import TorchLearner
from peer.tasks import Shard, Task
from tests.simulation.trainer import QuadraticLearner

N, FEATURES, CLASSES = 50, 6, 3


class Rows(Task):
    """Random rows and a small network; a test may replace the parts."""

    classes = CLASSES

    def __init__(self, build=None, samples=N):
        self.build = build or (lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)))
        self.samples = samples

    def make_model(self):
        return self.build()

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        x = draw.normal(size=(self.samples, FEATURES)).astype(np.float32)
        y = draw.integers(0, CLASSES, self.samples)
        return Shard(train_x=x, train_y=y, test_x=x[:20], test_y=y[:20], val_x=x[:10], val_y=y[:10])


def batch_norm():
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def learner(task=None, **settings):
    task = task or Rows()
    return TorchLearner(task, task.load_shard(0), **{"batch_size": 16, **settings})


def by_hand(subject, theta, x, y):
    """Return module and losses of a vector, computed without the learner."""
    module = subject.task.make_model()
    nn.utils.vector_to_parameters(torch.tensor(theta), module.parameters())
    return module, functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y), reduction="none")


def test_schema_lists_parameters_then_float_buffers():
    subject = learner(Rows(batch_norm))
    names = [(t.name, t.role) for t in subject.schema.tensors]
    assert names[-2:] == [("1.running_mean", "buffer"), ("1.running_var", "buffer")]
    assert all(role == "parameter" for _, role in names[:-2])
    assert subject.schema.size == FEATURES * 5 + 5 + 5 + 5 + 5 * CLASSES + CLASSES + 5 + 5


def test_initial_models_depend_only_on_the_seed():
    subject = learner()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first, again, other = subject.initial_model(1), learner().initial_model(1), subject.initial_model(2)
    assert torch.equal(torch.rand(4), expected)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_one_full_batch_step_is_theta_minus_rate_times_gradient():
    subject = learner()
    theta = subject.initial_model(0)
    module, losses = by_hand(subject, theta, subject.shard.train_x, subject.shard.train_y)
    losses.mean().backward()
    gradient = torch.cat([p.grad.ravel() for p in module.parameters()]).numpy()
    trained, stats = subject.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.5, batch_size="all"))
    np.testing.assert_allclose(trained, theta - 0.5 * gradient, atol=1e-6)
    assert (stats.steps, stats.samples) == (1, N)
    assert stats.loss == pytest.approx(losses.mean().item(), rel=1e-5)
    assert stats.metric == pytest.approx(subject.evaluate(theta, "train").metric)


def test_a_metric_of_a_whole_set_is_not_measured_while_training():
    class Own(type(learner().task)):
        def metric(self, outputs, targets):
            return 0.5

    subject = TorchLearner(Own(), learner().shard)
    _, stats = subject.train(subject.initial_model(0), TrainingPlan(epochs=1, seed=0, learning_rate=0.5))
    assert stats.metric is None and stats.loss > 0


def test_sample_weights_divide_by_the_batch_size():
    """A step of FedEM divides the sum of q * loss by the batch size, not by the sum of q."""
    subject = learner()
    theta = subject.initial_model(0)
    weights = np.random.default_rng(1).random(N).astype(np.float32)
    module, losses = by_hand(subject, theta, subject.shard.train_x, subject.shard.train_y)
    (torch.tensor(weights) * losses).sum().div(N).backward()
    gradient = torch.cat([p.grad.ravel() for p in module.parameters()]).numpy()
    trained, _ = subject.train(
        theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.5, batch_size="all", sample_weights=weights)
    )
    np.testing.assert_allclose(trained, theta - 0.5 * gradient, atol=1e-6)
    half, _ = subject.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.5, sample_weights=weights * 0))
    assert np.array_equal(half, theta)


def test_proximal_term_adds_its_gradient():
    """Gradient = plain gradient + strength * (theta - center): FedSoft (arXiv:2112.06053) Eq. 5, centers averaged."""
    subject = learner()
    theta, center = subject.initial_model(0), subject.initial_model(1)
    settings = {"epochs": 1, "seed": 0, "learning_rate": 0.1, "batch_size": "all"}
    plain, _ = subject.train(theta, TrainingPlan(**settings))
    pulled, _ = subject.train(theta, TrainingPlan(proximal=(center, 2.0), **settings))
    np.testing.assert_allclose(pulled, plain - 0.1 * 2.0 * (theta - center), atol=1e-6)


def test_proximal_term_does_not_change_buffers():
    subject = learner(Rows(batch_norm))
    theta = subject.initial_model(0)
    settings = {"epochs": 1, "seed": 0, "learning_rate": 0.1}
    plain, _ = subject.train(theta, TrainingPlan(**settings))
    pulled, _ = subject.train(theta, TrainingPlan(proximal=(theta, 0.0), **settings))
    assert np.array_equal(plain, pulled)


def test_indices_train_on_those_samples_only():
    subject = learner()
    theta = subject.initial_model(0)
    chosen = np.arange(0, N, 3)
    part = subject.shard.train_x[chosen], subject.shard.train_y[chosen]
    alone = TorchLearner(
        subject.task, Shard(train_x=part[0], train_y=part[1], test_x=part[0], test_y=part[1]), batch_size=4
    )
    settings = {"epochs": 2, "seed": 5, "learning_rate": 0.1, "batch_size": 4}
    ours, stats = subject.train(theta, TrainingPlan(indices=chosen, **settings))
    theirs, _ = alone.train(theta, TrainingPlan(**settings))
    assert np.array_equal(ours, theirs)
    assert stats.samples == 2 * len(chosen)
    unchanged, none = subject.train(theta, TrainingPlan(indices=chosen[:0], **settings))
    assert np.array_equal(unchanged, theta)
    assert none.steps == 0
    assert np.isnan(none.loss)


def test_a_loss_that_is_not_a_number_is_infinite():
    """A neighbor's model may be finite and its outputs not; among NaN, argmin would choose exactly that model."""
    subject = learner()
    theta = np.full(subject.schema.size, 3e38, np.float32)
    assert np.isnan(by_hand(subject, theta, subject.shard.train_x, subject.shard.train_y)[1].detach().numpy()).any()
    losses = subject.sample_losses(theta)
    assert np.isinf(losses).any() and not np.isnan(losses).any() and subject.mean_loss(theta) == np.inf
    rows = np.full((4, CLASSES), np.nan, np.float32)
    assert (subject.prediction_losses(rows, "train", np.arange(4)) == np.inf).all()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_epoch_equals_a_plain_torch_loop(momentum):
    """Recompute an epoch with plain torch on the batches that the learner draws."""
    seen = []

    class Watched(Rows):
        def loss(self, outputs, targets):
            seen.append(targets.clone())
            return super().loss(outputs, targets)

    subject = learner(Watched())
    theta = subject.initial_model(0)
    seen.clear()
    trained, stats = subject.train(
        theta, TrainingPlan(epochs=2, seed=9, learning_rate=0.1, momentum=momentum, weight_decay=0.01)
    )
    assert [len(batch) for batch in seen] == [16, 16, 16, 2] * 2
    assert stats.steps == 8
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:]))  # each epoch has its own order

    module, _ = by_hand(subject, theta, subject.shard.train_x, subject.shard.train_y)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)
    x, y = torch.tensor(subject.shard.train_x), torch.tensor(subject.shard.train_y)
    for batch in subject.batches(TrainingPlan(epochs=2, seed=9, learning_rate=0.1, batch_size=16)):
        optimizer.zero_grad()
        functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()
    expected = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_allclose(trained, expected, atol=1e-6)


def test_training_is_a_function_of_its_arguments():
    """Also with dropout and BatchNorm counters, and after another training with the same learner."""

    def build():
        return nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8, momentum=None), nn.Dropout(0.5), nn.Linear(8, CLASSES)
        )

    subject, fresh = learner(Rows(build)), learner(Rows(build))
    theta = subject.initial_model(0)
    settings = {"epochs": 2, "learning_rate": 0.1, "momentum": 0.5}
    torch.manual_seed(1)
    first, _ = subject.train(theta, TrainingPlan(seed=7, **settings))
    subject.train(subject.initial_model(3), TrainingPlan(seed=8, **settings))
    again, _ = subject.train(theta, TrainingPlan(seed=7, **settings))
    torch.manual_seed(2)
    elsewhere, _ = fresh.train(theta, TrainingPlan(seed=7, **settings))
    other, _ = subject.train(theta, TrainingPlan(seed=8, **settings))
    assert np.array_equal(first, again)
    assert np.array_equal(first, elsewhere)
    assert not np.array_equal(first, other)


def test_training_does_not_change_its_input_or_earlier_results():
    subject = learner()
    theta = subject.initial_model(0)
    kept = theta.copy()
    theta.flags.writeable = False
    first, _ = subject.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.1))
    saved = first.copy()
    subject.train(first, TrainingPlan(epochs=1, seed=1, learning_rate=0.1))
    subject.evaluate(subject.initial_model(5))
    assert np.array_equal(theta, kept)
    assert np.array_equal(first, saved)


def _train_into(queue, subject, theta):
    queue.put(subject.train(theta, TrainingPlan(epochs=3, seed=4, learning_rate=0.1, momentum=0.9))[0])


def test_a_forked_process_trains_to_equal_bits():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what a testbed does before it forks
    try:
        subject = learner()
        theta = subject.initial_model(0)
        here, _ = subject.train(theta, TrainingPlan(epochs=3, seed=4, learning_rate=0.1, momentum=0.9))
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=_train_into, args=(queue, subject, theta))
        child.start()
        there = queue.get()
        child.join()
        assert np.array_equal(here, there)
    finally:
        torch.set_num_threads(threads)


def test_a_last_batch_of_one_is_dropped_only_with_batch_norm():
    with_norm, without = learner(Rows(batch_norm, 17)), learner(Rows(samples=17))
    settings = {"epochs": 1, "seed": 0, "learning_rate": 0.1}
    _, stats = with_norm.train(with_norm.initial_model(0), TrainingPlan(**settings))
    assert (stats.steps, stats.samples) == (1, 16)
    _, stats = without.train(without.initial_model(0), TrainingPlan(**settings))
    assert (stats.steps, stats.samples) == (2, 17)
    _, stats = with_norm.train(with_norm.initial_model(0), TrainingPlan(indices=np.array([3]), **settings))
    assert stats.steps == 0
    with pytest.raises(TaskError, match=r"run\.batch_size: expected .*, got 1"):
        with_norm.train(with_norm.initial_model(0), TrainingPlan(batch_size=1, **settings))


def test_batch_norm_statistics_are_part_of_the_vector():
    subject = learner(Rows(batch_norm))
    theta = subject.initial_model(0)
    trained, _ = subject.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.1))
    assert not np.array_equal(trained[-10:], theta[-10:])
    before = subject.mean_loss(trained)
    changed = trained.copy()
    changed[-5:] *= 4.0
    assert subject.mean_loss(changed) != before
    assert subject.mean_loss(trained) == before  # evaluation changes nothing


def test_the_unit_counts_epochs_or_steps_and_an_epoch_of_all_samples_is_one_step():
    subject = learner()
    theta = subject.initial_model(0)
    plain = TrainingPlan(epochs=3, seed=0, learning_rate=0.1)
    for changes, steps, samples in [
        ({}, 12, 150),
        ({"unit": "step"}, 3, 48),
        ({"batch_size": "all"}, 3, 150),
        ({"batch_size": "all", "unit": "step"}, 3, 150),
        ({"batch_size": "all", "indices": np.arange(7)}, 3, 21),
    ]:
        _, stats = subject.train(theta, replace(plain, **changes))
        assert (stats.steps, stats.samples) == (steps, samples), changes


def test_should_stop_ends_training_between_steps():
    subject = learner()
    theta = subject.initial_model(0)
    asked = []
    trained, stats = subject.train(
        theta, TrainingPlan(epochs=5, seed=0, learning_rate=0.1, should_stop=lambda: len(asked) == 3 or asked.append(1))
    )
    assert stats.stopped
    assert stats.steps == 3
    expected, whole = subject.train(theta, TrainingPlan(epochs=3, seed=0, learning_rate=0.1, unit="step"))
    assert np.array_equal(trained, expected)
    assert not whole.stopped


def test_losses_and_evaluation_agree_with_torch():
    subject = learner()
    theta = subject.initial_model(0)
    for part in ("train", "validation", "test"):
        x, y = subject.shard.part(part)
        module, losses = by_hand(subject, theta, x, y)
        np.testing.assert_allclose(subject.sample_losses(theta, part), losses.detach().numpy(), rtol=1e-5)
        assert subject.mean_loss(theta, part) == pytest.approx(losses.mean().item(), rel=1e-5)
        outputs = module(torch.tensor(x))
        result = subject.evaluate(theta, part)
        assert result.metric == pytest.approx(float((outputs.argmax(1) == torch.tensor(y)).float().mean()))
        assert result.samples == len(x)
        np.testing.assert_allclose(subject.predict(theta, x), outputs.detach().numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(subject.predict_proba(theta, part).sum(1), 1.0, rtol=1e-5)
        mixed = subject.evaluate_predictions(subject.predict_proba(theta, part), part)
        assert mixed.metric == result.metric
        assert mixed.loss == pytest.approx(result.loss, rel=1e-4)


def test_evaluation_does_not_depend_on_the_batch_size():
    subject = learner()
    theta = subject.initial_model(0)
    whole = subject.sample_losses(theta)
    subject._evaluation_batch = 7
    np.testing.assert_allclose(subject.sample_losses(theta), whole, rtol=1e-5)


def test_regression_uses_squared_error():
    class Line(Rows):
        kind = "regression"

        def load_shard(self, peer_id):
            x = np.random.default_rng(0).normal(size=(N, FEATURES)).astype(np.float32)
            return Shard(train_x=x, train_y=x.sum(1), test_x=x, test_y=x.sum(1))

    subject = learner(Line(lambda: nn.Linear(FEATURES, 1)))
    theta = subject.initial_model(0)
    result = subject.evaluate(theta)
    errors = (subject.predict(theta, subject.shard.test_x)[:, 0] - subject.shard.test_y) ** 2
    assert result.metric_name == "mse"
    assert result.metric == pytest.approx(float(errors.mean()), rel=1e-5)
    trained, _ = subject.train(theta, TrainingPlan(epochs=60, seed=0, learning_rate=0.1))
    assert subject.evaluate(trained).metric < 1e-3


def test_the_optimizer_of_a_task_is_made_for_each_training():
    made = []

    class Own(Rows):
        def make_optimizer(self, parameters, learning_rate):
            made.append(torch.optim.RMSprop(parameters, lr=learning_rate))
            return made[-1]

    subject, plain = learner(Own()), learner()
    theta = subject.initial_model(0)
    ours = [subject.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.01))[0] for _ in range(2)]
    assert len(made) == 2
    assert np.array_equal(*ours)
    adam, _ = plain.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.01, optimizer="adam"))
    sgd, _ = plain.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.01))
    for first, second in pairwise([ours[0], adam, sgd]):
        assert not np.array_equal(first, second)


def test_frozen_parameters_and_tied_weights():
    def build():
        model = nn.Sequential(
            nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
        )
        model[1].weight = model[0].weight
        model[2].bias.requires_grad = False
        return model

    subject = learner(Rows(build))
    assert [t.name for t in subject.schema.tensors] == ["0.weight", "0.bias", "1.bias", "2.weight"]
    theta = subject.initial_model(0)
    trained, _ = subject.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.1))
    assert not np.array_equal(trained, theta)
    module = subject.model.module
    assert module[0].weight.data_ptr() == module[1].weight.data_ptr()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Rows(lambda: nn.Linear(FEATURES + 1, CLASSES)), "accepts samples of shape"),
        (Rows(lambda: nn.Linear(FEATURES, CLASSES + 1)), "expected 3 outputs, one for each class of the task, got 4"),
        (Rows(lambda: nn.Linear(FEATURES, CLASSES).double()), "float64"),
        (Rows(nn.Flatten), "trainable parameters, got none"),
        (Rows(lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Flatten(0))), "one tensor"),
    ],
)
def test_a_model_that_does_not_fit_is_a_task_error(task, words):
    with pytest.raises(TaskError, match=words):
        learner(task)


def test_a_wrong_loss_or_metric_is_a_task_error():
    class MeanLoss(Rows):
        def loss(self, outputs, targets):
            return functional.cross_entropy(outputs, targets)

    class TensorMetric(Rows):
        def metric(self, outputs, targets):
            return (outputs.argmax(1) == targets).float().mean()

    class Broken(Rows):
        def loss(self, outputs, targets):
            return functional.nll_loss(outputs[:, :2], targets + 5, reduction="none")

    for task, words in [(MeanLoss(), "one value per sample"), (TensorMetric(), "number"), (Broken(), "loss or metric")]:
        with pytest.raises(TaskError, match=words):
            learner(task)


def test_a_model_that_changes_its_shape_is_refused():
    widths = iter([4, 4, 5])

    def build():
        width = next(widths)
        return nn.Sequential(nn.Linear(FEATURES, width), nn.Linear(width, CLASSES))

    subject = learner(Rows(build))
    subject.initial_model(0)
    with pytest.raises(TaskError, match="same names and shapes in every call"):
        subject.initial_model(0)


def test_vectors_and_weights_of_the_wrong_size_are_refused():
    subject = learner()
    theta = subject.initial_model(0)
    with pytest.raises(TaskError, match="model vector"):
        subject.mean_loss(theta[:-1])
    with pytest.raises(TaskError, match="model vector"):
        subject.mean_loss(theta.astype(np.float64))
    with pytest.raises(TaskError, match="sample_weights"):
        subject.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.1, sample_weights=np.ones(3, np.float32)))


def test_an_empty_part_cannot_be_evaluated():
    shard = Rows().load_shard(0)
    subject = TorchLearner(
        Rows(), Shard(train_x=shard.train_x, train_y=shard.train_y, test_x=shard.test_x, test_y=shard.test_y)
    )
    assert subject.count("validation") == 0
    with pytest.raises(ShardError, match="expected validation samples, got none"):
        subject.mean_loss(subject.initial_model(0), "validation")


def test_learners_of_all_kinds_train_by_one_plan():
    """A setting stands once, in `TrainingPlan`: no learner repeats it."""
    for kind in (TorchLearner, Learner, QuadraticLearner, _PausingLearner):
        assert list(inspect.signature(kind.train).parameters) == ["self", "theta", "plan"]

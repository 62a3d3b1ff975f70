"""A step in parts (``run.batch_size = [samples of a step, samples at a time]``) is the step of its batch, in less memory."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch import nn

from coordinator_free_bootstrap.errors import TaskError
from peer.algorithms.learner import TrainingPlan
from peer.learning.check import check_task, try_learner
from peer.learning.learner import TorchLearner
from peer.tasks import Shard, Task

SAMPLES, FEATURES, CLASSES = 50, 6, 3


class Rows(Task):
    """Random rows; ``build`` makes the model."""

    classes = CLASSES

    def __init__(self, build=None, samples=SAMPLES, change=lambda x: x):
        self.build = build or (lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)))
        self.samples, self.change = samples, change

    def make_model(self):
        return self.build()

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        x = self.change(draw.normal(size=(self.samples, FEATURES)).astype(np.float32))
        y = draw.integers(0, CLASSES, self.samples)
        return Shard(train_x=x, train_y=y, test_x=x[:20], test_y=y[:20])


class OnDisk:
    """An array that is read by rows, as those of files."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.most = array, array.shape, array.dtype, 0

    def __getitem__(self, rows):
        found = self.array[rows]
        self.most = max(self.most, len(found))
        return found


def learner(batch_size, task=None):
    task = task or Rows()
    return TorchLearner(task, task.load_shard(0), batch_size=batch_size)


def trained(batch_size, task=None, **settings):
    subject = learner(batch_size, task)
    plan = TrainingPlan(**{"epochs": 2, "seed": 3, "learning_rate": 0.2, "batch_size": subject.batch_size} | settings)
    return subject.train(subject.initial_model(0), plan)


WEIGHTS = np.random.default_rng(1).uniform(0, 2, SAMPLES).astype(np.float32)
SIZE = learner(10).schema.size


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.01},
        {"sample_weights": WEIGHTS},
        {"gradient_clip": 0.05},
        {"proximal": (np.ones(SIZE, np.float32), 0.5)},
        {
            "sample_weights": WEIGHTS,
            "gradient_clip": 0.05,
            "proximal": (np.ones(SIZE, np.float32), 0.5),
            "momentum": 0.5,
        },
        {"only": frozenset({"2.weight"})},
        {"indices": np.arange(5, 38)},
        {"unit": "step", "epochs": 7},
    ],
    ids=lambda settings: ", ".join(settings) or "plain",
)
@pytest.mark.parametrize(
    ("whole", "parts"), [(20, [20, 5]), (20, [20, 6]), (20, [20, 1]), ("all", ["all", 16]), ("all", ["all", 1])]
)
def test_a_step_in_parts_equals_the_step_of_its_batch(whole, parts, settings):
    """With 50 samples the last step has fewer, and the last part too."""
    (expected, alone), (found, together) = trained(whole, **settings), trained(parts, **settings)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert (together.steps, together.samples) == (alone.steps, alone.samples)
    assert together.loss == pytest.approx(alone.loss, rel=1e-5)
    assert together.metric == pytest.approx(alone.metric)


def test_a_step_that_is_one_part_has_the_bits_of_a_whole_step():
    assert trained([20, 20])[0].tobytes() == trained(20)[0].tobytes()


def test_other_sizes_of_a_step_train_another_model():
    """So the equality above is one of the step, and no accident of a flat loss."""
    assert np.abs(trained(5)[0] - trained([20, 5])[0]).max() > 0.01


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"optimizer": "adam", "learning_rate": 0.01}])
def test_sparse_gradients_of_parts_add_up(settings):
    task = Rows(
        lambda: nn.Sequential(nn.EmbeddingBag(20, CLASSES, sparse=True)),
        change=lambda x: (np.abs(x) * 5).astype(np.int64) % 20,
    )
    (expected, _), (found, _) = (trained(size, task, **settings) for size in (20, [20, 3]))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


class Watched(nn.Module):
    """A model that counts the samples of each call in training, and the activations of earlier calls that are still there."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.seen, self.kept, self.alive = [], [], 0

    def forward(self, x):
        hidden = self.first(x).tanh()
        if self.training:
            self.alive = max(self.alive, sum(reference() is not None for reference in self.kept))
            self.seen.append(len(x))
            self.kept.append(weakref.ref(hidden))
        return self.last(hidden)


@pytest.mark.parametrize(
    ("size", "seen"), [([20, 8], [8, 8, 4, 8, 8, 4, 8, 2]), (["all", 20], [20, 20, 10]), (20, [20, 20, 10])]
)
def test_a_model_gets_a_part_at_a_time_and_its_activations_are_freed_before_the_next_one(size, seen):
    subject = learner(size, Rows(Watched))
    subject.model.module.seen.clear()
    plan = TrainingPlan(epochs=1, seed=0, learning_rate=0.1, batch_size=subject.batch_size)
    subject.train(subject.initial_model(0), plan)
    assert subject.model.module.seen == seen
    assert subject.model.module.alive == 0


def test_a_trial_before_the_run_never_gives_a_model_more_than_a_part():
    largest = []

    class Small(Watched):
        def forward(self, x):
            largest.append(len(x) if self.training else 0)
            return super().forward(x)

    task = Rows(Small)
    try_learner(learner(["all", 4], task), 0.1)
    check_task(task, batch_size=[40, 4])
    assert max(largest) == 4


def batch_norm():
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def test_batch_norm_scales_each_part_by_itself_and_moves_its_statistics_once_a_part():
    subject = learner(["all", 25], Rows(batch_norm))
    theta = subject.initial_model(0)
    found, _ = subject.train(theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.1, batch_size="all"))
    module = batch_norm()
    keys = [spec.name for spec in subject.schema.tensors]
    values = {spec.name: torch.from_numpy(theta[place].reshape(spec.shape)) for spec, place in subject.schema.slices()}
    module.load_state_dict(values, strict=False)
    x, y = torch.from_numpy(subject.shard.train_x), torch.from_numpy(np.asarray(subject.shard.train_y))
    for rows in (slice(0, 25), slice(25, 50)):
        (nn.functional.cross_entropy(module(x[rows]), y[rows]) / 2).backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(parameter.grad, alpha=0.1)
    after = module.state_dict()
    assert int(after["1.num_batches_tracked"]) == 2
    expected = np.concatenate([after[name].reshape(-1).numpy() for name in keys])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    whole, _ = learner("all", Rows(batch_norm)).train(
        theta, TrainingPlan(epochs=1, seed=0, learning_rate=0.1, batch_size="all")
    )
    assert np.abs(whole - found).max() > 1e-3, "as docs/algorithms.md says, it is not the whole step"


def test_with_batch_norm_a_sample_that_is_left_over_joins_the_part_before_it():
    assert learner([20, 8], Rows(batch_norm)).parts(17) == [slice(0, 8), slice(8, 17)]
    assert learner([20, 8]).parts(17) == [slice(0, 8), slice(8, 16), slice(16, 17)]
    task = Rows(batch_norm, samples=41)
    assert np.isfinite(trained(["all", 8], task)[0]).all()
    try_learner(learner(["all", 8], task), 0.1)


@pytest.mark.parametrize("size", [[20, 1], ["all", 1]])
def test_with_batch_norm_a_part_of_one_sample_is_refused(size):
    task = Rows(batch_norm)
    words = r"run\.batch_size: expected 2 or more at a time with a model that has BatchNorm, got 1"
    for attempt in (lambda: trained(size, task), lambda: check_task(task, batch_size=size)):
        with pytest.raises(TaskError, match=words):
            attempt()


def test_a_step_on_all_samples_of_a_file_reads_a_part_at_a_time():
    stored = []

    def on_disk(x):
        stored.append(OnDisk(x))
        return stored[-1]

    class Stored(Rows):
        def load_shard(self, peer_id):
            shard = Rows.load_shard(Rows(), peer_id)
            return Shard(
                train_x=on_disk(shard.train_x), train_y=shard.train_y, test_x=shard.test_x, test_y=shard.test_y
            )

    with pytest.raises(TaskError, match=r'set \["all", 100\] to load 100 at a time'):
        trained("all", Stored())
    subject = learner(["all", 16], Stored())
    stored[-1].most = 0
    found, _ = subject.train(subject.initial_model(0), TrainingPlan(2, 3, 0.2, batch_size="all"))
    assert stored[-1].most == 16
    np.testing.assert_allclose(found, trained("all")[0], rtol=2e-5, atol=2e-6)

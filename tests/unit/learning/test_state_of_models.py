"""What forward moves or keeps travels with the model as in plain PyTorch, or is refused by its name before the run."""

from __future__ import annotations

import copy
import math
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coordinator_free_bootstrap.errors import TaskError
from peer.algorithms.learner import TrainingPlan
from peer.lab.stacked import TrainRequest
from peer.learning.check import check_task, try_learner
from peer.learning.learner import TorchLearner
from peer.learning.trial import check_hidden_state
from peer.tasks import Shard, Task

FEATURES, CLASSES, RATE, STEPS = 4, 3, 0.1, 3


class Rows(Task):
    """Rows around one center for each class; ``build`` makes the model."""

    classes = CLASSES

    def __init__(self, build, train=24):
        self.build, self.train = build, train

    def make_model(self):
        return self.build()

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        y = draw.integers(0, CLASSES, self.train + 12)
        x = (draw.normal(size=(len(y), FEATURES)) + y[:, None] + 1).astype(np.float32)
        return Shard(train_x=x[: self.train], train_y=y[: self.train], test_x=x[self.train :], test_y=y[self.train :])


def learner_of(build, **settings):
    task = Rows(build)
    return TorchLearner(task, task.load_shard(0), **settings)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.last = nn.Linear(FEATURES, 6), nn.Linear(12, CLASSES)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    self.follow(old, new)
        return self.last(torch.cat([self.student(x), self.teacher(x)], 1).tanh())


class InPlace(Base):
    def follow(self, old, new):
        old.mul_(0.5).add_(new, alpha=0.5)


class ByData(Base):
    def follow(self, old, new):
        old.data = old.data * 0.5 + new.data * 0.5


class OnData(Base):
    def follow(self, old, new):
        old.data.mul_(0.5).add_(new.data, alpha=0.5)


class Hooked(Base):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(self._hook)

    def _hook(self, module, inputs):
        if self.training:
            self.teacher.load_state_dict(self.student.state_dict())

    def follow(self, old, new):
        pass


class Statistic(nn.Module):
    """One value that a training call moves, of any kind; ``start`` is a function."""

    def __init__(self, start, move, use, persistent=True):
        super().__init__()
        self.last, self.move, self.use = nn.Linear(FEATURES, CLASSES), move, use
        if persistent is None:
            self.kept = start()
        else:
            self.register_buffer("kept", start(), persistent=persistent)

    def forward(self, x):
        if self.training:
            self.move(self, x)
        return self.last(self.use(self, x))


def new_mean(m, x):
    m.kept = 0.9 * m.kept + 0.1 * x.mean(0)


def old_mean(m, x):
    m.kept.mul_(0.9).add_(x.mean(0), alpha=0.1)


def add_one(m, x):
    m.kept = m.kept + 1


def zeros(dtype=torch.float32):
    return lambda: torch.zeros(FEATURES, dtype=dtype)


def centered(m, x):
    return x - m.kept.float()


def faded(m, x):
    return x * 0.9 ** float(m.kept)


def first_batch(m, x):
    """Initialize by the first batch, once (ActNorm)."""
    if not bool(m.kept):
        with torch.no_grad():
            m.last.bias.copy_(-x.mean() * torch.ones(CLASSES))
        m.kept = torch.ones((), dtype=torch.bool)


MOVED = {
    "teacher, in place": InPlace,
    "teacher, new data": ByData,
    "teacher, on data": OnData,
    "teacher, in a hook": Hooked,
    "buffer, in place": lambda: Statistic(zeros(), old_mean, centered),
    "buffer, put anew": lambda: Statistic(zeros(), new_mean, centered),
    "buffer of float64": lambda: Statistic(zeros(torch.float64), old_mean, centered),
    "buffer of float16": lambda: Statistic(zeros(torch.float16), old_mean, centered),
    "counter": lambda: Statistic(lambda: torch.zeros((), dtype=torch.int64), add_one, faded),
    "flag": lambda: Statistic(lambda: torch.zeros((), dtype=torch.bool), first_batch, lambda m, x: x),
    "cumulative BatchNorm": lambda: nn.Sequential(
        nn.BatchNorm1d(FEATURES, momentum=None), nn.Linear(FEATURES, CLASSES)
    ),
    "BatchNorm": lambda: nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)),
    "spectral norm": lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 8)), nn.Linear(8, CLASSES)
    ),
}


def by_torch(learner, steps):
    """Train with plain PyTorch; return the outputs for the test samples in evaluation mode."""
    module = learner.another_model().module
    x, y = torch.tensor(learner.shard.train_x), torch.tensor(learner.shard.train_y)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return module.eval()(torch.tensor(learner.shard.test_x)).numpy()


def trained(learner, theta, steps=STEPS):
    return learner.train(theta, TrainingPlan(epochs=steps, seed=0, learning_rate=RATE, batch_size="all"))[0]


@pytest.mark.parametrize("build", MOVED.values(), ids=MOVED)
def test_what_training_moves_goes_on_in_the_next_round_as_in_plain_torch(build):
    """Between the two rounds the module trains another model, as peers of a simulation and slots of a peer do."""
    subject = learner_of(build)
    theta = subject.another_model().store()
    expected = by_torch(subject, 2 * STEPS)
    half = trained(subject, theta)
    trained(subject, subject.initial_model(7), 5)
    found = subject.predict(trained(subject, half), subject.shard.test_x)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 if subject.model.moved else 1e-5)
    assert not np.allclose(subject.predict(half, subject.shard.test_x), expected, atol=1e-3)
    try_learner(subject, RATE)


@pytest.mark.parametrize("build", MOVED.values(), ids=MOVED)
def test_a_new_process_computes_the_same_bits(build):
    first, second = learner_of(build), learner_of(build)
    assert (first.schema, first.frozen_digest) == (second.schema, second.frozen_digest)
    theta = trained(first, first.initial_model(3))
    assert np.array_equal(trained(first, theta), trained(second, theta))
    assert np.array_equal(first.predict(theta, first.shard.test_x), second.predict(theta, first.shard.test_x))


class Outside(nn.Module):
    """A teacher in a list: torch does not know of it."""

    def __init__(self):
        super().__init__()
        self.student, self.last = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)
        self.teachers = [copy.deepcopy(self.student).requires_grad_(False)]

    def forward(self, x):
        if self.training:
            self.teachers[0].load_state_dict(self.student.state_dict())
        return self.last(self.student(x) + self.teachers[0](x))


class Recurrent(nn.Module):
    """The hidden state of a batch is the first one of the next batch."""

    def __init__(self):
        super().__init__()
        self.cell, self.last, self.hidden = nn.GRUCell(FEATURES, 5), nn.Linear(5, CLASSES), None

    def forward(self, x):
        before = None if self.hidden is None or len(self.hidden) != len(x) else self.hidden
        after = self.cell(x, before)
        self.hidden = after.detach()
        return self.last(after)


def keep(m, x):
    m.kept.append(x.mean(0))


def newest(m, x):
    return x - m.kept[-1] if m.kept else x


KEPT = {
    "buffer outside of the state_dict": lambda: Statistic(zeros(), old_mean, centered, persistent=False),
    "tensor": lambda: Statistic(zeros(), new_mean, centered, persistent=None),
    "number": lambda: Statistic(lambda: 0, add_one, faded, persistent=None),
    "list": lambda: Statistic(list, keep, newest, persistent=None),
    "deque": lambda: Statistic(lambda: deque(maxlen=2), keep, newest, persistent=None),
    "array": lambda: Statistic(lambda: np.zeros(()), add_one, lambda m, x: x * float(0.9**m.kept), persistent=None),
    "teacher": Outside,
    "hidden": Recurrent,
}


@pytest.mark.parametrize("what", KEPT)
def test_what_is_kept_outside_of_the_state_dict_is_refused_by_name(what):
    name = {"teacher": "teachers", "hidden": "hidden"}.get(what, "kept")
    for attempt in (lambda: check_task(Rows(KEPT[what])), lambda: try_learner(learner_of(KEPT[what]), RATE)):
        with pytest.raises(TaskError, match=rf"forward changes {name}, .*register_buffer") as error:
            attempt()
        assert error.value.exit_code == 12


class Cached(nn.Module):
    """What is kept has no effect on later outputs."""

    def __init__(self):
        super().__init__()
        self.last, self.seen, self.weights = nn.Linear(FEATURES, CLASSES), 0, []

    def forward(self, x):
        self.seen += len(x)
        self.weights = [self.last.weight.detach()]
        self.register_buffer("positions", torch.arange(len(x)).float(), persistent=False)
        return self.last(x)


class Tabled(nn.Module):
    """A table that the first call makes, in whatever mode it is, is used in training (rotary positions)."""

    def __init__(self):
        super().__init__()
        self.last, self.table = nn.Linear(FEATURES, CLASSES), None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(CLASSES).float().cos()
        return self.last(x) * self.table


class Noisy(nn.Linear):
    """Draws random numbers in evaluation, too."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def tied():
    first, last = nn.Linear(FEATURES, FEATURES, bias=False), nn.Linear(FEATURES, FEATURES, bias=False)
    last.weight = first.weight
    return nn.Sequential(first, last, nn.Linear(FEATURES, CLASSES))


FINE = {
    "cache": Cached,
    "table": Tabled,
    "noise": lambda: Noisy(FEATURES, CLASSES),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES)),
    "frozen base": lambda: nn.Sequential(
        nn.Linear(FEATURES, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, CLASSES)
    ),
    "tied weights": tied,
    "batch statistics": lambda: nn.Sequential(
        nn.BatchNorm1d(FEATURES, track_running_stats=False), nn.Linear(FEATURES, CLASSES)
    ),
}


@pytest.mark.parametrize("build", FINE.values(), ids=FINE)
def test_what_plain_torch_does_is_not_refused(build):
    check_task(Rows(build))
    subject = learner_of(build)
    try_learner(subject, RATE)
    assert not subject.model.moved
    theta = subject.initial_model(0)
    assert subject.evaluate(theta) == subject.evaluate(theta) == learner_of(build).evaluate(theta)


@pytest.mark.parametrize(
    "fill", [-math.inf, math.inf, math.nan, float(np.finfo(np.float32).min)], ids=["-inf", "inf", "nan", "lowest"]
)
def test_a_constant_that_cannot_be_averaged_stays_outside_of_the_vector(fill):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(FEATURES, CLASSES)
            self.register_buffer("mask", torch.full((FEATURES, FEATURES), fill).triu(1))

        def forward(self, x):
            allowed = self.mask == 0 if math.isfinite(fill) or math.isnan(fill) else self.mask.abs() < 1
            return self.last(x @ allowed.float())

    check_task(Rows(Masked))
    subject = learner_of(Masked)
    assert [tensor.name for tensor in subject.schema.tensors] == ["last.weight", "last.bias"]
    assert np.isfinite(trained(subject, subject.initial_model(0))).all()
    assert subject.frozen_digest != learner_of(lambda: nn.Linear(FEATURES, CLASSES)).frozen_digest


def largest(m, x):
    m.kept = torch.maximum(m.kept, x.amax(0))


def newest_batch(m, x):
    m.kept = x


@pytest.mark.parametrize(
    ("start", "move", "said"),
    [
        (lambda: torch.full((FEATURES,), -torch.inf), largest, "kept: expected finite values up to 1e"),
        (
            zeros(torch.complex64),
            old_mean,
            "kept: expected real numbers in a tensor that training changes, got torch.complex64",
        ),
        (zeros(), newest_batch, r"kept: expected .*, got shape \[\d+, 4\]"),
    ],
    ids=["infinite", "complex", "of another shape"],
)
def test_what_moves_and_cannot_be_averaged_is_refused_by_name(start, move, said):
    with pytest.raises(TaskError, match=said):
        check_task(Rows(lambda: Statistic(start, move, lambda m, x: x)))


def test_a_complex_parameter_is_refused_with_the_remedy():
    def build():
        module = nn.Linear(FEATURES, CLASSES)
        module.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        return module

    with pytest.raises(TaskError, match=r"turn: expected float32, got torch.complex64\. .*view_as_complex"):
        learner_of(build)


def test_what_moves_late_ends_the_training_with_its_name():
    class Late(InPlace):
        calls = 0

        def follow(self, old, new):
            Late.calls += 1
            if Late.calls > 20:
                super().follow(old, new)

    subject = learner_of(Late)
    with pytest.raises(TaskError, match=r"teacher.weight, teacher.bias: expected the same values after training"):
        trained(subject, subject.initial_model(0), 20)


def test_random_numbers_that_torch_does_not_draw_are_told_and_not_refused():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x + float(np.random.default_rng().normal()))

    assert not check_hidden_state(learner_of(lambda: Own(FEATURES, CLASSES)), RATE).reproducible
    seen = {finding.what: finding.seen for finding in check_task(Rows(lambda: Own(FEATURES, CLASSES)))}
    assert "not reproducible bit for bit" in seen["training"]


def test_what_is_kept_without_an_effect_is_told():
    seen = {finding.what: finding.seen for finding in check_task(Rows(Cached))}
    assert seen["kept"].startswith("forward changes positions, seen, weights; no output was seen to depend on it")
    for build in (MOVED["BatchNorm"], InPlace):
        assert "kept" not in {finding.what for finding in check_task(Rows(build))}


def test_models_that_move_more_than_statistics_do_not_train_in_a_stack():
    plan = TrainingPlan(epochs=1, seed=0, learning_rate=RATE)
    for build, fits in ((MOVED["BatchNorm"], True), (InPlace, False), (MOVED["buffer, put anew"], False)):
        subject = learner_of(build)
        assert TrainRequest(subject, subject.initial_model(0), plan).can_stack() == fits


def test_a_variance_below_zero_is_zero_in_the_module():
    """The lossy encodings of changes, and extrapolating updates, may make one."""
    subject = learner_of(MOVED["BatchNorm"])
    theta = subject.initial_model(0)
    (where,) = [place for spec, place in subject.schema.slices() if spec.name == "0.running_var"]
    theta[where] = -1e-3
    assert np.isfinite(subject.predict(theta, subject.shard.test_x)).all()
    assert np.isfinite(trained(subject, theta)).all()

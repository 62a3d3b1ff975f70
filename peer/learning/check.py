"""Check a task: call everything that a run calls, and report findings or the first fault (``peer task check``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigProblem, PeerError, TaskError
from coordinator_free_bootstrap.manifest import BatchSize
from coordinator_free_bootstrap.meaning import goal, summary
from coordinator_free_bootstrap.strict_json import of_type, one
from coordinator_free_bootstrap.user_file import USER_ERRORS, described
from coordinator_free_bootstrap.validation import counted
from peer.algorithms.learner import ABILITIES, TrainingPlan
from peer.core.averaging import Vector
from peer.core.encoding import decode, encode, payload_size
from peer.core.schema import Schema
from peer.learning.kept_state import unpacked
from peer.learning.learner import TorchLearner
from peer.learning.trial import STEPS, check_hidden_state, trial_of_loop, try_batches
from peer.tasks.arrays import by_name, sample_shape
from peer.tasks.budget import Budget, Trained
from peer.tasks.shard import PARTS, Shard
from peer.tasks.task import Task
from peer.tasks.user_code import data_of

Kind = TypeVar("Kind")
_PREPROCESSING = "not declared, so peer predict refuses raw samples; set preprocessing in the task or the shard"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked item and its result."""

    what: str
    seen: str


def check_task(
    task: Task,
    peer_id: int = 0,
    *,
    learning_rate: float = 0.01,
    batch_size: BatchSize = 100,
    unit: Literal["epoch", "step"] = "epoch",
    device: str = "cpu",
    travelling: Callable[[Schema], Schema] = lambda whole: whole,
) -> list[Finding]:
    """Load a shard, train and evaluate batches of all sizes of a run, encode and decode the model.

    Args:
        task: the task to check.
        peer_id: the peer whose shard is loaded.
        learning_rate: of the step.
        batch_size: of the run.
        unit: what the run counts, ``run.local_unit``.
        device: the device of the step.
        travelling: returns the tensors that leave a peer, given those of a whole model (`Algorithm.travelling`).

    Returns:
        The findings, in order.

    Raises:
        ConfigError: run.private_parameters does not fit the model.
        TaskError, ShardError: the first fault, with its reason.
    """
    task = _Guarded(task)
    learner = TorchLearner(task, data_of(task, peer_id), batch_size=batch_size, unit=unit, device=device)
    part = _travels(learner.schema, travelling(learner.schema))
    return [*_about_data(learner), *part, *_about_training(learner, learning_rate)]


def _about_data(learner: TorchLearner) -> Iterator[Finding]:
    """Yield what the task has, and what its numbers mean."""
    task, preprocessing = learner.task, learner.task.preprocessing
    if learner.shard is None:
        counts = ", ".join(f"{learner.count(part)} {part}" for part in PARTS if part == "train" or learner.count(part))
        yield Finding("data", f"{counts} samples, {of_type(learner.data)}")
    else:
        x, counts = learner.shard.train_x, ", ".join(f"{learner.count(part)} {part}" for part in PARTS)
        shape = ", ".join(_size(array, name) for name, array in by_name(x).items())
        preprocessing = learner.shard.preprocessing or preprocessing
        if preprocessing is not None and not isinstance(x, Mapping):
            preprocessing.check_shape(x.shape[1:])
        yield Finding("shard", f"{counts} samples of {shape}")
    if "train" in task.own:
        able = ", ".join(ability for ability in ABILITIES if ability in learner.abilities) or "nothing more"
        yield Finding("own loop", f"beyond training and evaluation it offers {able}")
    yield Finding("preprocessing", _PREPROCESSING if preprocessing is None else str(preprocessing))
    yield Finding("learns", goal(learner.meaning))
    yield Finding("equal at all peers", summary(learner.meaning))
    if preprocessing is not None and preprocessing.reading is not None:
        yield Finding("read as", preprocessing.reading)
    tensors, size = len(learner.schema.tensors), payload_size(learner.schema, "float32")
    yield Finding("model", f"{learner.schema.size} values in {tensors} tensors, {size / 1e6:.3f} MB")


def _about_training(learner: TorchLearner, learning_rate: float) -> Iterator[Finding]:
    """Yield what one step, two of an own loop, makes of a model, and what evaluates and travels."""
    own_loop, theta = "train" in learner.task.own, learner.initial_model(0)
    if not np.array_equal(theta, learner.initial_model(0)):
        fix = "Draw random numbers only from torch."
        raise TaskError(ConfigProblem("make_model", "the same values for the same seed", "others", fix))
    yield Finding("initialization", "the same values for the same seed")
    plan = trial_of_loop(learner, STEPS, learning_rate) if own_loop else _one_step(learning_rate)
    before = learner.evaluate(theta, "test" if "evaluate" in learner.task.own else "train")
    trained, stats = learner.train(theta, plan)
    if not np.isfinite(trained).all() or not (own_loop or np.isfinite(stats.loss)):
        raise TaskError(
            f"training: expected finite values, got NaN or Inf after one step (loss {stats.loss}). Scale the inputs."
        )
    if np.array_equal(trained, theta):
        raise TaskError(
            "training: expected a change after one step, got none. The loss must depend on the parameters of the model."
        )
    again, _ = learner.train(theta, plan)
    hidden = check_hidden_state(learner, learning_rate)
    same = hidden.reproducible and np.array_equal(again, trained)
    seen = "reproducible" if same else "not reproducible bit for bit: another source of random numbers than torch"
    did = f"one step on {counted(stats.samples, 'sample')}, loss {stats.loss:.4g}"
    yield Finding("training", f"{counted(stats.steps, 'step') if own_loop else did}, {seen}")
    if stats.optimizer_state:
        yield Finding("kept over rounds", ", ".join(unpacked(stats.optimizer_state)))
    if hidden.names:
        yield Finding("kept", f"forward changes {hidden.names}; no output was seen to depend on it, and it is not sent")
    refused = try_batches(learner, trained, learning_rate)
    if "outputs" in learner.abilities:
        yield Finding("batches", refused or _mixes(learner, trained))
    after = learner.evaluate(trained, "test")
    loss = "" if after.loss is None else f", loss {after.loss:.4g}"
    samples = f" on {counted(after.samples, 'sample')}" if after.samples else ""
    yield Finding("evaluation", f"{after.metric_name} {after.metric:.4g}{loss}{samples}")
    if not np.isfinite([each for each in (before.loss, after.loss, after.metric) if each is not None]).all():
        raise TaskError(
            f"evaluation: expected finite numbers, got loss {after.loss}, {after.metric_name} {after.metric}"
        )
    payload = bytes(encode(trained, learner.schema, "float32"))
    if not np.array_equal(decode(payload, learner.schema, "float32"), trained):
        raise TaskError(
            "encoding: expected the same values after decoding. This is a bug in this program, please report it."
        )
    yield Finding("encoding", f"{len(payload)} bytes, decoded bit for bit")


def _travels(whole: Schema, part: Schema) -> list[Finding]:
    """Say how much of a model leaves a peer, where a part of it does not."""
    private = [spec.name for spec in whole.tensors if spec not in part.tensors]
    sent = f"{part.size} values, {payload_size(part, 'float32') / 1e6:.3f} MB; private: {', '.join(private)}"
    return [Finding("travels", sent)] if private else []


def _size(array: Any, name: str) -> str:
    return (f"{name} " if name else "") + (" x ".join(map(str, array.shape[1:])) or "1")


def try_learner(learner: TorchLearner, learning_rate: float) -> None:
    """Train and evaluate batches of all sizes of a run, so that a fault of a task ends it before its first round.

    Args:
        learner: of one peer; its later results do not change.
        learning_rate: of the step.

    Raises:
        TaskError, ShardError: the first fault, with its reason. A model that is not finite is no fault here.
    """
    theta = learner.initial_model(0)
    check_hidden_state(learner, learning_rate)
    try_batches(learner, theta, learning_rate)
    plan = _one_step(learning_rate) if "batches" in learner.abilities else trial_of_loop(learner, 1, learning_rate)
    trained, _ = learner.train(theta, plan)
    learner.evaluate(trained, "test")


def _one_step(learning_rate: float) -> TrainingPlan:
    return TrainingPlan(epochs=1, seed=0, learning_rate=learning_rate, unit="step")


def _mixes(learner: TorchLearner, theta: Vector) -> str:
    """Return whether the output of a sample depends on the others of its batch, as a finding."""
    together, alone = learner.outputs_of(theta, slice(0, 2)), learner.outputs_of(theta, slice(0, 1))
    if torch.allclose(together[:1], alone, rtol=1e-2, atol=1e-4, equal_nan=True):
        return "of all sizes of a run, and of one sample"
    return "the output of a sample depends on the others of its batch, so peer predict gives others than an evaluation"


class _Guarded(Task):
    """A wrapped task; a call with a wrong result or an exception raises a `TaskError` with the name of the method."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.kind, self.classes, self.class_axis = task.kind, task.classes, task.class_axis
        self.more_metrics = task.more_metrics
        self.preprocessing, self.class_names = task.preprocessing, task.class_names
        self.facts = task.facts

    @property
    @override
    def metric_name(self) -> str:
        return _expected("metric_name", self._call("metric_name"), str)

    @property
    @override
    def higher_is_better(self) -> bool:
        return _expected("higher_is_better", self._call("higher_is_better"), bool)

    @property
    @override
    def metric_is_share(self) -> bool:
        return _expected("metric_is_share", self._call("metric_is_share"), bool)

    @property
    @override
    def needs_all_outputs(self) -> bool:
        return self._task.needs_all_outputs

    @override
    def make_model(self) -> nn.Module:
        model = _expected("make_model()", self._call("make_model"), nn.Module)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if is_lazy(tensor):
                raise TaskError(f"make_model: expected a shape of {name}, got none. Give sizes, as in nn.Linear(8, 3).")
        forward = model.forward

        @functools.wraps(forward)  # a Trainer looks at its arguments
        def guarded(*inputs: Any, **named: Any) -> Any:
            try:
                return forward(*inputs, **named)
            except PeerError:
                raise
            except USER_ERRORS as error:
                shape = sample_shape(named or inputs[0])
                raise TaskError(
                    f"model: expected one that accepts samples of shape {shape}, got {described(error)}"
                ) from error

        model.forward = guarded
        return model

    @override
    def load_shard(self, peer_id: int) -> Shard:
        return _expected(f"load_shard({peer_id})", self._call("load_shard", peer_id), Shard)

    @property
    @override
    def own(self) -> frozenset[str]:
        return self._task.own

    @override
    def load_data(self, peer_id: int) -> Any:
        return self._call("load_data", peer_id)

    @override
    def train(self, model: nn.Module, data: Any, budget: Budget) -> Trained | None:
        trained: Trained | None = self._call("train", model, data, budget)  # the learner checks it
        return trained

    @override
    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        values: Mapping[str, float] = self._call("evaluate", model, data)  # the learner checks it
        return values

    @override
    def losses(self, model: nn.Module, data: Any) -> Tensor:
        losses: Tensor = self._call("losses", model, data)  # the learner checks it
        return losses

    @override
    def count(self, data: Any) -> int:
        found: int = self._call("count", data)  # the learner checks it
        return found

    @override
    def subset(self, data: Any, indices: NDArray[np.int64]) -> Any:
        return self._call("subset", data, indices)

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = self._call("loss", outputs, targets)  # the learner checks it
        return losses

    @override
    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        scores: Tensor = self._call("score", outputs, targets)  # the learner checks it
        return scores

    @override
    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, float]:
        values: Mapping[str, float] = self._call("measure", outputs, targets)  # `measured_more` checks it
        return values

    @override
    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        value: float = self._call("metric", outputs, targets)  # the learner checks it
        return value

    @override
    def make_optimizer(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer | None:
        own = self._call("make_optimizer", parameters, learning_rate)
        return None if own is None else _expected("make_optimizer", own, torch.optim.Optimizer)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            member = getattr(self._task, name)
            return member(*arguments) if callable(member) else member
        except PeerError:
            raise
        except USER_ERRORS as error:
            shown = ", ".join(_shown(argument) for argument in arguments)
            raise TaskError(f"{name}({shown}): {described(error)}. Correct the task.") from error


def _expected(what: str, value: Any, kind: type[Kind]) -> Kind:
    if not isinstance(value, kind):
        raise TaskError(f"{what}: expected {one(kind)}, got {of_type(value)}")
    return value


def _shown(argument: Any) -> str:
    if isinstance(argument, Tensor):
        return f"{argument.dtype} {list(argument.shape)}".removeprefix("torch.")
    return str(argument) if isinstance(argument, int | float) else "..."

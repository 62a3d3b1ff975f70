"""Try a task with the batches that its run will have, and look for what a model keeps outside of its vector."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from coordinator_free_bootstrap.errors import ShardError, TaskError
from coordinator_free_bootstrap.validation import counted
from peer.algorithms.learner import TrainingPlan
from peer.core.averaging import Vector
from peer.learning.flat import FlatModule
from peer.learning.frozen import digest_of
from peer.learning.learner import SOME, TorchLearner
from peer.tasks.shard import PARTS

STEPS = 2  # of a trial: the second one sees what the first has changed
_NORM_REFUSES = "Expected more than 1 "  # of torch's normalizing layers


def try_batches(learner: TorchLearner, theta: Vector, learning_rate: float) -> str:
    """Train and evaluate one batch of each size of the run, so that a fault ends it before its first round.

    Args:
        learner: of one peer; its later results do not change.
        theta: float32 [d], read only.
        learning_rate: of the steps.

    Returns:
        What the model cannot do, though the run does not need it; "" if there is nothing.

    Raises:
        TaskError, ShardError: the first fault, with the batch in which it comes.
    """
    if "batches" in learner.abilities:
        _try_training(learner, theta, learning_rate)
    if "outputs" not in learner.abilities:
        return ""
    for part in PARTS:
        whole, most = learner.count(part), learner.evaluation_batch
        if 0 < (rows := whole % most) < whole:
            name = f"the last {part} batch of an evaluation ({counted(whole, 'sample')}, {most} at a time)"
            with _batch(f"{name}, {counted(rows, 'sample')}"):
                learner.try_last(theta, part, rows)
    return _single(learner, theta)


def _try_training(learner: TorchLearner, theta: Vector, learning_rate: float) -> None:
    learner.check_batch_size(learner.batch_size)
    count, size = learner.count(), learner.batch_samples
    last = count % size if size else 0
    sizes = {size: "the first training batch"}
    if last:
        sizes.setdefault(last, f"the last training batch ({counted(count, 'sample')}, run.batch_size {size})")
    for rows, name in sizes.items():
        if rows > 1 or not learner.model.has_batch_norm:  # which leaves such a batch out
            with _batch(f"{name}, {counted(rows, 'sample')}"):
                _step(learner, theta, learning_rate, rows)


def _step(learner: TorchLearner, theta: Vector, learning_rate: float, rows: int) -> None:
    last = np.arange(learner.count() - rows, learner.count())
    learner.train(
        theta, TrainingPlan(epochs=1, seed=0, learning_rate=learning_rate, unit="step", indices=last, batch_size=rows)
    )


@contextmanager
def _batch(name: str) -> Iterator[None]:
    """Begin the message of an error in the block with the name of the batch."""
    try:
        yield
    except ShardError:
        raise
    except TaskError as error:
        raise TaskError(f"{name}: {error}") from error


def _single(learner: TorchLearner, theta: Vector) -> str:
    """Give the model one sample, as `peer predict` may; a normalizing layer may refuse it."""
    batch = "a batch of 1 sample, as in peer predict"
    try:
        one, two = (learner.outputs_of(theta, slice(0, rows)) for rows in (1, 2))
    except TaskError as error:
        if str(error.__cause__).startswith(_NORM_REFUSES):
            return f"{batch}: {error}"
        raise TaskError(f"{batch}: {error}") from error
    if one.dim() != two.dim():
        raise TaskError(
            f"{batch}: model: expected the same axes for any number of samples, got outputs of shape "
            f"{list(one.shape)}, and {list(two.shape)} for two samples"
        )
    return ""


class HiddenState(NamedTuple):
    """What a trial shows of the state that a model keeps outside of its vector."""

    reproducible: (
        bool  # whether a new module gives the same bits in the same calls; if not, a difference could be chance
    )
    names: str  # of what forward changes, though nothing was seen to depend on it


def check_hidden_state(learner: TorchLearner, learning_rate: float) -> HiddenState:
    """Check that outputs and training depend on the model vector alone, and not on what forward keeps elsewhere.

    A module that has trained is compared with a new one that has the same vector.

    Raises:
        TaskError: forward keeps something that matters; the message names it.
    """
    used, fresh = learner.model, learner.another_model()
    at_first = _kept(fresh.module)
    theta = _trained(learner, learner.initial_model(0), learning_rate)
    kept = at_first | _kept(used.module)
    try:
        reused, expected = (_behavior(learner, model, theta, learning_rate) for model in (used, fresh))
        kept |= {name: value for name, value in _kept(fresh.module).items() if value != at_first.get(name)}
        names = ", ".join(sorted(name for name in kept if kept[name] != at_first.get(name)))
        if _same(reused, expected) and np.array_equal(*expected[:2], equal_nan=True):
            return HiddenState(True, names)
        if not _same(_behavior(learner, learner.another_model(), theta, learning_rate), expected):
            return HiddenState(False, names)
    finally:
        learner.model = used
    raise TaskError(
        f"model: forward changes {names or 'something outside of the model'}, and later outputs depend on it, but it is not in "
        "the state_dict: it does not travel to neighbors, and is lost in checkpoints and model files. Keep it in a persistent "
        "buffer (register_buffer), or start it anew in each call."
    )


def _behavior(learner: TorchLearner, model: FlatModule, theta: Vector, rate: float) -> tuple[Vector, Vector, Vector]:
    """Return the outputs of a module, those of a second call, and what a training makes of a vector."""
    learner.model = model
    if "outputs" not in learner.abilities:
        return theta, theta, _trained(learner, theta, rate)
    outputs, again = (learner.outputs_of(theta, slice(0, SOME)).numpy() for _ in range(2))
    return outputs, again, _trained(learner, theta, rate)


def _trained(learner: TorchLearner, theta: Vector, rate: float) -> Vector:
    if "batches" not in learner.abilities:
        return learner.train(theta, trial_of_loop(learner, STEPS, rate))[0]
    some = np.arange(min(SOME, learner.count()))
    return learner.train(
        theta, TrainingPlan(epochs=STEPS, seed=0, learning_rate=rate, unit="step", indices=some, batch_size=len(some))
    )[0]


def trial_of_loop(learner: TorchLearner, steps: int, learning_rate: float) -> TrainingPlan:
    """Return the plan of some steps of an own loop, in what the run counts."""
    length = steps if learner.unit == "step" else 1
    return TrainingPlan(length, 0, learning_rate, unit=learner.unit, optimizer_state={}, trial=steps)


def _same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in zip(first, second, strict=True))


def _kept(module: nn.Module) -> dict[str, str]:
    """Return a description of each value that a module and its parts keep outside of the state_dict, by its dotted name."""
    own = vars(nn.Module()).keys()
    persistent = module.state_dict(keep_vars=True).keys()
    digests = {name: digest_of(buffer) for name, buffer in module.named_buffers() if name not in persistent}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if (name not in own and not callable(value)) or isinstance(value, nn.Module):
                digests[f"{path}.{name}".lstrip(".")] = " ".join(_described(value))
    return digests


def _described(value: object) -> Iterator[str]:
    if isinstance(value, Tensor):
        yield digest_of(value)
    elif isinstance(value, nn.Module):
        yield from (digest_of(tensor) for tensor in [*value.parameters(), *value.buffers()])
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _described(inner)
    elif isinstance(value, list | tuple | deque):
        yield str(len(value))
        for inner in value:
            yield from _described(inner)
    elif isinstance(value, np.ndarray):
        yield digest_of(torch.from_numpy(np.ascontiguousarray(value)))
    elif isinstance(value, bool | int | float | str | bytes | complex | set | frozenset | None):
        yield repr(value)
    else:
        yield type(value).__name__

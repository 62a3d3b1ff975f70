"""Try everything that a run would ask of a task, and say in words what is wrong: ``peer task check``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator_free_bootstrap.errors import TaskError
from peer.learning.learner import Learner
from peer.tasks.task import Task
from peer.wire.codec import decode, encode, payload_size


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that works, with what was seen."""

    what: str
    seen: str


def check_task(
    task: Task, peer_id: int = 0, *, learning_rate: float = 0.01, batch_size: int = 100, device: str = "cpu"
) -> list[Finding]:
    """Load a shard, train one step, evaluate, encode and decode the model.

    Args:
        task: the task under test.
        peer_id: whose shard is loaded.
        learning_rate: of the one step.
        batch_size: of the one step.
        device: where it trains.

    Returns:
        What works, in order.

    Raises:
        TaskError, ShardError: the first thing that does not, with the reason.
    """
    findings = []
    try:
        shard = task.load_shard(peer_id)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise TaskError(f"load_shard({peer_id}) failed: {type(error).__name__}: {error}") from error
    learner = Learner(task, shard, batch_size=batch_size, device=device)
    shape = " x ".join(map(str, learner.shard.train_x.shape[1:]))
    counts = ", ".join(f"{learner.count(part)} {part}" for part in ("train", "validation", "test"))
    findings.append(Finding("shard", f"{counts} samples of {shape}"))
    tensors = len(learner.schema.tensors)
    size = payload_size(learner.schema, "float32")
    findings.append(Finding("model", f"{learner.schema.size} values in {tensors} tensors, {size / 1e6:.3f} MB"))

    theta = learner.initial_model(0)
    if not np.array_equal(theta, learner.initial_model(0)):
        raise TaskError("make_model gives other values for the same seed; take random numbers from torch only")
    findings.append(Finding("initialization", "the same values for the same seed"))
    before = learner.evaluate(theta, "train")
    trained, stats = learner.train(theta, epochs=1, seed=0, learning_rate=learning_rate, unit="step")
    if not np.isfinite(trained).all() or not np.isfinite(stats.loss):
        raise TaskError(f"one step of training gives values that are not finite (loss {stats.loss}); scale the inputs")
    if np.array_equal(trained, theta):
        raise TaskError("one step of training changes nothing; does the loss depend on the model's parameters?")
    again, _ = learner.train(theta, epochs=1, seed=0, learning_rate=learning_rate, unit="step")
    same = "reproducible" if np.array_equal(again, trained) else "not reproducible bit for bit"
    findings.append(Finding("training", f"one step on {stats.samples} samples, loss {stats.loss:.4g}, {same}"))
    after = learner.evaluate(trained, "test")
    findings.append(
        Finding(
            "evaluation", f"{after.metric_name} {after.metric:.4g}, loss {after.loss:.4g} on {after.samples} samples"
        )
    )
    if not np.isfinite([before.loss, after.loss, after.metric]).all():
        raise TaskError(
            f"evaluation gives loss {after.loss} and {after.metric_name} {after.metric}, not finite numbers"
        )
    payload = bytes(encode(trained, learner.schema, "float32"))
    if not np.array_equal(decode(payload, learner.schema, "float32"), trained):
        raise TaskError("the model does not survive encoding and decoding; this is a bug of this program")
    findings.append(Finding("encoding", f"{len(payload)} bytes and back, bit for bit"))
    return findings

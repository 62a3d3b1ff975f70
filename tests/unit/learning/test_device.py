"""Devices and mixed precision: what a machine lacks is refused, and bfloat16 trains on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms.learner import TrainingPlan
from peer.lab.stacked import TrainRequest
from peer.learning.device import check_amp, device_named
from peer.learning.learner import TorchLearner
from peer.tasks import Shard, Task


class Rows(Task):
    """Two classes that a line separates."""

    classes = 2
    seen: list[torch.dtype]

    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.seen = []
        model[0].register_forward_hook(lambda module, inputs, outputs: self.seen.append(outputs.dtype))
        return model

    def load_shard(self, peer_id: int) -> Shard:
        x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        return Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])

    def metric(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        assert outputs.dtype == torch.float32
        return super().metric(outputs, targets)


def learner_of(amp: bool) -> tuple[Rows, TorchLearner]:
    task = Rows()
    learner = TorchLearner(task, task.load_shard(0), batch_size=10, amp=amp)
    task.seen = []
    learner.model.module[0].register_forward_hook(lambda module, inputs, outputs: task.seen.append(outputs.dtype))
    return task, learner


def trained(learner: TorchLearner) -> np.ndarray:
    return learner.train(learner.initial_model(0), TrainingPlan(epochs=20, seed=0, learning_rate=0.5))[0]


def test_layers_compute_in_bfloat16_and_all_else_is_float32() -> None:
    (task, mixed), (plain_task, plain) = learner_of(amp=True), learner_of(amp=False)
    theta, full = trained(mixed), trained(plain)
    found, expected = mixed.evaluate(theta), plain.evaluate(full)
    assert set(task.seen) == {torch.bfloat16} and set(plain_task.seen) == {torch.float32}
    assert theta.dtype == np.float32 and theta.tobytes() != full.tobytes()
    assert found.metric >= 0.9 and found.loss == pytest.approx(expected.loss, abs=0.1)
    assert trained(mixed).tobytes() == theta.tobytes()


def test_models_in_mixed_precision_are_trained_one_by_one() -> None:
    plan = TrainingPlan(epochs=1, seed=0, learning_rate=0.1)
    for amp in (True, False):
        learner = learner_of(amp)[1]
        assert TrainRequest(learner, learner.initial_model(0), plan).can_stack() is not amp


def test_an_apple_gpu_is_used_only_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"sees no Apple GPU\. Use --device cpu or auto"):
        device_named("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert (device_named("mps"), device_named("auto")) == ("mps", "cpu")


def test_a_device_without_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_amp("bf16", "cpu")
    check_amp(None, "cuda:1")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: False)
    for device in ("cuda", "cuda:1", "mps"):
        with pytest.raises(ConfigError, match=f"the device {device} has no bfloat16 arithmetic. Leave --amp out"):
            check_amp("bf16", device)

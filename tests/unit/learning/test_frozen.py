"""Weights that neither train nor travel have a digest; peers and files whose digests differ are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from coordinator_free_bootstrap import Graph, Manifest, Node
from coordinator_free_bootstrap.errors import RefusalCode, StorageError
from peer.algorithms.learner import TrainingPlan
from peer.host import build_host
from peer.learning.frozen import frozen_digest
from peer.learning.learner import TorchLearner
from peer.learning.model_about import model_metadata
from peer.store.model_file import save_model
from peer.tasks import Shard, Task
from peer.view.models.saved import SavedModel, evaluated

FEATURES, CLASSES = 4, 3


class Adapter(nn.Module):
    """A frozen base with a trained head, a table that is not in the state_dict, and an integer buffer."""

    def __init__(self, base: float = 1.0, table: float = 1.0, kept: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        nn.init.constant_(self.base.weight, base)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("table", torch.full((FEATURES,), table), persistent=False)
        self.register_buffer("kept", torch.tensor(kept))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.base(x[:, self.kept]) * self.table)  # type: ignore[no-any-return,index]


class Rows(Task):
    """Random rows; ``build`` makes the model."""

    classes = CLASSES

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build

    def make_model(self) -> nn.Module:
        return self.build()

    def load_shard(self, peer_id: int) -> Shard:
        draw = np.random.default_rng(peer_id)
        x, y = draw.normal(size=(20, FEATURES)), draw.integers(0, CLASSES, 20)
        return Shard(train_x=x[:10], train_y=y[:10], test_x=x[10:], test_y=y[10:])


def learner_of(build: Callable[[], nn.Module], peer_id: int = 0) -> TorchLearner:
    task = Rows(build)
    return TorchLearner(task, task.load_shard(peer_id))


@pytest.mark.parametrize(
    "other",
    [{"base": 1.0000001}, {"table": 2.0}, {"kept": (0, 1, 3, 2)}],
    ids=["frozen parameter", "buffer outside of the state_dict", "integer buffer"],
)
def test_each_kind_of_frozen_state_changes_the_digest_and_nothing_else_of_the_handshake(
    other: dict[str, float],
) -> None:
    mine, theirs = learner_of(Adapter), learner_of(lambda: Adapter(**other))  # type: ignore[arg-type]
    assert mine.frozen_digest != theirs.frozen_digest
    assert mine.schema.digest == theirs.schema.digest
    assert mine.initial_model(3).tobytes() == theirs.initial_model(3).tobytes()


def test_the_digest_is_equal_in_every_start_and_empty_where_all_weights_travel() -> None:
    assert learner_of(Adapter).frozen_digest == learner_of(Adapter, 1).frozen_digest
    assert learner_of(lambda: nn.Linear(FEATURES, CLASSES)).frozen_digest == ""


def test_training_does_not_change_the_digest_of_a_model_with_batch_norm() -> None:
    subject = learner_of(lambda: nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)))
    theta = subject.initial_model(0)
    trained, stats = subject.train(theta, TrainingPlan(epochs=2, seed=0, learning_rate=0.1))
    assert stats.steps and not np.array_equal(trained, theta)
    again = TorchLearner(subject.task, subject.shard, model=subject.model)  # shares the trained module's memory
    assert subject.frozen_digest and again.frozen_digest == subject.frozen_digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.bool])
def test_frozen_weights_may_have_any_dtype(dtype: torch.dtype) -> None:
    def build(value: int) -> nn.Module:
        module = nn.Linear(1, 1)
        module.register_parameter("scalar", nn.Parameter(torch.tensor(value).to(dtype), requires_grad=False))
        module.register_buffer("turned", torch.tensor([[0, value], [1, 0]]).to(dtype).t(), persistent=False)
        module.register_buffer("empty", torch.empty(0, dtype=dtype), persistent=False)
        return module

    assert frozen_digest(build(0)) != frozen_digest(build(1)) == frozen_digest(build(1))


def test_peers_with_other_bases_refuse_each_other_and_name_both() -> None:
    nodes = (Node(0, "127.0.0.1:1"), Node(1, "127.0.0.1:2"))
    graph = Graph(nodes, ((0, 1),), Manifest(clusters=1, algorithm="dfedavg"))
    hosts = [
        build_host(i, graph, learner_of(build, i), 1, clock=lambda: 0.0)  # type: ignore[arg-type]
        for i, build in enumerate((Adapter, lambda: Adapter(base=2.0)))
    ]
    for host in hosts:
        host.connect(Mock(now=lambda: 0.0))
    for mine, theirs in ((hosts[0], hosts[1]), (hosts[1], hosts[0])):
        reply = mine.answer_hello(theirs.hello_to(mine.peer_id))
        assert reply.refusal.code is RefusalCode.FROZEN_MISMATCH
        assert all(host.workspace.learner.frozen_digest in reply.refusal.reason for host in hosts)
        assert "give both the same file of the base model" in reply.refusal.reason


def test_a_model_file_of_another_base_is_refused_and_one_of_the_same_base_is_used(tmp_path: Path) -> None:
    subject, path = learner_of(Adapter), tmp_path / "model.safetensors"
    theta, manifest = subject.initial_model(0), Manifest()
    save_model(path, theta, subject.schema, model_metadata(subject, manifest, 1))
    saved = SavedModel.read(path)
    assert evaluated(saved, manifest, subject.task, 0, "test")["loss"] == subject.evaluate(theta).loss
    saved.module(manifest, subject.task)
    other = Rows(lambda: Adapter(base=2.0))
    for use in (lambda: saved.module(manifest, other), lambda: evaluated(saved, manifest, other, 0, "test")):
        with pytest.raises(StorageError, match=f"frozen weights of digest '{subject.frozen_digest}'"):
            use()
    without = {key: value for key, value in saved.metadata.items() if key != "frozen_digest"}
    with pytest.raises(StorageError, match="metadata: expected frozen_digest, got none"):
        replace(saved, metadata=without).module(manifest, subject.task)

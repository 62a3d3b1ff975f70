"""Several inputs, labels of elements, many labels, raw integers and arrays on disk give the results of plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coordinator_free_bootstrap import Graph, Manifest, Node
from coordinator_free_bootstrap.errors import ShardError, TaskError
from peer.algorithms.learner import TrainingPlan
from peer.lab.simulated import SimulatedSettings, simulate
from peer.learning.check import check_task, try_learner
from peer.learning.learner import TorchLearner
from peer.tasks import Metric, Preprocessing, Shard, Task
from peer.tasks.arrays import Rows
from peer.tasks.shard import IGNORED
from peer.tasks.shard_file import load_shard_file, save_shard
from peer.view.report.history_table import rows
from peer.view.report.report import build_report
from peer.view.report.tables import _summary_rows

N = 30


def drawn(peer_id: int = 0) -> np.random.Generator:
    return np.random.default_rng(peer_id)


class Pictures(Task):
    """Grey pictures as bytes, scaled batch by batch."""

    classes = 3
    preprocessing = Preprocessing(divisor=255, mean=0.4, std=0.3)

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))

    def load_shard(self, peer_id: int) -> Shard:
        x = drawn(peer_id).integers(0, 256, (N, 1, 6, 6), np.uint8)
        y = drawn(peer_id).integers(0, 3, N)
        return Shard(train_x=x[:20], train_y=y[:20], test_x=x[20:], test_y=y[20:])


class Segments(Task):
    """Which of three materials each pixel shows; the border does not count."""

    classes = 3

    def make_model(self) -> nn.Module:
        return nn.Conv2d(1, 3, 3, padding=1)

    def load_shard(self, peer_id: int) -> Shard:
        x = drawn(peer_id).normal(size=(N, 1, 6, 5)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int8) + (x[:, 0] > 1)
        y[:, 0] = IGNORED
        y[4] = IGNORED  # a sample of which nothing counts
        return Shard(train_x=x[:20], train_y=y[:20], test_x=x[20:], test_y=y[20:])


class Tagger(nn.Module):
    """A class for each token, [n, tokens, classes], from two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 4), nn.Linear(4, 5)

    def forward(self, tokens: Tensor, weight: Tensor) -> Tensor:
        return self.head(self.words(tokens) * weight[:, None, None])  # type: ignore[no-any-return]


class Tags(Task):
    """Sequences of tokens as bytes, with padding that does not count, and a number beside each."""

    classes = 5
    class_axis = -1

    def make_model(self) -> nn.Module:
        return Tagger()

    def load_shard(self, peer_id: int) -> Shard:
        tokens = drawn(peer_id).integers(0, 11, (N, 7), np.uint8)
        y = (tokens % 5).astype(np.int64)
        y[:, 5:] = IGNORED
        x = {"tokens": tokens, "weight": drawn(peer_id).normal(1, 0.1, N)}
        train, test = ({name: array[rows] for name, array in x.items()} for rows in (slice(0, 20), slice(20, N)))
        return Shard(train_x=train, train_y=y[:20], test_x=test, test_y=y[20:])


class Topics(Task):
    """Four labels for each row, each yes or no."""

    kind = "multilabel"
    classes = 4

    def make_model(self) -> nn.Module:
        return nn.Linear(4, 4)

    def load_shard(self, peer_id: int) -> Shard:
        x = drawn(peer_id).normal(size=(N, 4))
        return Shard(train_x=x[:20], train_y=x[:20] > 0, test_x=x[20:], test_y=x[20:] > 0)


class Heights(Task):
    """Two real targets for each row, and two metrics beside the squared error."""

    kind = "regression"
    more_metrics = (Metric("mae", higher_is_better=False, share=False), Metric("within_1"))

    def make_model(self) -> nn.Module:
        return nn.Linear(4, 2)

    def load_shard(self, peer_id: int) -> Shard:
        x = drawn(peer_id).normal(size=(N, 4))
        return Shard(train_x=x[:20], train_y=x[:20, :2] * 3, test_x=x[20:], test_y=x[20:, :2] * 3)

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        errors = (outputs - targets).abs()
        return {"within_1": float((errors < 1).float().mean()), "mae": float(errors.mean())}


FORMS = [Pictures, Segments, Tags, Topics, Heights]


def learner_of(task: Task, shard: Shard | None = None) -> TorchLearner:
    return TorchLearner(task, shard or task.load_shard(0), batch_size=8)


def results(learner: TorchLearner) -> list[bytes]:
    """Return what a learner computes, as bytes."""
    theta, stats = learner.train(learner.initial_model(0), TrainingPlan(epochs=2, seed=0, learning_rate=0.1))
    found = learner.evaluate(theta)
    losses, scores = learner.sample_losses(theta), learner.sample_scores(theta)
    numbers = np.array([stats.loss, found.metric, found.loss])
    return [part.tobytes() for part in (theta, losses, scores, learner.predict_proba(theta), numbers)]


def by_hand(task: Task, learner: TorchLearner, theta: np.ndarray, x: Any) -> Tensor:
    """Return a model's outputs, without the learner."""
    module = task.make_model().eval()
    nn.utils.vector_to_parameters(torch.tensor(theta), module.parameters())
    with torch.no_grad():
        return module(*x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", FORMS)
def test_training_lowers_the_loss_and_a_sample_has_one_loss(form: type[Task]) -> None:
    subject = learner_of(form())
    before = subject.initial_model(0)
    after, _ = subject.train(before, TrainingPlan(epochs=20, seed=0, learning_rate=0.05))
    assert subject.mean_loss(after) < subject.mean_loss(before)
    assert subject.sample_losses(after).shape == (20,)
    assert subject.sample_scores(after).shape == (10,)
    assert subject.evaluate(after).loss == pytest.approx(subject.sample_losses(after, "test").mean(), rel=1e-6)
    assert check_task(form())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("algorithm", ["dfca", "ifca", "fedem", "fedspd", "dpfl"])
def test_algorithms_that_read_losses_of_samples_run_on_every_form(form: type[Task], algorithm: str) -> None:
    nodes = tuple(Node(i, f"127.0.0.1:{7000 + i}") for i in range(3))
    manifest = Manifest(algorithm=algorithm, rounds=2, local_epochs=1, batch_size=8, learning_rate=0.05)
    peers = simulate(Graph(nodes, ((0, 1), (0, 2), (1, 2)), manifest), None, SimulatedSettings(task=form()))
    for peer in peers.values():
        last = peer.host.last_round
        assert np.isfinite([last["metric_value"], last["loss"]]).all()
        assert last.get("metrics", {}).keys() == {metric.name for metric in form.more_metrics}
        assert peer.host.workspace.personalized is not None


def test_bytes_of_pictures_stay_bytes_and_give_the_bits_of_scaled_floats() -> None:
    task = Pictures()
    raw = task.load_shard(0)
    scaled = replace(raw, **{name: task.preprocessing.apply(getattr(raw, name)) for name in ("train_x", "test_x")})
    subject = learner_of(task)
    assert subject.shard.train_x.dtype == np.uint8 and subject.samples()._columns[""]._values.dtype == torch.uint8
    assert subject.input_dtype == "float32"
    assert results(subject) == results(learner_of(task, scaled))


def test_small_integers_of_tokens_are_passed_as_int64() -> None:
    task = Tags()
    shard = task.load_shard(0)
    wide = replace(shard, train_x=shard.train_x | {"tokens": shard.train_x["tokens"].astype(np.int64)})
    subject = learner_of(task)
    assert subject.input_dtype == '{"tokens": "int64", "weight": "float32"}'
    assert results(subject) == results(learner_of(task, replace(wide, test_x=shard.test_x)))


def test_raw_pictures_without_a_preprocessing_are_refused_with_what_to_do() -> None:
    task = Pictures()
    task.preprocessing = None  # type: ignore[assignment]
    with pytest.raises(TaskError, match=r"set preprocessing, as in Preprocessing\(divisor=255\)"):
        learner_of(task)


def test_the_loss_of_a_sample_is_the_mean_over_its_counted_elements() -> None:
    for task in (Segments(), Tags()):
        subject = learner_of(task)
        theta, shard = subject.initial_model(1), subject.shard
        x = list(shard.train_x.values()) if isinstance(shard.train_x, dict) else [shard.train_x]
        inputs = [torch.from_numpy(a).long() if a.dtype == np.uint8 else torch.from_numpy(a) for a in x]
        outputs = by_hand(task, subject, theta, inputs).movedim(task.class_axis, -1)
        found, scores = subject.sample_losses(theta), subject.sample_scores(theta, "train")
        for place in range(20):
            labels = torch.from_numpy(shard.train_y[place]).long()
            counted = labels != IGNORED
            expected = functional.cross_entropy(outputs[place][counted], labels[counted]) if counted.any() else 0.0
            assert found[place] == pytest.approx(float(expected), abs=1e-5)
            right = (outputs[place][counted].argmax(-1) == labels[counted]).float()
            assert scores[place] == pytest.approx(float(right.mean()) if counted.any() else 0.0, abs=1e-6)


def test_multilabel_is_the_cross_entropy_of_each_label_and_probabilities_can_be_mixed() -> None:
    task = Topics()
    subject = learner_of(task)
    theta = subject.initial_model(1)
    outputs = by_hand(task, subject, theta, [torch.from_numpy(subject.shard.test_x)])
    targets = torch.from_numpy(subject.shard.test_y)
    p = outputs.sigmoid()
    expected = -(targets * p.log() + (1 - targets) * (1 - p).log()).mean(1)
    np.testing.assert_allclose(subject.sample_losses(theta, "test"), expected.numpy(), rtol=1e-5)
    alone, mixed = subject.evaluate(theta), subject.evaluate_predictions(subject.predict_proba(theta))
    assert alone.metric == mixed.metric == pytest.approx(float(((p > 0.5) == (targets > 0.5)).float().mean()))
    assert mixed.loss == pytest.approx(alone.loss, rel=1e-5)


def test_a_classifier_whose_classes_are_on_another_axis_is_refused() -> None:
    task = Tags()
    task.class_axis = 1
    with pytest.raises(TaskError, match="expected 5 outputs, one for each class of the task, got 7"):
        learner_of(task)
    task.classes = None
    with pytest.raises(TaskError, match=r"outputs of shape \[2, 7, 5\] with classes on axis 1 for labels \[2, 7\]"):
        learner_of(task)


@pytest.mark.parametrize(
    ("task", "changes", "words"),
    [
        (Topics(), {"train_y": np.full((20, 4), 2)}, r"train_y\[0, 0\]: expected 0 or 1, got label 2"),
        (Topics(), {"train_y": np.zeros((20, 3))}, r"expected shape \[samples, 4\] for multilabel, got \[20, 3\]"),
        (
            Segments(),
            {"train_y": np.full((20, 6, 5), 3)},
            "expected 0..2, or -100 for an element that does not count, got label 3",
        ),
        (Tags(), {"train_x": {}}, "arguments of the model's forward"),
        (
            Tags(),
            {"train_x": {"tokens": np.zeros((20, 7), int), "weight": np.zeros(3)}},
            "equally many samples under each name",
        ),
        (
            Tags(),
            {"train_x": {"tokens": np.zeros((20, 7), int), "weight": np.full(20, np.nan)}},
            r"train_x\['weight'\]",
        ),
    ],
)
def test_wrong_data_are_refused(task: Task, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ShardError, match=words):
        learner_of(task, replace(task.load_shard(0), **changes))


def test_other_metrics_are_measured_over_the_whole_set_and_their_names_are_checked() -> None:
    task = Heights()
    subject = learner_of(task)
    theta = subject.initial_model(0)
    outputs = by_hand(task, subject, theta, [torch.from_numpy(subject.shard.test_x)])
    found = subject.evaluate(theta).more
    assert found == task.measure(outputs, torch.from_numpy(subject.shard.test_y))
    task.measure = lambda outputs, targets: {"mae": 1.0}  # type: ignore[method-assign]
    with pytest.raises(TaskError, match=r"measure: expected .*'mae', 'within_1'.*, got \['mae'\]"):
        learner_of(task)


# ---- arrays on disk ----------------------------------------------------------------------------------------------------


def on_disk(shard: Shard, folder: Path) -> Shard:
    """Return the shard with memory-mapped arrays in place of its own."""

    def mapped(name: str, array: Any) -> Any:
        if isinstance(array, dict):
            return {key: mapped(f"{name}-{key}", value) for key, value in array.items()}
        np.save(folder / f"{name}.npy", array)
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    names = ("train_x", "train_y", "test_x", "test_y")
    return replace(shard, **{name: mapped(name, getattr(shard, name)) for name in names})


@pytest.mark.parametrize("form", FORMS)
def test_arrays_on_disk_stay_there_and_give_the_bits_of_arrays_in_memory(form: type[Task], tmp_path: Path) -> None:
    task = form()
    stored = learner_of(task, on_disk(task.load_shard(0), tmp_path))
    assert stored.samples().stored and all(column._values is None for column in stored.samples()._columns.values())
    assert results(stored) == results(learner_of(task))


def test_validation_samples_of_an_array_on_disk_are_rows_of_it(tmp_path: Path) -> None:
    task = Pictures()
    shard = task.load_shard(0)
    held = shard.checked(task.kind, task.classes).holding_out(0.2, 1)
    lazy = on_disk(shard, tmp_path).checked(task.kind, task.classes).holding_out(0.2, 1)
    assert isinstance(lazy.train_x, Rows) and isinstance(lazy.val_x, Rows)
    first, second = learner_of(task, held), learner_of(task, lazy)
    theta = first.initial_model(0)
    assert (first.count(), first.count("validation")) == (16, 4) == (second.count(), second.count("validation"))
    assert first.sample_losses(theta, "validation").tobytes() == second.sample_losses(theta, "validation").tobytes()
    assert results(first) == results(second)


def test_a_wrong_value_on_disk_is_named_when_its_batch_is_read(tmp_path: Path) -> None:
    task = Heights()
    shard = task.load_shard(0)
    shard.train_x[11, 2] = np.nan
    subject = learner_of(task, on_disk(shard, tmp_path))
    with pytest.raises(ShardError, match=r"train_x, in a batch\[\d+, 2\]: expected finite float32 numbers, got nan"):
        subject.mean_loss(subject.initial_model(0))


def test_a_class_of_a_user_can_read_samples_on_demand() -> None:
    task = Heights()
    shard = task.load_shard(0)

    class Files:
        shape, dtype = shard.train_x.shape, shard.train_x.dtype
        asked = 0

        def __getitem__(self, rows: np.ndarray) -> np.ndarray:
            self.asked += len(rows)
            return shard.train_x[rows]  # type: ignore[no-any-return]

    files = Files()
    assert results(learner_of(task, replace(shard, train_x=files))) == results(learner_of(task))
    assert files.asked == 2 + 2 * 20 + 20  # two to probe, two epochs, and the losses of all samples


def test_a_step_on_all_samples_of_an_array_on_disk_is_refused(tmp_path: Path) -> None:
    """Before the first round, too; a step on the samples that an algorithm chose is no such step."""
    task = Heights()
    shard = on_disk(task.load_shard(0), tmp_path)
    subject, whole = learner_of(task, shard), TorchLearner(task, shard, batch_size="all")
    theta, plan = subject.initial_model(0), TrainingPlan(epochs=1, seed=0, learning_rate=0.1)
    words = "run.batch_size: expected a number with samples on disk, got all"
    with pytest.raises(TaskError, match=words):
        subject.train(theta, replace(plan, batch_size="all"))
    with pytest.raises(TaskError, match=words):
        whole.train(theta, replace(plan, indices=np.arange(8)))
    with pytest.raises(TaskError, match=words):
        try_learner(whole, 0.1)
    assert subject.train(theta, replace(plan, batch_size="all", indices=np.arange(8)))[1].steps == 1


@pytest.mark.parametrize("form", FORMS)
def test_shard_files_keep_every_form(form: type[Task], tmp_path: Path) -> None:
    task = form()
    shard = task.load_shard(0).checked(task.kind, task.classes)
    save_shard(tmp_path / "a.safetensors", shard)
    save_shard(tmp_path / "b.safetensors", on_disk(shard, tmp_path))
    for name in ("a", "b"):
        assert results(learner_of(task, load_shard_file(tmp_path / f"{name}.safetensors"))) == results(learner_of(task))


def test_other_metrics_are_in_history_summary_table_and_report(tmp_path: Path) -> None:
    nodes = tuple(Node(i, f"127.0.0.1:{7000 + i}") for i in range(2))
    graph = Graph(nodes, ((0, 1),), Manifest(algorithm="dfedavg", rounds=2, local_epochs=1, batch_size=8))
    peers = simulate(graph, tmp_path, SimulatedSettings(task=Heights()))
    report = build_report(tmp_path)
    lasts = [peer.host.last_round["metrics"] for peer in peers.values()]
    assert [row["metrics"] for row in report.values["peers"]] == lasts
    assert report.values["more_metrics"]["mae"] == {
        "name": "mae",
        "higher_is_better": False,
        "share": False,
        "mean": pytest.approx((lasts[0]["mae"] + lasts[1]["mae"]) / 2),
        "worst": max(last["mae"] for last in lasts),
        "peers": 2,
    }
    table = rows(report.run)
    assert len(table) == 4 and all(row["metrics.mae"] > 0 and 0 <= row["metrics.within_1"] <= 1 for row in table)
    names = [name for name, _ in _summary_rows(report.values)]
    assert {"mae (lower is better)", "within_1"} <= set(names)

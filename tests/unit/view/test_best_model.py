"""`models/best.safetensors`: the round with the best metric on the validation samples, what names it, and `--best`."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import StorageError, UsageError
from peer.algorithms.predictor import Best, Predictor, better
from peer.cli.main import app
from peer.core.checkpoint import Checkpoint
from peer.store.history import read_history
from peer.store.model_file import load_model
from peer.view.models.saved import SavedModel, evaluated

ROUNDS = 4


class Turned(peer.Task):
    """Two clouds; the validation samples have the other label, so training makes their metric worse, the test's better."""

    classes = 2
    preprocessing = peer.Preprocessing()

    def __init__(self, validation=True):
        self.validation = validation

    def make_model(self):
        return nn.Linear(3, 2)

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        y = draw.integers(0, 2, 120)
        x = (draw.normal(size=(120, 3)) + 0.8 * y[:, None]).astype(np.float32)
        val = {"val_x": x[60:90], "val_y": 1 - y[60:90]} if self.validation else {}
        return peer.Shard(train_x=x[:60], train_y=y[:60], test_x=x[90:], test_y=y[90:], **val)


class Error(Turned):
    """The same with a metric of which lower is better."""

    metric_name = "wrong"
    higher_is_better = False

    def metric(self, outputs, targets):
        return float((outputs.argmax(1) != targets).double().mean())


class Own(Turned):
    """The same with its own evaluation, which gives the validation metric with the test metric."""

    def __init__(self, validates=True):
        super().__init__(validation=False)
        self.validates, self.calls = validates, 0

    def evaluate(self, model, data):
        self.calls += 1
        right = (model(torch.from_numpy(data.test_x)).argmax(1) == torch.from_numpy(data.test_y)).double().mean()
        return {"accuracy": float(right)} | ({"validation_accuracy": 1 - float(right)} if self.validates else {})


def run_of(tmp_path, task, **run):
    keys = {"algorithm": "dfedavg", "rounds": ROUNDS, "batch_size": 20, "learning_rate": 0.02, **run}
    graph = peer.Graph.make("ring", peers=3, run=keys)
    return peer.simulate(graph, task=task, out=tmp_path / "out", progress=False)


def lines(run, peer_id, kind="round"):
    return [line for line in read_history(run.directory / f"peer-{peer_id}" / "history.jsonl") if line["kind"] == kind]


def best_of(run, peer_id):
    return run.directory / f"peer-{peer_id}" / "models" / "best.safetensors"


@pytest.mark.parametrize("task", [Turned, Error])
@pytest.mark.parametrize("algorithm", ["dfedavg", "fedem", "fedspd", "ditto", "perfedavg", "fedrep", "blend"])
def test_the_best_round_is_that_of_the_validation_metric_and_its_file_predicts_so(tmp_path, task, algorithm):
    run = run_of(tmp_path, task(), algorithm=algorithm)
    sign = 1 if task.higher_is_better else -1
    for peer_id in range(3):
        rounds, (end,) = lines(run, peer_id), lines(run, peer_id, "end")
        values = [sign * line["metric_validation"] for line in [*rounds, end]]
        best = values.index(max(values))
        for count, line in enumerate(rounds, 1):
            so_far = values[:count]
            assert line["best_round"] == so_far.index(max(so_far)) and sign * line["metric_best"] == max(so_far)
        summary = json.loads((run.directory / f"peer-{peer_id}" / "summary.json").read_text())
        row = run.metrics["peers"][peer_id]
        for said in (end, summary, row):
            assert (said["best_round"], sign * said["metric_best"]) == (best, values[best])
        about = load_model(best_of(run, peer_id))[1]
        assert (about["role"], about["best_round"]) == ("best_model", str(best))
        saved = SavedModel.read(best_of(run, peer_id))
        found = evaluated(saved, saved.known_manifest(), task(), peer_id, "validation")
        assert found[task().metric_name] == pytest.approx(sign * values[best], abs=1e-9)


def test_the_test_metric_does_not_choose(tmp_path):
    run = run_of(tmp_path, Turned(), learning_rate=0.1)
    by_test = [line["metric_value"] for line in lines(run, 0)]
    (end,) = lines(run, 0, "end")
    assert end["best_round"] != by_test.index(max(by_test)), "the case shows nothing"


def test_a_round_without_evaluation_chooses_nothing(tmp_path):
    run = run_of(tmp_path, Turned(), evaluate_every=2)
    known = [line.get("metric_validation") is not None for line in lines(run, 0)]
    assert known == [False, True, False, True] and lines(run, 0, "end")[0]["best_round"] in (1, 3)


@pytest.mark.parametrize("validates", [True, False])
def test_an_own_evaluation_that_gives_a_validation_metric_chooses_too_at_no_further_call(tmp_path, validates):
    task = Own(validates)
    run = run_of(tmp_path, task)
    assert best_of(run, 0).exists() == validates
    for peer_id in range(3):
        for line in lines(run, peer_id):
            expected = pytest.approx(1 - line["metric_value"]) if validates else None
            assert line.get("metric_validation") == expected
    other = Own(not validates)
    run_of(tmp_path / "other", other)
    assert task.calls == other.calls


def said(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def test_verbs_and_python_take_the_best_model(tmp_path):
    run = run_of(tmp_path, Turned())
    state = run.directory / "peer-1"
    expected = load_model(best_of(run, 1))[0]
    module = peer.Run(run.directory, task=Turned()).personalized(1, best=True)
    assert all(np.array_equal(module.state_dict()[name].numpy(), tensor) for name, tensor in expected.items())
    card = peer.Run(run.directory, task=Turned()).export_model(1, tmp_path / "m.pt", best=True).read_text()
    assert "The best model of peer 1 by its validation samples" in card and "| best round, counted from 0 |" in card
    with pytest.raises(UsageError, match=r"model=: expected no value .*best= names the model"):
        peer.Run(run.directory, task=Turned()).export_model(1, tmp_path / "m.pt", "cluster-0", best=True)
    assert SavedModel.chosen(state, best=True).path == best_of(run, 1)
    assert SavedModel.chosen(state).path == state / "models" / "personalized.safetensors"
    assert SavedModel.chosen(state / "models" / "personalized.safetensors", best=True).path == best_of(run, 1)
    assert "the best model is that after round" in SavedModel.read(best_of(run, 1)).best


@pytest.mark.parametrize("verb", ["evaluate", "predict", "export"])
def test_a_peer_without_validation_samples_has_no_best_model_and_says_why(tmp_path, verb):
    run = run_of(tmp_path, Turned(validation=False))
    assert not best_of(run, 0).exists() and "metric_validation" not in lines(run, 0)[-1]
    place = run.directory / "peer-0"
    words = {
        "evaluate": ("evaluate", place, "--best"),
        "predict": ("predict", place, tmp_path / "x.csv", "--best"),
        "export": ("export", run.directory, tmp_path / "m.pt", "--peer", 0, "--best"),
    }
    with pytest.raises(StorageError, match=r"--best: expected .*validation samples, and this one has none.*val_x"):
        said(*words[verb])


def test_a_later_round_replaces_the_best_only_by_a_better_finite_value():
    model = np.zeros(2, np.float32)
    best = Best(3, 0.5, Predictor((model,)))
    assert better(None, 0.1, higher_is_better=True) and better(best, 0.6, higher_is_better=True)
    assert not better(best, 0.5, higher_is_better=True) and not better(best, 0.5, higher_is_better=False)
    assert better(best, 0.4, higher_is_better=False)
    assert not better(None, float("nan"), higher_is_better=True)
    assert not better(None, float("inf"), higher_is_better=True)


def test_a_checkpoint_keeps_the_best_with_all_its_models():
    models = (np.arange(3, dtype=np.float32), np.ones(3, np.float32), np.full(3, 2, np.float32))
    best = Best(3, 0.5, Predictor(models, "mixture", (0.5, 0.0, 0.5)).kept())
    found = Best.of(Checkpoint(4, best.arrays(), {"best": json.loads(json.dumps(best.state()))}))
    assert (found.round_index, found.value, found.predictor.how) == (3, 0.5, "mixture")
    assert found.predictor.weights == (0.5, 0.5), "a model of weight 0 does not count"
    assert [model.tolist() for model in found.predictor.models] == [models[0].tolist(), models[2].tolist()]
    assert Best.of(None) is Best.of(Checkpoint(4, {}, {})) is None

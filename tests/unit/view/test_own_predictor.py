"""`peer evaluate`, `peer predict`, `Run.personalized` and `peer export` use what the run's final metric was measured with."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import StorageError
from peer.cli.main import app
from peer.tasks.loading import load_task

RUNS = {
    "blend": {"algorithm": "blend"},
    "fedem": {"algorithm": "fedem"},
    "fedspd, confident": {"algorithm": "fedspd", "options": {"personalize": "confident"}, "final": {"epochs": 0}},
    "fedspd, mixture": {"algorithm": "fedspd", "options": {"personalize": "mixture"}, "final": {"epochs": 0}},
    "fedspd": {"algorithm": "fedspd"},
    "dfca": {"algorithm": "dfca"},
    "apfl": {"algorithm": "apfl"},
    "perfedavg": {"algorithm": "perfedavg"},
    "fedrep": {"algorithm": "fedrep"},
    "dfca, private": {"algorithm": "dfca", "private_parameters": ["*.bias"]},
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS)
def run(request, tmp_path_factory):
    keys = {"rounds": 3, "clusters": 2, "split_options": {"k": 2}, **request.param}
    out = tmp_path_factory.mktemp("run") / "out"
    return peer.simulate(peer.Graph.make("ring", peers=3, run=keys), out=out, progress=False)


def said(run, peer_id):
    found = run.metrics["peers"][peer_id]
    return found["metric_value"], found["loss"]


def personalized(run, peer_id):
    return run.directory / f"peer-{peer_id}" / "models" / "personalized.safetensors"


def shard_of(run, peer_id):
    return load_task(run._report.run.manifest, 3).load_shard(peer_id)


def verb(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "another predictor" not in result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("peer_id", [0, 2])
def test_evaluate_gives_the_numbers_of_the_run(run, peer_id):
    found = verb("evaluate", personalized(run, peer_id), "--peer", peer_id)
    accuracy, loss = said(run, peer_id)
    assert found["accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)


def test_predict_gives_the_classes_of_the_run(run, tmp_path):
    shard = shard_of(run, 1)
    np.save(tmp_path / "x.npy", shard.test_x)
    rows = verb("predict", personalized(run, 1), tmp_path / "x.npy", "--preprocessed")["predictions"]
    classes = np.array([int(row["class"]) for row in rows])
    assert (classes == shard.test_y).mean() == pytest.approx(said(run, 1)[0], abs=1e-9)
    assert all(0.1 < row["probability"] <= 1 for row in rows)


def test_the_module_in_python_and_the_exported_one_are_the_predictor_of_the_run(run, tmp_path):
    shard, module = shard_of(run, 2), run.personalized(2)
    with torch.no_grad():
        found = module(torch.from_numpy(shard.test_x)).argmax(1).numpy()
    assert (found == shard.test_y).mean() == pytest.approx(said(run, 2)[0], abs=1e-9)
    card = run.export_model(2, tmp_path / "model.pt").read_text()
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())
    assert "of this model |" in card and "is not this model" not in card


def test_one_file_is_enough(run, tmp_path):
    """The file is moved alone, as to a device that only predicts."""
    moved = tmp_path / "model.safetensors"
    moved.write_bytes(personalized(run, 0).read_bytes())
    assert verb("evaluate", moved, "--peer", 0)["accuracy"] == pytest.approx(said(run, 0)[0], abs=1e-9)


def test_a_model_that_the_metric_is_not_of_is_marked(run):
    other = run.directory / "peer-0" / "models" / "cluster-0.safetensors"
    arguments = ["evaluate", str(other), "--peer", "0"]
    manifest = run._report.run.manifest
    if manifest.algorithm == "fedrep" or manifest.private_parameters:
        with pytest.raises(StorageError, match="never leave the peer"):  # a body without its head
            CliRunner().invoke(app, arguments, catch_exceptions=False)
        return
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "another predictor than this model" in result.stderr

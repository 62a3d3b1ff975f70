"""`peer.simulate(graph, (x, y))`: the models are those of the built-in task with the same samples, split and model."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import peer
from coordinator_free_bootstrap import Manifest
from coordinator_free_bootstrap.errors import UsageError
from peer.store.model_file import load_model
from peer.view.models.saved import SavedModel

RUN = {"rounds": 2, "split": "dirichlet", "split_options": {"alpha": 1.0, "samples_min": 5}, "data_seed": 3}
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(200, 3)).astype(np.float32)
Y = np.where(X[:, 0] > 0, "wet", "dry")


@pytest.fixture(scope="module")
def frame():
    return pd.DataFrame(X, columns=["a", "b", "c"]).assign(weather=Y)


def models_of(run):
    return {(n, name, key): t for n, each in run.models.items() for name, ts in each.items() for key, t in ts.items()}


def same(first, second):
    a, b = models_of(first), models_of(second)
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("model", [{}, {"model": "mlp", "model_options": {"hidden": 5}}])
def test_the_models_are_those_of_the_task_tabular_bit_for_bit(tmp_path, frame, model):
    frame.to_csv(tmp_path / "table.csv", index=False)
    table = peer.Graph.make("ring", peers=4, run={**RUN, **model, "task": "tabular"})
    expected = peer.simulate(table, data_root=tmp_path / "table.csv", progress=False)
    graph = peer.Graph.make("ring", peers=4, run={**RUN, **model})
    for samples in ((X, Y), (frame, "weather"), peer.Data(X.tolist(), Y.tolist())):
        assert same(peer.simulate(graph, samples, progress=False), expected)
    assert not same(peer.simulate(graph, (X, Y[::-1]), progress=False), expected)


def test_the_model_file_has_the_scaling_and_the_classes(tmp_path):
    raw, out = X * 50 + 7, tmp_path / "run"
    run = peer.simulate(peer.Graph.make("ring", peers=4, run=RUN), (raw, Y), out=out, progress=False)
    path = out / "peer-0" / "models" / "personalized.safetensors"
    about = load_model(path)[1]
    scaling = peer.Data(raw, Y).dealt(peer.Manifest(split="iid"), 4).load_shard(0).preprocessing
    assert json.loads(about["preprocessing"])["mean"] == scaling.mean
    assert json.loads(about["class_names"]) == ["dry", "wet"]
    assert run.personalized(0)(torch.zeros(2, 3)).shape == (2, 2)
    np.save(tmp_path / "rows.npy", raw)
    saved = SavedModel.read(path)
    inputs = saved.read_inputs(Manifest(task="digits"), tmp_path / "rows.npy", preprocessed=False)
    assert np.array_equal(inputs.x, scaling.apply(raw))


def test_samples_alone_go_to_a_default_graph():
    assert len(peer.simulate((X, Y), progress=False).models) == 8
    with pytest.raises(UsageError, match=r"graph=: expected .*, got a tuple"):
        peer.simulate((X, Y), "digits", progress=False)

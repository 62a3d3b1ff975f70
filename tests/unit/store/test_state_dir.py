"""File names of a state directory, atomic writes, and model files with named tensors."""

import json

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer.core.schema import Schema, TensorSpec
from peer.store.files import write_atomic, write_json
from peer.store.model_file import load_model, save_model
from peer.store.state_dir import StateDir

SCHEMA = Schema((TensorSpec("layer.weight", (2, 3)), TensorSpec("layer.bias", ()), TensorSpec("mean", (2,), "buffer")))


def test_the_documented_file_names(tmp_path):
    place = StateDir.of_peer(tmp_path, 3)
    place.create()
    place.create()
    assert place.root == tmp_path / "peer-3" and place.checkpoints.is_dir()
    names = [place.history, place.summary, place.log, place.cluster_model(1), place.personalized_model]
    assert [str(n.relative_to(place.root)) for n in names] == [
        "history.jsonl",
        "summary.json",
        "peer.log",
        "models/cluster-1.safetensors",
        "models/personalized.safetensors",
    ]


def test_write_json_writes_null_for_numbers_that_are_not_finite(tmp_path):
    """Before, a summary.json of a diverged peer held a bare NaN, which is not JSON."""
    write_json(tmp_path / "summary.json", {"loss": float("nan"), "metric_value": [float("inf"), 0.5]})
    text = (tmp_path / "summary.json").read_text()
    assert "NaN" not in text and json.loads(text) == {"loss": None, "metric_value": [None, 0.5]}


def test_write_json_replaces_the_file_and_leaves_no_temporary(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2} and list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_old_file(tmp_path):
    (tmp_path / "target").mkdir()
    with pytest.raises(StorageError, match="cannot write"):
        write_atomic(tmp_path / "target", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["target"]


def test_model_file_round_trip_with_names(tmp_path):
    vector = np.arange(9, dtype=np.float32)
    save_model(tmp_path / "m.safetensors", vector, SCHEMA, {"task": "digits"})
    tensors, metadata = load_model(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(tensors["layer.weight"], vector[:6].reshape(2, 3))
    assert tensors["layer.bias"].shape == () and metadata == {"task": "digits", "schema_digest": SCHEMA.digest}


def test_a_model_of_wrong_size_or_dtype_is_refused(tmp_path):
    for vector in (np.zeros(8, np.float32), np.zeros(9, np.float64)):
        with pytest.raises(ValueError, match=r"float32 \[9\]"):
            save_model(tmp_path / "m.safetensors", vector, SCHEMA)


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 100])
def test_an_unreadable_model_file_is_a_storage_error(tmp_path, content):
    path = tmp_path / "m.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StorageError, match="cannot read model file"):
        load_model(path)

"""A bad shard is a sentence, never a start; a good one survives its file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import ShardError
from peer.tasks import Shard
from peer.tasks.shard_file import load_shard_file, save_shard


def shard(**changes):
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = np.arange(12) % 4
    return replace(Shard(train_x=x, train_y=y, test_x=x[:5], test_y=y[:5]), **changes)


def with_value(value, dtype=None):
    x = shard().train_x.astype(dtype or np.float64)
    x[7, 1] = value
    return x


def test_checked_gives_float32_and_int64():
    checked = shard(true_cluster=[0] * 12).checked("classification", 4)
    assert checked.train_x.dtype == np.float32
    assert checked.train_y.dtype == np.int64
    assert checked.true_cluster.dtype == np.int64
    assert checked.part("validation")[0].shape == (0, 3)
    assert shard(train_x=np.arange(24).reshape(12, 2), test_x=np.ones((5, 2), np.uint8)).checked(
        "classification", 4
    ).train_x.dtype == np.dtype(np.int64)
    assert shard().checked("regression", None).train_y.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_x": with_value(np.nan)}, r"train_x\[7, 1\] is nan"),
        ({"train_x": with_value(np.inf)}, r"train_x\[7, 1\] is inf"),
        ({"train_x": with_value(1e300)}, "not a finite float32"),
        ({"train_y": np.arange(12)}, r"train_y\[4\] is 4; labels must be 0..3"),
        ({"train_y": np.full(12, -1)}, "labels must be"),
        ({"train_y": np.ones(12)}, "integers of shape"),
        ({"train_y": np.ones((12, 2), int)}, "integers of shape"),
        ({"train_y": np.zeros(11, int)}, "12 samples and train_y has 11"),
        ({"test_x": np.zeros((5, 4))}, r"shape \[4\], one of train_x \[3\]"),
        ({"test_x": np.zeros((0, 3)), "test_y": np.zeros(0, int)}, "0 samples in test_x"),
        ({"train_x": np.zeros((1, 3)), "train_y": np.zeros(1, int)}, "2 or more are needed"),
        ({"train_x": np.zeros(12)}, "array"),
        ({"train_x": [[1.0]] * 12}, "found list"),
        ({"train_x": np.full((12, 3), "a")}, "dtype"),
        ({"val_x": np.zeros((2, 3))}, "both be given"),
        ({"val_x": np.zeros((2, 3)), "val_y": np.array([0, 9])}, r"val_y\[1\] is 9"),
        ({"true_cluster": np.zeros(3)}, "true_cluster has shape"),
        ({"true_cluster": np.zeros(12)}, "true_cluster has dtype float64; integers 0..4095"),
        ({"true_cluster": np.full(12, -5)}, r"true_cluster\[0\] is -5"),
        ({"true_cluster": np.array([0] * 11 + [10**12])}, r"true_cluster\[11\] is 1000000000000"),
        ({"turns": np.full(12, 4)}, r"turns\[0\] is 4; integers 0..3"),
    ],
)
def test_what_is_wrong_is_said_in_words(changes, words):
    with pytest.raises(ShardError, match=words):
        shard(**changes).checked("classification", 4)


def test_regression_targets_must_be_finite_numbers():
    with pytest.raises(ShardError, match=r"train_y\[0\]"):
        shard(train_y=np.full(12, np.nan)).checked("regression", None)
    with pytest.raises(ShardError, match="real numbers"):
        shard(train_y=np.full(12, "a")).checked("regression", None)


def test_a_shard_survives_its_file(tmp_path):
    written = shard(
        val_x=np.zeros((2, 3)), val_y=np.array([0, 1]), true_cluster=np.arange(12), turns=np.zeros(12, int),
        metadata={"task": "digits", "classes": "4"},
    ).checked("classification", 4)  # fmt: skip
    save_shard(tmp_path / "peer-0.safetensors", written)
    read = load_shard_file(tmp_path / "peer-0.safetensors")
    for name in ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y", "true_cluster", "turns"):
        assert np.array_equal(getattr(read, name), getattr(written, name)), name
    assert read.metadata.items() >= written.metadata.items()
    assert [p.name for p in tmp_path.iterdir()] == ["peer-0.safetensors"]


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "peer-0.safetensors"
    with pytest.raises(ShardError, match="no file"):
        load_shard_file(path)
    save_shard(path, shard())
    whole = path.read_bytes()
    for length in (0, 4, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ShardError, match="truncated or not a safetensors file"):
            load_shard_file(path)


def test_missing_and_unknown_tensors_are_named(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "peer-0.safetensors"
    save_file({"train_x": np.zeros((2, 2))}, path)
    with pytest.raises(ShardError, match="lacks train_y, test_x, test_y"):
        load_shard_file(path)
    save_file({name: np.zeros((2, 2)) for name in ("train_x", "train_y", "test_x", "test_y", "weights")}, path)
    with pytest.raises(ShardError, match="unknown tensors weights"):
        load_shard_file(path)


def test_a_folder_that_is_not_there_cannot_be_written(tmp_path):
    with pytest.raises(ShardError, match="cannot be written"):
        save_shard(tmp_path / "missing" / "peer-0.safetensors", shard())

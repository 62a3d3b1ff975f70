"""A wrong shard is refused with a sentence; a shard file gives back the arrays that were saved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from coordinator_free_bootstrap.errors import ShardError
from peer.tasks import Shard
from peer.tasks.arrays import is_stored
from peer.tasks.shard_file import load_shard_file, save_shard


def shard(**changes):
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = np.arange(12) % 4
    return replace(Shard(train_x=x, train_y=y, test_x=x[:5], test_y=y[:5]), **changes)


def with_value(value, dtype=None):
    x = shard().train_x.astype(dtype or np.float64)
    x[7, 1] = value
    return x


def test_tensors_and_columns_of_pandas_become_arrays():
    tensor, series = torch.randn(12, 3, requires_grad=True), pd.Series(np.arange(12) % 4, index=range(30, 42))
    made = shard(
        train_x={"a": tensor, "b": pd.DataFrame({"p": [1.5] * 12})},
        train_y=series,
        test_x={"a": tensor[:5], "b": np.ones((5, 1))},
        test_y=torch.arange(5) % 4,
        true_cluster=torch.ones(12, dtype=torch.long),
    )
    checked = made.checked("classification", 4)
    np.testing.assert_array_equal(checked.train_x["a"], tensor.detach().numpy())
    assert checked.train_x["b"].tolist() == [[1.5]] * 12
    assert checked.train_y.tolist() == [0, 1, 2, 3] * 3 and checked.test_y.tolist() == [0, 1, 2, 3, 0]
    assert checked.true_cluster.tolist() == [1] * 12
    arrays = (
        *checked.train_x.values(),
        *checked.test_x.values(),
        checked.train_y,
        checked.test_y,
        checked.true_cluster,
    )
    assert {type(array) for array in arrays} == {np.ndarray}


def test_checked_gives_float32_and_int64():
    checked = shard(true_cluster=[0] * 12).checked("classification", 4)
    assert checked.train_x.dtype == np.float32
    assert checked.train_y.dtype == np.int64
    assert checked.true_cluster.dtype == np.int64
    assert checked.part("validation")[0].shape == (0, 3)
    integers = shard(train_x=np.arange(24, dtype=np.uint16).reshape(12, 2), test_x=np.ones((5, 2), np.uint8))
    kept = integers.checked("classification", 4)
    assert (kept.train_x.dtype, kept.test_x.dtype) == (np.int64, np.uint8)  # torch has no arithmetic for uint16
    assert shard().checked("regression", None).train_y.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_x": with_value(np.nan)}, r"train_x\[7, 1\]: expected finite float32 numbers, got nan"),
        ({"train_x": with_value(np.inf)}, r"train_x\[7, 1\]: expected finite float32 numbers, got inf"),
        ({"train_x": with_value(1e300)}, "expected finite float32"),
        ({"train_y": np.arange(12)}, r"train_y\[4\]: expected 0..3, got label 4"),
        ({"train_y": np.full(12, -1)}, "expected 0..3, got label -1"),
        ({"train_y": np.ones(12)}, "integers of shape"),
        ({"train_y": np.ones((12, 2), int)}, r"test_y: expected targets of shape \[2\], as in train_y, got \[\]"),
        ({"train_y": np.zeros(11, int)}, r"as many samples in train_y as in train_x \(12\), got 11"),
        ({"test_x": np.zeros((5, 4))}, r"test_x: expected samples of shape \[3\].*, got \[4\]"),
        ({"test_x": np.zeros((0, 3)), "test_y": np.zeros(0, int)}, "test_x: expected at least 1 sample, got 0"),
        ({"train_x": np.zeros((1, 3)), "train_y": np.zeros(1, int)}, "expected at least 2 samples, got 1"),
        ({"train_x": np.zeros(12)}, "array"),
        ({"train_x": [[1.0]] * 12}, "got list"),
        ({"train_x": np.full((12, 3), "a")}, "dtype"),
        ({"val_x": np.zeros((2, 3))}, "expected both val_x and val_y or neither, got one"),
        ({"val_x": np.zeros((2, 3)), "val_y": np.array([0, 9])}, r"val_y\[1\]: expected 0..3, got label 9"),
        ({"true_cluster": np.zeros(3)}, r"true_cluster: expected shape \(12,\), got"),
        ({"test_cluster": np.zeros(12, int)}, r"test_cluster: expected shape \(5,\), got"),
        ({"true_cluster": np.zeros(12)}, "true_cluster: expected integers 0..4095, got dtype float64"),
        ({"true_cluster": np.full(12, -5)}, r"true_cluster\[0\]: expected integers 0..4095, got -5"),
        (
            {"true_cluster": np.array([0] * 11 + [10**12])},
            r"true_cluster\[11\]: expected integers 0..4095, got 1000000000000",
        ),
        ({"turns": np.full(12, 4)}, r"turns\[0\]: expected integers 0..3, got 4"),
    ],
)
def test_wrong_shards_are_refused(changes, words):
    with pytest.raises(ShardError, match=words):
        shard(**changes).checked("classification", 4)


def test_names_are_one_for_each_class():
    names = shard(class_names=("a", "b", "c"))
    with pytest.raises(ShardError, match="class_names: expected one name for each of the 4 classes, got 3"):
        names.checked("classification", 4)
    assert names.checked("classification", None).class_names == ("a", "b", "c")


def test_regression_targets_must_be_finite_numbers():
    with pytest.raises(ShardError, match=r"train_y\[0\]"):
        shard(train_y=np.full(12, np.nan)).checked("regression", None)
    with pytest.raises(ShardError, match="real numbers"):
        shard(train_y=np.full(12, "a")).checked("regression", None)


def test_a_saved_shard_is_read_back(tmp_path):
    written = shard(
        val_x=np.zeros((2, 3)), val_y=np.array([0, 1]), turns=np.zeros(12, int),
        true_cluster=np.arange(12), test_cluster=np.arange(5),
        metadata={"task": "digits", "classes": "4"},
    ).checked("classification", 4)  # fmt: skip
    save_shard(tmp_path / "peer-0.safetensors", written)
    read = load_shard_file(tmp_path / "peer-0.safetensors")
    for name in ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y", "true_cluster", "test_cluster", "turns"):
        assert np.array_equal(getattr(read, name), getattr(written, name)), name
    assert read.metadata.items() >= written.metadata.items()
    assert [p.name for p in tmp_path.iterdir()] == ["peer-0.safetensors"]


def test_large_samples_of_a_shard_file_stay_on_disk(tmp_path, monkeypatch):
    written = shard(
        train_y=np.arange(48).reshape(12, 4) % 4, test_y=np.zeros((5, 4), np.int8), true_cluster=np.arange(12),
    ).checked("classification", 4)  # fmt: skip
    save_shard(tmp_path / "peer-0.safetensors", written)
    monkeypatch.setattr("peer.tasks.shard_file.MAPPED_FROM", 100)
    read = load_shard_file(tmp_path / "peer-0.safetensors")
    stored = [
        name for name in ("train_x", "train_y", "test_x", "test_y", "true_cluster") if is_stored(vars(read)[name])
    ]
    assert stored == ["train_x", "train_y"]
    for name in ("train_x", "train_y", "test_x", "test_y", "true_cluster"):
        assert np.array_equal(getattr(read, name), getattr(written, name)), name
        assert getattr(read, name).dtype == getattr(written, name).dtype


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])
def test_every_number_of_a_shard_file_can_stay_on_disk(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr("peer.tasks.shard_file.MAPPED_FROM", 1)
    x = np.arange(24).reshape(12, 2).astype(dtype)
    save_shard(tmp_path / "peer-0.safetensors", shard(train_x=x, test_x=x[:5]))
    read = load_shard_file(tmp_path / "peer-0.safetensors").train_x
    assert is_stored(read) and read.dtype == x.dtype and np.array_equal(read, x)


def test_damaged_shard_files_are_refused(tmp_path):
    path = tmp_path / "peer-0.safetensors"
    with pytest.raises(ShardError, match="expected a file, got none"):
        load_shard_file(path)
    save_shard(path, shard())
    whole = path.read_bytes()
    for length in (0, 4, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ShardError, match="expected a whole safetensors file, got"):
            load_shard_file(path)


def test_missing_and_unknown_tensors_are_named(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "peer-0.safetensors"
    save_file({"train_x": np.zeros((2, 2))}, path)
    with pytest.raises(ShardError, match="got no train_y, test_x, test_y"):
        load_shard_file(path)
    save_file({name: np.zeros((2, 2)) for name in ("train_x", "train_y", "test_x", "test_y", "weights")}, path)
    with pytest.raises(ShardError, match="got unknown tensors weights"):
        load_shard_file(path)


def test_a_missing_folder_is_a_shard_error(tmp_path):
    with pytest.raises(ShardError, match="expected a path that can be written"):
        save_shard(tmp_path / "missing" / "peer-0.safetensors", shard())

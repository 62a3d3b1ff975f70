"""Arrays of other libraries keep their values in a shard, or are refused: masked, sparse, missing, on disk."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from coordinator_free_bootstrap.errors import ShardError, TaskError
from peer.learning.samples import Samples
from peer.tasks import Preprocessing, Shard, in_numpy
from peer.tasks.arrays import is_stored, read_rows, take_all
from peer.tasks.shard_file import load_shard_file, save_shard

X, Y = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 4


def shard(x=X, y=Y):
    width = x.shape[1] if isinstance(x, pd.DataFrame) else 3
    return Shard(train_x=x, train_y=y, test_x=X[:5, :width], test_y=Y[:5])


def checked(x=X, y=Y, kind="classification", classes=4):
    return shard(x, y).checked(kind, classes)


MASKED = np.ma.masked_array(np.where(X > 1, -999.0, X), mask=X > 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: shard(x=MASKED),
            r"train_x\[\d+, \d\]: expected values, got a masked value \(\d of 36 are masked\).*filled",
        ),
        (lambda: shard(x={"a": MASKED}), r"train_x\['a'\]\[\d+, \d\]: expected values, got a masked value"),
        (
            lambda: shard(y=np.ma.masked_equal(Y, 2)),
            r"train_y\[2\]: expected values, got a masked value.*Leave these samples out",
        ),
        (lambda: shard(x=Preprocessing.standardizing(MASKED).apply(MASKED)), "got a masked value"),
        (lambda: shard(x=Preprocessing(divisor=255).apply(MASKED)), "got a masked value"),
    ],
)
def test_masked_values_are_refused(make, words):
    """The fill values of a masked array, such as -999, were taken for readings."""
    with pytest.raises(ShardError, match=words):
        make()


def test_masked_values_can_be_filled_after_scaling_and_do_not_count_in_it():
    scaling = Preprocessing.standardizing(MASKED)
    assert np.max(np.abs(scaling.mean)) < 1
    np.testing.assert_allclose(scaling.mean, MASKED.mean(0), rtol=1e-5)
    filled = checked(x=scaling.apply(MASKED).filled(0.0)).train_x
    assert (filled[MASKED.mask] == 0).all() and filled.min() > -5


def test_a_masked_array_without_masked_values_is_an_array():
    np.testing.assert_array_equal(checked(x=np.ma.masked_array(X)).train_x, X.astype(np.float32))


class MaskedFile:
    """Rows as netCDF4 reads them."""

    shape, dtype = MASKED.shape, MASKED.dtype

    def __getitem__(self, rows):
        return MASKED[rows]


def test_masked_rows_of_a_file_are_refused_when_they_are_read():
    samples = Samples("train", checked(x=MaskedFile()).train_x, None, torch.device("cpu"))
    with pytest.raises(ShardError, match="got a masked value"):
        samples.inputs(slice(0, 12))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda t: t.to(torch.bfloat16), torch.tensor(X).to(torch.bfloat16).float().numpy()),
        (lambda t: t.to_sparse(), X),
        (lambda t: t.to_sparse_csr(), X),
        (lambda t: torch.quantize_per_tensor(t.float().round(), 1.0, 0, torch.qint8), X.round()),
        (lambda t: torch.complex(t, t).conj().real, X),
        (lambda t: t.requires_grad_(), X),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls sparse and quantized tensors unfinished
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensors_of_every_layout_and_type_are_taken(make, expected):
    np.testing.assert_allclose(checked(x=make(torch.tensor(X))).train_x, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pd.DataFrame({"a": X[:, 0], "b": Y % 2 == 0}), np.stack([X[:, 0], Y % 2 == 0], 1)),  # as get_dummies gives
        (pd.DataFrame({"a": X[:, 0], "b": Y}).convert_dtypes(), np.stack([X[:, 0], Y], 1)),
        (pd.DataFrame(X).astype("Float32"), X),
        (X.astype(object), X),
        (X.astype(">f8"), X),
        (X.astype(np.float16), X.astype(np.float16)),
        (np.asmatrix(X), X),
    ],
)
def test_columns_and_arrays_of_numbers_of_any_type_are_taken(frame, expected):
    np.testing.assert_allclose(checked(x=frame).train_x, expected.astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pd.Series(Y, dtype="Int64"), Y),
        (pd.Series(Y).astype("category"), Y),
        (pd.Series(Y, dtype=object), Y),
        (Y % 2 == 1, Y % 2),
        (pd.Series(Y % 2 == 1, dtype="boolean"), Y % 2),
        (Y.astype(">i4"), Y),
        (Y.astype(np.int8), Y),
        (scipy.sparse.coo_array(Y), Y),
    ],
)
def test_labels_of_any_integer_type_are_taken(labels, expected):
    found = checked(y=labels).train_y
    assert found.dtype == np.int64 and found.tolist() == expected.tolist()


MISSING = pd.Series([None if n == 3 else int(y) for n, y in enumerate(Y)], dtype="Int64")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"y": MISSING},
            r"train_y: expected as labels .*, got float64 \[12\], 1 of them missing.*train_y\[3\].*leave out samples",
        ),
        ({"y": np.where(Y == 2, np.nan, Y)}, r"3 of them missing, the first at train_y\[2\]"),
        ({"y": np.where(Y == 2, None, Y.astype(object))}, r"3 of them missing, the first at train_y\[2\]"),
        (
            {"y": np.array(["dry", ""] * 6)},
            r"got <U3 \[12\], 6 of them missing, the first at train_y\[1\].*Number the classes",
        ),
        ({"y": Y - 1}, r"train_y\[0\]: expected 0\.\.3, got label -1"),
        (
            {"x": pd.DataFrame(X).mask(X > 1).convert_dtypes()},
            r"train_x\[\d+, \d\]: expected finite float32 numbers, got nan",
        ),
        ({"x": np.array([["a", 1.0, None]] * 12, object)}, "dtype object with 'a'. Convert texts"),
        ({"x": X > 0}, r"dtype bool\. .* astype\(np.float32\) for features"),
        ({"x": X.astype(complex)}, r"dtype complex128\. .* real and imaginary part"),
        ({"x": np.zeros((12, 3), "datetime64[s]")}, r"dtype datetime64.*\. .* days since"),
        ({"x": np.zeros((12, 1), [("a", "f4")])}, "got dtype .*'a'"),
        ({"x": np.full((12, 3), 2**63, np.uint64)}, r"expected integers below 2\^63, got 9223372036854775808"),
    ],
)
def test_values_without_a_meaning_as_numbers_are_refused(changes, words):
    with pytest.raises(ShardError, match=words):
        checked(**changes)


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array", "csc_matrix", "coo_array", "lil_matrix", "dok_array"])
def test_sparse_matrices_are_arrays_or_rows_on_demand(monkeypatch, tmp_path, kind):
    """A matrix of TfidfVectorizer ended in "setting an array element with a sequence"."""
    dense = np.where(X > 0, X, 0.0)
    matrix = getattr(scipy.sparse, kind)(dense)
    np.testing.assert_array_equal(checked(x=matrix).train_x, dense.astype(np.float32))
    monkeypatch.setattr(in_numpy, "DENSE_MAX", 0)
    large = shard(x=matrix).checked("classification", 4)
    assert is_stored(large.train_x) and large.train_x.shape == (12, 3)
    samples = Samples("train", large.train_x, None, torch.device("cpu"))
    rows = torch.tensor([7, 2, 2, 11])
    np.testing.assert_array_equal(samples.inputs(rows).numpy(), dense.astype(np.float32)[rows.numpy()])
    held = large.holding_out(0.25, 0)
    assert len(held.part("validation")[1]) == 3 and large.part("validation")[0].shape == (0, 3)
    save_shard(tmp_path / "peer-0.safetensors", large)
    np.testing.assert_array_equal(load_shard_file(tmp_path / "peer-0.safetensors").train_x, dense)


class DataSetOnDisk:
    """Rows as h5py reads them: indices must ascend, each once, and the file must be open."""

    def __init__(self, values, is_open=True, knows_shape=True):
        self._values, self.is_open, self._knows_shape = values, is_open, knows_shape

    @property
    def shape(self):
        if not self._knows_shape:
            raise ValueError("Not a dataset (not a dataset)")
        return self._values.shape

    @property
    def dtype(self):
        return self._values.dtype

    def __getitem__(self, rows):
        if not self.is_open:
            raise OSError("Can't synchronously read data")
        if not len(rows) or (np.diff(rows) <= 0).any():
            raise TypeError("Indexing elements must be in increasing order")
        return self._values[rows]


def test_rows_of_a_data_set_on_disk_are_read_in_ascending_order():
    """A data set of h5py ended in "Indexing elements must be in increasing order"."""
    made = checked(x=DataSetOnDisk(X), y=DataSetOnDisk(Y))
    assert made.train_y.tolist() == Y.tolist()
    wanted = np.array([7, 2, 2, 11, 0])
    np.testing.assert_array_equal(read_rows(made.train_x, wanted), X[wanted])
    samples = Samples("train", made.train_x, made.train_y, torch.device("cpu"), kind="classification", classes=4)
    np.testing.assert_array_equal(samples.inputs(torch.tensor(wanted)).numpy(), X.astype(np.float32)[wanted])
    held = made.holding_out(0.25, 0)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([take_all(held.train_x), take_all(held.val_x)]), 0), np.sort(X, 0)
    )
    assert made.part("validation")[0].shape == (0, 3)


def test_a_data_set_of_a_closed_file_is_refused():
    with pytest.raises(ShardError, match=r"DataSetOnDisk cannot be read: Not a dataset.*Keep its file open"):
        checked(x=DataSetOnDisk(X, knows_shape=False))
    made = checked(x=(file := DataSetOnDisk(X)))
    file.is_open = False
    with pytest.raises(ShardError, match=r"DataSetOnDisk cannot be read: Can't .*Keep its file open"):
        take_all(made.train_x)


def test_large_numbers_that_differ_little_stay_apart_when_they_are_scaled():
    """Times in seconds since 1970 were rounded to 128 seconds before the mean was subtracted."""
    seconds = 1.75e9 + np.arange(100.0)[:, None]
    for raw in (seconds, seconds.astype(np.int64)):
        scaled = Preprocessing.standardizing(raw).apply(raw)
        assert scaled.dtype == np.float32
        np.testing.assert_allclose(np.diff(scaled[:, 0]), 1 / seconds.std(), rtol=1e-2)
    scaling = Preprocessing.standardizing(raw)
    batch = Samples("train", raw, None, torch.device("cpu"), scaling=scaling).inputs(slice(0, 100))
    np.testing.assert_array_equal(batch.numpy(), scaling.apply(raw))


def test_scaling_by_missing_values_names_the_feature():
    raw = X.copy()
    raw[2, 1] = np.nan
    with pytest.raises(
        TaskError, match=r"feature 1 \('b'\): expected finite numbers, got NaN or Inf in the training samples"
    ):
        Preprocessing.standardizing(raw, ("a", "b", "c"))

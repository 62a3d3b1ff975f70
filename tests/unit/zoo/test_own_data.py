"""`peer.Data`: arrays, frames and data sets of a program, their labels, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import peer
from coordinator_free_bootstrap import Manifest
from coordinator_free_bootstrap.errors import TaskError, UsageError
from peer.api.graph import check_run
from peer.tasks.loading import load_task

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(100, 3))
Y = np.where(X[:, 0] > 0, "wet", "dry")
NUMBERS = (Y == "wet").astype(int)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


class Pairs(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, n):
        return torch.tensor(X[n]), int(NUMBERS[n])


class Columns:
    """A Hugging Face data set has these two, and the names of a ClassLabel's labels."""

    column_names = ("a", "b", "c", "label")

    @property
    def features(self):
        return {"label": type("ClassLabel", (), {"names": ["dry", "wet"]})()}

    def __getitem__(self, name):
        return NUMBERS.tolist() if name == "label" else FRAME[name].tolist()


class Embedded(Columns):
    column_names = ("vector", "label")

    def __getitem__(self, name):
        return X.tolist() if name == "vector" else NUMBERS.tolist()


CONTAINERS = {
    "arrays": (X, Y),
    "integers": (X, NUMBERS),
    "booleans": (X, NUMBERS == 1),
    "lists": (X.tolist(), Y.tolist()),
    "tensors": (torch.tensor(X), torch.tensor(NUMBERS)),
    "objects": (X, Y.astype(object)),
    "series": (FRAME, pd.Series(Y, name="weather")),
    "frame and array": (FRAME, Y),
    "column": (FRAME.assign(weather=Y), "weather"),
    "tensor data set": (TensorDataset(torch.tensor(X), torch.tensor(NUMBERS)),),
    "map-style data set": (Pairs(),),
    "columns": (Columns(), "label"),
    "one nested column": (Embedded(), "label"),
}


@pytest.mark.parametrize("given", CONTAINERS.values(), ids=CONTAINERS)
def test_each_container_gives_the_same_samples(given):
    expected = peer.Data(X, Y).dealt(Manifest(split="iid"), 4).load_shard(2)
    data = peer.Data(*given).dealt(Manifest(split="iid"), 4)
    shard = data.load_shard(2)
    assert (data.kind, data.classes) == ("classification", 2)
    assert np.array_equal(shard.train_y, expected.train_y) and np.array_equal(shard.test_y, expected.test_y)
    assert np.allclose(shard.train_x, expected.train_x, atol=1e-5)
    assert np.allclose(shard.preprocessing.apply(X), expected.preprocessing.apply(X), atol=1e-5)
    assert data.make_model()(torch.from_numpy(shard.train_x)).shape == (len(shard.train_y), 2)


def test_a_data_set_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict({"a": X[:, 0], "b": X[:, 1], "weather": Y.tolist()})
    assert repr(peer.Data(found, "weather")) == "<peer.Data: 100 samples of shape [2], classification: dry, wet>"


def test_labels_keep_their_names_sorted():
    assert peer.Data(X, Y).class_names == ("dry", "wet")
    assert peer.Data(X, np.arange(100) % 3 * 5 + 5).class_names == ("5", "10", "15")
    assert peer.Data(X, NUMBERS == 1).class_names == ("False", "True")
    assert peer.Data(X, Y, classes=["wet", "dry", "snow"]).class_names == ("wet", "dry", "snow")
    assert peer.Data(X, NUMBERS.astype(float), kind="classification").class_names == ("0", "1")


def test_fractions_are_numbers_to_predict():
    for data in (peer.Data(X, X[:, 0]), peer.Data(FRAME, "c"), peer.Data(X, NUMBERS, kind="regression")):
        assert (data.kind, data.classes, data.metric_name) == ("regression", None, "mse")
        shard = data.dealt(Manifest(split="iid"), 4).load_shard(0)
        assert shard.train_y.dtype == np.float32


def test_text_columns_and_missing_values_as_in_a_table():
    frame = FRAME.assign(ward=np.where(X[:, 1] > 0, "heart", "lung"), weather=Y)
    assert peer.Data(frame, "weather").dealt(Manifest(split="iid"), 2).load_shard(0).preprocessing.columns == (
        *("a", "b", "c"),
        *("ward=heart", "ward=lung"),
    )
    frame.loc[3, "a"] = np.nan
    with pytest.raises(TaskError, match=r"row 4, a: expected a value, got ''.*with missing=drop"):
        peer.Data(frame, "weather")
    assert "99 samples" in repr(peer.Data(frame, "weather", missing="drop"))


def test_the_split_by_column_deals_a_frame():
    frame = FRAME.assign(ward=np.arange(100) // 50, weather=Y)
    manifest = Manifest(split="by_column", split_options={"by": "ward"})
    shards = [peer.Data(frame, "weather").dealt(manifest, 2).load_shard(n) for n in (0, 1)]
    assert [s.preprocessing.columns for s in shards] == [("a", "b", "c")] * 2
    with pytest.raises(TaskError, match="arrays, which have no columns"):
        peer.Data(X, Y).dealt(manifest, 2)


def test_pictures_are_rotated_and_get_a_cnn():
    bytes_ = DRAW.integers(0, 256, (100, 8, 8, 3), dtype=np.uint8)
    data = peer.Data(bytes_, Y).dealt(Manifest(split_options={"k": 2}), 4)
    shard = data.load_shard(1)
    assert shard.train_x.shape[1:] == (3, 8, 8) and shard.preprocessing.divisor == 255
    assert set(shard.turns.tolist()) == {2}
    assert "Conv2d" in str(data.make_model())
    assert "Conv2d" not in str(peer.Data(bytes_, Y).dealt(Manifest(split="iid", model="mlr"), 4).make_model())
    assert peer.Data(bytes_[..., 0], Y).dealt(Manifest(split="iid"), 4).load_shard(0).train_x.shape[1:] == (1, 8, 8)


WITH_NAN = np.where(np.arange(300).reshape(100, 3) == 7, np.nan, X)
REFUSED = [
    ((X, Y[:99]), r"expected .*, got 100 samples in x and \[99\] in y"),
    ((FRAME, Y[:99]), "expected .*, got 99 targets beside a frame of 100 rows"),
    ((FRAME, pd.Series(Y, index=np.arange(100) + 1)), "expected .*, got another index"),
    ((WITH_NAN, Y), r"x\[2, 1\]: expected .*, got nan \(1 such values\)"),
    ((X, np.where(np.arange(100) == 5, np.nan, X[:, 0])), r"y\[5\]: expected a target, got .*nan"),
    ((X, [None, *Y[1:].tolist()]), r"y\[0\]: expected a target, got None"),
    ((X, ["dry"] * 100), "expected two or more"),
    ((X, NUMBERS.astype(float)), "which may be either. Give kind="),
    ((X, np.arange(100)), "which may be either. Give kind="),
    ((FRAME.assign(n=np.arange(100)), "n"), "which may be either. Give kind="),
    ((FRAME, "d"), "y: expected a column of the frame: a, b, c, got 'd'"),
    ((FRAME,), "y: expected the name of the column to predict: a, b, c, got none"),
    ((X,), "expected .*, got an ndarray without targets"),
    (("graph.json",), "expected .*, got a str without targets"),
    ((X[:, 0], Y), r"x: expected .*, got shape \[100\]"),
    ((X.astype(str), Y), "x: expected .*, got dtype"),
    ((X, Y[:, None]), r"one label for each sample .*, got shape \[100, 1\]"),
    (([[1, 2], [3]], [0, 1]), "expected an array of samples of one shape"),
    ((Columns(), "target"), "expected the name of the column to predict: a, b, c, label"),
    ((range(4),), "item 0: expected a pair.*, got an int"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_cannot_be_right_is_refused(given, message):
    with pytest.raises(TaskError, match=message):
        peer.Data(*given)


def test_wrong_options_are_refused():
    with pytest.raises(TaskError, match=r"expected one of the options kind, .*, got missing"):
        peer.Data(X, Y, missing="drop")
    with pytest.raises(TaskError, match="kind: expected classification or regression, got 'classes'"):
        peer.Data(X, Y, kind="classes")
    with pytest.raises(TaskError, match=r"run\.split: expected .*, got 'dirichle'"):
        peer.Data(X, Y).dealt(Manifest(split="dirichle"), 4)
    with pytest.raises(TaskError, match="square images"):
        peer.Data(X, Y).dealt(Manifest(), 4).load_shard(1)


def test_fewer_samples_than_peers_are_refused():
    with pytest.raises(TaskError, match="Use fewer peers"):
        peer.Data(X[:6], NUMBERS[:6]).dealt(Manifest(split="iid"), 8).load_shard(0)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_task.py"
    path.write_text(
        "import numpy as np\nimport peer\nfrom torch import nn\n"
        "x = np.random.default_rng(0).normal(size=(100, 3))\n"
        "class Mine(peer.Data):\n"
        "    def __init__(self):\n        super().__init__(x, np.where(x[:, 0] > 0, 'wet', 'dry'))\n"
        "    def make_model(self):\n        return nn.Linear(3, 2)\n"
        "class Other(peer.Task):\n"
        "    def make_model(self):\n        return nn.Linear(3, 2)\n"
        "    def load_shard(self, peer_id):\n        raise NotImplementedError\n"
        "task = Mine()\n"
    )
    return path


def test_a_task_file_has_the_split_of_the_manifest(file):
    keys = {"split": "dirichlet", "split_options": {"alpha": 1.0}}
    for name in ("task", "Mine"):
        graph = peer.Graph.make("ring", peers=3, run={"task": f"{file}:{name}", **keys})
        task = load_task(graph.manifest, 3)
        counts = [np.bincount(task.load_shard(n).train_y, minlength=2).tolist() for n in range(3)]
        assert np.sum(counts) == 80 and counts[0] != counts[1]
        assert type(task.make_model()).__name__ == "Linear"
    with pytest.raises(
        UsageError, match=r"run\.split.*expected no value .no effect, because task .* loads its own shards"
    ):
        peer.Graph.make("ring", peers=3, run={"task": f"{file}:Other", **keys})


def test_a_graph_that_is_only_checked_executes_no_file(file):
    graph = peer.Graph.make("ring", peers=3, run={"task": f"{file}:task", "split": "iid"})
    file.write_text("raise SystemExit('executed')")
    said = []
    check_run(graph, (), said.append)
    assert said == [
        f"run.split has no effect, because task '{file}:task' loads its own shards (unless it is a peer.Data)"
    ]

"""Every built-in data set is read from small files of its format, which the tests write."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import ShardError, TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.cli.main import app
from peer.learning.learner import TorchLearner
from peer.tasks import Shard
from peer.tasks.loading import load_task, preload
from peer.tasks.shard_file import save_shard
from peer.tasks.torchvision_shim import import_torchvision
from peer.zoo.tasks.builtin import SOURCES, NamedData
from peer.zoo.tasks.datasets import DATASETS, facts_of, load_pool
from peer.zoo.tasks.pool import DataSet, Facts, Pool
from peer.zoo.tasks.vision import EMNIST_LABELS


def idx(path: Path, values: np.ndarray) -> None:
    """Write the idx format of MNIST."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes())


def mnist_files(root: Path, folder: str = "MNIST", prefix: tuple[str, str] = ("train", "t10k"), first_label: int = 0):
    """Write 40 + 20 images whose first pixel row is 20 times their label."""
    for name, count in zip(prefix, (40, 20), strict=True):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.zeros((count, 28, 28), np.uint8)
        images[:, 0, :] = labels[:, None] * 20
        idx(root / folder / "raw" / f"{name}-images-idx3-ubyte", images)
        idx(root / folder / "raw" / f"{name}-labels-idx1-ubyte", labels + np.uint8(first_label))


def test_digits_need_no_data_root_and_have_a_fixed_test_set():
    pool = load_pool("digits", {}, None, False)
    assert pool.sample_shape == (1, 8, 8)
    assert (len(pool.y), pool.train_count) == (1797, 1437)
    assert (pool.x.min(), pool.x.max()) == (0.0, 16.0)
    gathered = pool.gather(np.arange(9), np.zeros(9, int))
    assert (gathered.min(), gathered.max()) == (0.0, 1.0)
    assert load_pool("digits", {}, None, False) is pool


def test_mnist_is_read_by_torchvision_as_bytes(tmp_path):
    mnist_files(tmp_path)
    pool = load_pool("mnist", {}, tmp_path, False)
    assert pool.x.shape == (60, 1, 28, 28)
    assert pool.x.dtype == np.uint8
    assert (pool.train_count, pool.classes) == (40, 10)
    assert np.array_equal(pool.x[:, 0, 0, 0], pool.y * 20)
    standard = load_pool("mnist", {"normalize": True}, tmp_path, False).gather(np.array([0]), np.array([0]))
    assert standard[0, 0, 5, 5] == pytest.approx(-0.1307 / 0.3081, rel=1e-4)


def test_emnist_images_are_transposed_to_upright(tmp_path):
    mnist_files(tmp_path, "EMNIST", ("emnist-letters-train", "emnist-letters-test"), first_label=1)
    pool = load_pool("emnist", {"split": "letters"}, tmp_path, False)
    assert pool.y.min() == 0
    assert np.array_equal(pool.x[:, 0, :, 0].max(1), pool.y * 20)  # the stored first row is the first column
    assert pool.x[5, 0, 0, 1:].max() == 0


@pytest.mark.parametrize(("name", "labels"), [("cifar10", b"labels"), ("cifar100", b"fine_labels")])
def test_cifar_is_read_by_torchvision(tmp_path, monkeypatch, name, labels):
    """Torchvision checks MD5 sums, so its file lists are replaced by the small files."""
    dataset = getattr(import_torchvision().datasets, name.upper())

    def write(file: str, value: object) -> list[str]:
        path = tmp_path / dataset.base_folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(value))
        return [file, hashlib.md5(path.read_bytes()).hexdigest()]

    def batch(count: int) -> dict[str, object]:
        pixels = np.zeros((count, 3, 32, 32), np.uint8)
        pixels[:, 2] = np.arange(count)[:, None, None]  # blue counts the images
        return {"data": pixels.reshape(count, -1), labels.decode(): [i % 10 for i in range(count)]}

    key = dataset.meta["key"]
    meta = write(dataset.meta["filename"], {key: [str(i) for i in range(10)]})
    monkeypatch.setattr(dataset, "train_list", [write("train_part", batch(30))])
    monkeypatch.setattr(dataset, "test_list", [write("test_part", batch(10))])
    monkeypatch.setattr(dataset, "meta", {"filename": meta[0], "key": key, "md5": meta[1]})
    pool = load_pool(name, {}, tmp_path, False)
    assert pool.x.shape == (40, 3, 32, 32)
    assert np.array_equal(pool.x[:30, 2, 4, 4], np.arange(30))
    assert pool.classes == (10 if name == "cifar10" else 100)
    assert np.mean(pool.preprocessing.mean) > 0  # color images are standardized by default


def leaf_json(writers: dict[str, int]) -> str:
    data = {
        w: {"x": [[i / 100.0] * 784 for i in range(n)], "y": [i % 62 for i in range(n)]} for w, n in writers.items()
    }
    return json.dumps({"users": list(writers), "num_samples": list(writers.values()), "user_data": data})


def test_femnist_has_writers_and_holds_out_a_tenth_of_each(tmp_path):
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "a.json").write_text(leaf_json({"w1": 20, "w0": 10}))
    (tmp_path / "femnist" / "b.json").write_text(leaf_json({"w2": 30, "alone": 1}))
    pool = load_pool("femnist", {}, tmp_path, False)
    assert pool.sample_shape == (1, 28, 28)
    assert pool.classes == 62
    assert np.bincount(pool.group).tolist() == [10, 20, 30]
    assert pool.train_count == 9 + 18 + 27
    assert load_pool("femnist", {"writers": 2}, tmp_path, False).group.max() == 1
    task = load_task(
        Manifest(task="femnist", split="writers", split_options={"k": 1}, model="mlr"), 3, data_root=tmp_path
    )
    assert len(task.load_shard(2).train_y) == 27


def test_femnist_uses_the_split_of_leaf(tmp_path):
    for folder, count in (("train", 9), ("test", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.json").write_text(leaf_json({"w": count}))
    pool = load_pool("femnist", {}, tmp_path, False)
    assert (pool.train_count, len(pool.y)) == (9, 12)


def test_linear_regression_has_one_line_per_cluster():
    options = {"clusters": 3, "features": 4, "samples_per_cluster": 500, "test_per_cluster": 50}
    pool = load_pool("linear", options, None, False)
    assert (pool.train_count, len(pool.y), pool.classes) == (1500, 1650, None)
    residuals = []
    for s in range(3):
        mine = pool.source == s
        theta, *_ = np.linalg.lstsq(pool.x[mine], pool.y[mine], rcond=None)
        residuals.append((pool.y[mine] - pool.x[mine] @ theta).std())
    np.testing.assert_allclose(residuals, 1.0, atol=0.1)
    task = load_task(
        Manifest(task="linear", task_options=options, split="linear_synth", split_options={"pattern": "random"}), 4
    )
    learner = TorchLearner(task, task.load_shard(0))
    assert learner.evaluate(learner.initial_model(0)).metric_name == "mse"


def pictures(root: Path, classes: dict[str, int], mode: str = "RGB") -> None:
    for shade, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.new(mode, (40, 30), (50 * shade + 50,) * 3 if mode == "RGB" else 0).save(root / name / f"{i}.png")


def test_image_folder_scales_images_and_sorts_classes(tmp_path):
    pictures(tmp_path, {"dog": 10, "cat": 10})
    pool = load_pool("image-folder", {"size": 16, "channels": 1}, tmp_path, False)
    assert pool.x.shape == (20, 1, 16, 16)
    assert (pool.train_count, pool.classes) == (16, 2)
    assert set(pool.x[pool.y == 0].ravel().tolist()) == {100}  # cat, first in the alphabet, was drawn second
    named = load_pool("image-folder", {"classes": ["bird", "cat", "dog"]}, tmp_path, False)
    assert named.classes == 3
    assert set(named.y.tolist()) == {1, 2}


def test_image_folder_uses_folders_train_and_test(tmp_path):
    pictures(tmp_path / "train", {"a": 4, "b": 4})
    pictures(tmp_path / "test", {"a": 2, "b": 1})
    pool = load_pool("image-folder", {}, tmp_path, False)
    assert (pool.train_count, len(pool.y)) == (8, 11)


def table(path: Path, rows: int = 20) -> Path:
    lines = ["a,b,label", *(f"{i},{2 * i + 1},{'yes' if i % 2 else 'no'}" for i in range(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_tabular_reads_csv(tmp_path):
    path = table(tmp_path / "data.csv")
    pool = load_pool("tabular", {}, tmp_path, False)
    assert (pool.x.shape, pool.train_count, pool.classes) == ((20, 2), 16, 2)
    train = pool.gather(np.arange(16), np.zeros(16, int))
    np.testing.assert_allclose(train.mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(train.std(0), 1.0, atol=1e-5)
    assert (pool.preprocessing.columns, pool.class_names) == (("a", "b"), ("no", "yes"))
    raw = load_pool(
        "tabular",
        {"standardize": False, "target": "b", "kind": "regression", "file": "c.csv"},
        _numbers(tmp_path),
        False,
    )
    np.testing.assert_allclose(raw.y, 2 * raw.x[:, 0] + 1)
    assert path.is_file()


def _numbers(root: Path) -> Path:
    (root / "c.csv").write_text("a,b\n" + "".join(f"{i},{2 * i + 1}\n" for i in range(10)))
    return root


def test_tabular_reads_parquet(tmp_path):
    pandas = pytest.importorskip("pandas", reason="Parquet needs pandas and pyarrow")
    pytest.importorskip("pyarrow", reason="Parquet needs pandas and pyarrow")
    pandas.DataFrame({"a": [1.0, 2, 3, 4, 5], "y": ["u", "v", "u", "v", "u"]}).to_parquet(tmp_path / "t.parquet")
    assert load_pool("tabular", {}, tmp_path, False).classes == 2


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\n1,x\n2,\n", {"target": "a"}, "line 3, b: expected a value, got ''"),
        ("a,b\n1,2\nnan,2\n", {}, "line 3, a: expected a value, got 'nan'"),
        ("a,b\n1,2,3\n", {}, "line 2: expected 2 cells.*, got 3"),
        ("a,b\n", {}, "rows of data"),
        ("a,b\n1,2\n3,4\n", {"target": "c"}, "a column of .*: a, b"),
        ("a,b\n1,2\n3,2\n", {}, "expected two or more classes, got 1 "),
        ("a,b\n1,2\n3,4\n", {"classes": ["2", "5"]}, "expected .*, got label '4'"),
        ("a,b\n1,2\n3,4\n", {"kind": "ranking"}, "kind"),
        ("a,b\n1,2\n3,4\n", {"file": "other.csv"}, "expected the file"),
    ],
)
def test_wrong_tables_are_task_errors(tmp_path, text, options, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TaskError, match=words):
        load_pool("tabular", options, tmp_path, False)


def test_wrong_image_folders_are_task_errors(tmp_path):
    with pytest.raises(TaskError, match="classes"):
        load_pool("image-folder", {}, tmp_path, False)
    pictures(tmp_path, {"a": 1, "b": 1})
    with pytest.raises(TaskError, match="expected one of the classes a, c"):
        load_pool("image-folder", {"classes": ["a", "c"]}, tmp_path, False)
    (tmp_path / "b" / "bad.png").write_bytes(b"no picture")
    with pytest.raises(TaskError, match=r"bad\.png: expected a picture, got"):
        load_pool("image-folder", {}, tmp_path, False)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mnits", {}, "expected one of cifar10, .*got 'mnits' .did you mean .*mnist"),
        ("digits", {"split": "letters"}, "task_options.split"),
        ("emnist", {"split": "words"}, "balanced"),
        ("mnist", {"normalize": 1.5}, "normalize"),
        ("mnist", {"second": "svhn"}, "second"),
        ("mnist", {}, "peer data show --set run.task=mnist --set data_root=.* --set download=true"),
        ("femnist", {}, "expected JSON files in .*, got none"),
        ("femnist", {"writers": 0}, "writers"),
        ("linear", {"clusters": 0}, "clusters"),
        ("image-folder", {"size": 1}, "size"),
        ("image-folder", {"channels": 2}, "channels"),
    ],
)
def test_wrong_names_options_and_files_are_task_errors(tmp_path, name, options, words):
    if name == "mnist" and options.get("second"):
        mnist_files(tmp_path)
    with pytest.raises(TaskError, match=words):
        load_pool(name, options, tmp_path, False)


def test_a_missing_data_root_is_a_task_error():
    with pytest.raises(TaskError, match="--data-root"):
        load_pool("mnist", {}, None, False)


def test_femnist_of_another_format_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"users": ["w"]}')
    with pytest.raises(TaskError, match="LEAF"):
        load_pool("femnist", {}, tmp_path, False)


def test_two_image_sets_are_joined_for_pair_mixture(tmp_path):
    mnist_files(tmp_path)
    mnist_files(tmp_path, "FashionMNIST")
    manifest = Manifest(task="mnist", task_options={"second": "fmnist"}, split="pair_mixture", model="mlr")
    shard = load_task(manifest, 3, data_root=tmp_path).load_shard(0)
    assert set(shard.true_cluster.tolist()) == {0, 1}
    assert shard.train_x.shape[1:] == (1, 28, 28)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_the_default_model_of_each_data_set_accepts_its_samples(name):
    shape, classes, regression = facts_of(Manifest(task=name))
    shape, outputs = shape or (5,), 1 if regression else classes or 3
    model = SOURCES[name].make_model(Manifest(task=name), shape, outputs)
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, outputs)


def test_one_entry_adds_a_data_set(monkeypatch):
    def load(dataset, options, data_root, download):
        x = np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1) * np.ones((1, 1, 4, 4), np.uint8)
        return Pool(x=x, y=np.arange(40) % 2, train_count=30, classes=dataset.facts(options).classes)

    entry = DataSet(
        name="toy",
        load=load,
        facts=lambda options: Facts((1, 4, 4), 2),
        model=("mlr", {}),
        about="Toy samples.",
        reads_files=False,
    )
    monkeypatch.setitem(DATASETS, "toy", entry)
    monkeypatch.setitem(SOURCES, "toy", NamedData(entry))
    task = load_task(Manifest(task="toy", split="iid"), 3)
    assert [len(task.load_shard(i).train_y) for i in range(3)] == [10, 10, 10]
    assert task.make_model()(torch.zeros(1, 1, 4, 4)).shape == (1, 2)


def test_preload_loads_and_splits_once():
    manifest = Manifest(split_options={"k": 2})
    preload(manifest, 8)
    first, second = (load_task(manifest, 8) for _ in range(2))
    assert first.split() is second.split()
    assert first._deal.pool is second._deal.pool
    shards = [first.load_shard(i) for i in range(8)]
    assert all(len(s.train_x) >= 359 and len(s.test_x) == 90 for s in shards)
    assert np.array_equal(shards[0].turns, np.zeros(len(shards[0].train_x)))
    assert set(shards[1].turns.tolist()) == {2}
    with pytest.raises(TaskError, match="--id: expected 0 to 7 with 8 peers, got 8"):
        first.load_shard(8)


def test_split_shard_without_a_shard_is_a_task_error():
    with pytest.raises(TaskError, match="--shard"):
        load_task(Manifest(split="shard"), 8).load_shard(0)


def test_data_of_the_device_replace_the_built_in_data_set(tmp_path):
    pictures(tmp_path / "camera", {"a": 6, "b": 6})
    manifest = Manifest(task="image-folder", task_options={"size": 8}, model="mlr", split="shard")
    shard = load_task(manifest, 4, shard_path=tmp_path / "camera").load_shard(3)
    assert shard.train_x.shape[1:] == (3, 8, 8)
    assert len(shard.test_y) == 2
    with pytest.raises(ShardError, match="expected a file, got none"):
        load_task(manifest, 4, shard_path=tmp_path / "peer-3.safetensors")


FMNIST = {"task": "fmnist", "kind": "classification", "classes": "10"}


@pytest.mark.parametrize(
    ("task", "options", "shape", "metadata", "words"),
    [
        ("fmnist", {}, (1, 20, 20), FMNIST, r"expected samples of shape \[1, 28, 28\], got \[1, 20, 20\]"),
        ("fmnist", {}, (1, 28, 28), FMNIST | {"classes": "12"}, "expected classes 10, got 12"),
        ("fmnist", {}, (1, 28, 28), FMNIST | {"task": "mnist"}, "expected task fmnist, got mnist"),
        ("fmnist", {}, (1, 28, 28), {"kind": "regression"}, "expected kind classification, got regression"),
        ("fmnist", {"second": "cifar10"}, (1, 28, 28), {"classes": "10"}, r"expected samples of shape \[3, 32, 32\]"),
        ("emnist", {"split": "letters"}, (1, 28, 28), {"classes": "47"}, "expected classes 26, got 47"),
        ("linear", {"features": 4}, (10,), {"kind": "regression"}, r"expected samples of shape \[4\], got \[10\]"),
        ("image-folder", {"size": 16}, (3, 32, 32), {"classes": "3"}, r"expected samples of shape \[3, 16, 16\]"),
        ("tabular", {"classes": ["a", "b"]}, (5,), {"classes": "3"}, "expected classes 2, got 3"),
        ("tabular", {"kind": "regression"}, (5,), {"classes": "3"}, "expected kind regression, got classification"),
        ("fmnist", {}, (1, 28, 28), {"classes": "²"}, "expected the number of labels"),
    ],
)
def test_a_shard_of_another_task_is_refused(tmp_path, task, options, shape, metadata, words):
    path = _shard(tmp_path, shape, metadata)
    with pytest.raises(ShardError, match=words):
        load_task(Manifest(task=task, task_options=options, split="shard"), 2, shard_path=path)


@pytest.mark.parametrize(
    ("task", "options", "shape", "metadata"),
    [
        ("fmnist", {}, (1, 28, 28), FMNIST),
        ("fmnist", {}, (1, 28, 28), {"classes": "10"}),  # written by the user's own program
        ("emnist", {"split": "byclass"}, (1, 28, 28), {"classes": "26", "split": "letters_case"}),
        ("mnist", {"second": "cifar100"}, (3, 32, 32), {"classes": "100"}),
        ("tabular", {}, (7,), {"classes": "5"}),
    ],
)
def test_a_shard_of_the_same_task_is_accepted(tmp_path, task, options, shape, metadata):
    path = _shard(tmp_path, shape, metadata)
    loaded = load_task(Manifest(task=task, task_options=options, split="shard"), 2, shard_path=path)
    assert loaded.classes == int(metadata["classes"])


def _shard(folder: Path, shape: tuple[int, ...], metadata: dict[str, str]) -> Path:
    x, y = np.zeros((4, *shape), np.float32), np.zeros(4, np.int64)
    save_shard(folder / "peer-0.safetensors", Shard(train_x=x, train_y=y, test_x=x, test_y=y, metadata=metadata))
    return folder / "peer-0.safetensors"


HOSPITALS = [("B", 30), ("A", 20), ("C", 50)]


@pytest.fixture
def hospitals(tmp_path):
    """A table with two inputs, the column hospital, of text, and the target sick."""
    draw = np.random.default_rng(0)
    rows = [f"{draw.normal()},{name},{draw.normal()},{i % 2}" for name, count in HOSPITALS for i in range(count)]
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(["age,hospital,dose,sick", *rows]) + "\n")
    return path


def by_hospital(column="hospital", **more):
    return Manifest(task="tabular", split="by_column", split_options={"by": column, **more})


def test_a_table_is_split_by_the_values_of_a_column(hospitals):
    """Before, a column of text was refused, and no split gave each hospital's rows to one peer."""
    task = load_task(by_hospital(), 3, data_root=hospitals)
    shards = [task.load_shard(i) for i in range(3)]
    assert [(len(s.train_y), len(s.test_y)) for s in shards] == [
        (16, 4),
        (24, 6),
        (40, 10),
    ]  # A, B, C; a fifth for testing
    assert shards[0].train_x.shape == (16, 2)  # the column is no input
    two = load_task(by_hospital(), 2, data_root=hospitals)
    assert [len(two.load_shard(i).train_y) for i in range(2)] == [16 + 40, 24]  # A and C, B
    limited = load_task(by_hospital(samples_per_peer=5, test_per_peer=2), 3, data_root=hospitals).load_shard(2)
    assert (len(limited.train_y), len(limited.test_y)) == (5, 2)


def test_numbers_in_a_column_are_ordered_as_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("x,site,y\n" + "".join(f"{i},{s},{i % 2}\n" for s in (10, 9) for i in range(s)))
    task = load_task(by_hospital("site"), 2, data_root=tmp_path)
    assert [len(task.load_shard(i).train_y) + len(task.load_shard(i).test_y) for i in range(2)] == [9, 10]


@pytest.mark.parametrize(
    ("manifest", "peers", "words"),
    [
        (by_hospital(), 4, "expected one value per peer or more, got 3 different values for 4 peers"),
        (by_hospital("hopsital"), 3, "run.split_options.by: expected a column of .*: age, hospital.*, got 'hopsital'"),
        (by_hospital("sick"), 3, "besides the target 'sick'"),
        (Manifest(task="tabular", split="by_column"), 3, "run.split_options.by: expected the name of a.*, got None"),
        (Manifest(split="by_column"), 3, "expected tabular, got 'by_column' with task 'digits', which has no columns"),
    ],
)
def test_a_wrong_column_or_too_few_values_are_task_errors(hospitals, manifest, peers, words):
    with pytest.raises(TaskError, match=words):
        root = hospitals if manifest.task == "tabular" else None
        load_task(manifest, peers, data_root=root).load_shard(0)


def test_an_empty_cell_in_the_column_is_a_task_error(hospitals):
    hospitals.write_text(hospitals.read_text() + "1,,1,1\n")
    with pytest.raises(TaskError, match=r"patients\.csv line 102, hospital: expected a value, got ''"):
        load_task(by_hospital(), 3, data_root=hospitals)


def test_data_split_writes_the_rows_of_each_value_as_a_shard(hospitals, tmp_path):
    by = "--set run.split=by_column --set run.split_options.by=hospital"
    words = f"data split --set run.task=tabular {by} --set data_root={hospitals}"
    out = tmp_path / "shards"
    result = CliRunner().invoke(app, [*words.split(), "--set", "peers=3", "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    own = load_task(Manifest(task="tabular", split="shard"), 3, shard_path=out / "peer-1.safetensors").load_shard(1)
    dealt = load_task(by_hospital(), 3, data_root=hospitals).load_shard(1)
    assert np.array_equal(own.train_x, dealt.train_x)
    assert len(own.train_y) == 24


def test_files_of_bytes_are_read_without_importing_torchvision(tmp_path):
    mnist_files(tmp_path)
    code = (
        "import sys; from pathlib import Path; from peer.zoo.tasks.datasets import load_pool; "
        f"load_pool('mnist', {{}}, Path({str(tmp_path)!r}), False); print('torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_names_of_labels_are_those_of_torchvision(tmp_path):
    of = import_torchvision().datasets
    for split, labels in EMNIST_LABELS.items():
        assert list(labels) == [name for name in of.EMNIST.classes_split_dict[split] if name != "N/A"]
    for task, folder in (("mnist", "MNIST"), ("fmnist", "FashionMNIST")):
        mnist_files(tmp_path, folder)
        assert list(load_pool(task, {}, tmp_path, False).class_names or ()) == getattr(of, folder).classes


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data: data[:-1], "expected 31360 values"),
        (lambda data: data + b"0", "got 31361"),
        (lambda data: data[:10], "expected 16 bytes before the values"),
        (lambda data: b"", "got nothing"),
        (lambda data: b"\x1f\x8b" + data, "expected the first bytes 00 00 08 03, got 1f 8b 00 00"),
        (lambda data: b"\0\0\r\3" + data[4:], "got 00 00 0d 03"),
    ],
)
def test_a_damaged_file_of_bytes_is_named(tmp_path, change, named):
    mnist_files(tmp_path)
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(TaskError, match=re.escape(named)) as found:
        load_pool("mnist", {}, tmp_path, False)
    assert str(file) in str(found.value)

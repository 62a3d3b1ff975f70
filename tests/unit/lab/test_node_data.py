"""Data sets on the nodes of a cluster: own files are used, others are fetched once and compared byte by byte."""

import os
import tempfile

import pytest

from coordinator_free_bootstrap.errors import StorageError, TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.lab.node_data import DataFiles, root_on_this_node, scratch
from peer.zoo.tasks.data_files import data_files
from peer.zoo.tasks.datasets import DATASETS


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another machine: its temporary folder, and a data root that it lacks."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    root = tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    (root / "a.csv").write_bytes(b"one")
    (root / "sub" / "b.csv").write_bytes(b"three")
    data = DataFiles.of(root, [root / "sub" / "b.csv", root / "a.csv"])
    content = {file: (root / file.path).read_bytes() for file in data.files}
    root.rename(tmp_path / "hidden")
    return data, content


def test_files_that_a_node_has_are_used_where_they_are(tmp_path, elsewhere):
    data, _ = elsewhere
    (tmp_path / "hidden").rename(tmp_path / "data")
    assert root_on_this_node(data, None) == (tmp_path / "data", 0)


def test_missing_files_are_fetched_once(elsewhere):
    data, content = elsewhere
    assert root_on_this_node(data, None) is None
    root, fetched = root_on_this_node(data, content.__getitem__)
    assert fetched == 8
    assert {path.name: path.read_bytes() for path in root.rglob("*.csv")} == {"a.csv": b"one", "b.csv": b"three"}
    assert root.is_relative_to(scratch())
    assert root_on_this_node(data, None) == (root, 0)


def test_files_with_other_content_are_fetched_again(tmp_path, elsewhere):
    data, content = elsewhere
    (tmp_path / "hidden").rename(tmp_path / "data")
    (tmp_path / "data" / "a.csv").write_bytes(b"eno")  # as long as the right ones
    root, fetched = root_on_this_node(data, content.__getitem__)
    assert fetched == 8
    (root / "a.csv").write_bytes(b"eno")
    assert root_on_this_node(data, content.__getitem__) == (root, 3)
    assert (root / "a.csv").read_bytes() == b"one"


def test_a_data_root_may_be_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    data = DataFiles.of(table, data_files(Manifest(task="tabular"), table))
    assert root_on_this_node(data, None) == (table, 0)
    table.rename(tmp_path / "other.csv")
    root, fetched = root_on_this_node(data, lambda file: (tmp_path / "other.csv").read_bytes())
    assert (root.name, root.read_text(), fetched) == ("table.csv", "a,b\n1,2\n", 8)


def test_a_temporary_folder_that_others_can_open_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"coordinator-free-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(StorageError, match=r"only this user can open\. Remove it, or set TMPDIR"):
        scratch()


def test_the_files_of_a_task_are_found_below_the_data_root(tmp_path):
    for name in ("MNIST/raw/t10k-labels-idx1-ubyte", "MNIST/raw/t10k-labels-idx1-ubyte.gz", "FashionMNIST/raw/x-ubyte"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for split in ("balanced", "letters"):
        (tmp_path / "EMNIST" / "raw").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"EMNIST/raw/emnist-{split}-train-labels-idx1-ubyte").write_bytes(b"")

    def found(**keys):
        return [str(path.relative_to(tmp_path)) for path in data_files(Manifest(**keys), tmp_path)]

    assert found(task="mnist") == ["MNIST/raw/t10k-labels-idx1-ubyte"]
    assert found(task="mnist", task_options={"second": "fmnist"}) == ["FashionMNIST/raw/x-ubyte", *found(task="mnist")]
    assert found(task="emnist", task_options={"split": "letters"}) == [
        "EMNIST/raw/emnist-letters-train-labels-idx1-ubyte"
    ]
    assert found(task="digits") == found(task="./mine.py:task") == []
    with pytest.raises(TaskError, match=r"--data-root: expected the file .*cifar-10-batches-py.* Put it there"):
        found(task="cifar10")


def test_every_data_set_that_reads_files_says_where_they_lie():
    assert {name for name, data in DATASETS.items() if data.torchvision and data.layout == "**/*"} == set()

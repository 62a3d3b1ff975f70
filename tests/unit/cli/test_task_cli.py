"""The verbs `peer data`, `peer task`, `peer evaluate` and `peer predict`."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tools.verbs import peer

from coordinator_free_bootstrap.errors import ConfigError, ShardError, StorageError, TaskError, UsageError
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.learner import TrainingPlan
from peer.learning.learner import TorchLearner
from peer.learning.model_about import model_metadata
from peer.store.model_file import save_model
from peer.tasks import Shard
from peer.tasks.loading import load_task
from peer.tasks.shard_file import load_shard_file, save_shard
from peer.view.models.saved import SavedModel


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a model file of digits, the learner and its vector."""
    manifest = Manifest(split_options={"k": 1})
    subject = load_task(manifest, 4)
    learner = TorchLearner(subject, subject.load_shard(0))
    theta, _ = learner.train(learner.initial_model(0), TrainingPlan(epochs=20, seed=0, learning_rate=0.3))
    path = tmp_path_factory.mktemp("models") / "personalized.safetensors"
    save_model(path, theta, learner.schema, model_metadata(learner, manifest, 4))
    return path, learner, theta


def test_split_writes_shards_that_a_device_can_use(tmp_path):
    out = tmp_path / "shards"
    peer("data", "split", "--set", "run.task=digits", "--set", "peers=4", "--out", out)
    printed = json.loads(peer("data", "show", out, "--json"))
    assert sorted(p.name for p in out.iterdir()) == [f"peer-{i}.safetensors" for i in range(4)]
    assert [p["train"] for p in printed["peers"]] == [719, 719, 718, 718]
    dealt = load_task(Manifest(), 4)
    carried = load_task(Manifest(split="shard"), 4, shard_path=out / "peer-3.safetensors")
    ours, theirs = (TorchLearner(t, t.load_shard(3)) for t in (dealt, carried))
    assert ours.schema == theirs.schema
    assert np.array_equal(ours.shard.train_x, theirs.shard.train_x)
    assert np.array_equal(ours.shard.true_cluster, theirs.shard.true_cluster)
    (out / "peer-3.safetensors").write_bytes((out / "peer-3.safetensors").read_bytes()[:1000])
    with pytest.raises(ShardError, match="expected a whole safetensors file"):
        load_task(Manifest(split="shard"), 4, shard_path=out / "peer-3.safetensors")


TASK_OF_ONE_SITE = """
import numpy as np
from torch import nn

from peer.tasks import Shard, Task


class Mine(Task):
    classes = 2
    class_names = ("low", "high")

    def make_model(self):
        return nn.Linear(3, 2)

    def load_shard(self, peer_id):
        x = np.load(f"site-{peer_id}.npy")
        y = np.array([0, 1] * (len(x) // 2))
        return Shard(train_x=x, train_y=y, test_x=x, test_y=y)


task = Mine()
"""


def test_a_site_writes_its_own_shard_without_the_data_of_the_others(tmp_path, monkeypatch):
    """Before, `peer data split` was the only way, and needed the data of all peers on one machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(TASK_OF_ONE_SITE)
    np.save(tmp_path / "site-12.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    peer("data", "split", "--set", "run.task=t.py:task", "--peer", 12)
    (row,) = json.loads(peer("data", "show", "shards", "--json"))["peers"]
    assert (row["peer"], row["train"], row["classes"]) == (12, 4, {"0": 2, "1": 2})
    found = load_shard_file(tmp_path / "shards" / "peer-12.safetensors")
    assert found.class_names == ("low", "high") and found.metadata["kind"] == "classification"
    assert np.array_equal(found.train_x, np.load("site-12.npy"))
    run = load_task(Manifest(task="t.py:task"), 4, shard_path=tmp_path / "shards" / "peer-12.safetensors")
    assert len(run.load_shard(12).train_x) == 4
    with pytest.raises(TaskError, match=r"load_shard\(3\)"):
        peer("data", "split", "--set", "run.task=t.py:task", "--peer", 3)


def test_one_shard_of_a_built_in_set_is_that_of_the_split(tmp_path):
    peer("data", "split", "--set", "run.task=digits", "--set", "peers=4", "--out", tmp_path / "all")
    peer("data", "split", "--set", "run.task=digits", "--set", "peers=4", "--peer", 2, "--out", tmp_path / "one")
    one, dealt = (load_shard_file(tmp_path / name) for name in ("one/peer-2.safetensors", "all/peer-2.safetensors"))
    assert one.metadata == dealt.metadata
    for name in ("train_x", "train_y", "test_x", "test_y", "true_cluster"):
        assert np.array_equal(getattr(one, name), getattr(dealt, name)), name
    with pytest.raises(UsageError, match="--peer: expected 0 to 3 with 4 peers, got 4"):
        peer("data", "split", "--set", "run.task=digits", "--set", "peers=4", "--peer", 4)


def test_show_plots_the_samples_of_each_peer(tmp_path):
    picture = tmp_path / "data.png"
    arguments = (
        "data",
        "show",
        "--set",
        "peers=6",
        "--set",
        "run.split=rotated_soft",
        "--set",
        "run.split_options.rotation=180",
    )
    printed = json.loads(peer(*arguments, "--out", picture, "--json"))
    first = printed["peers"][0]
    assert set(first["degrees"]) == {"0", "180"}
    assert sum(first["classes"].values()) == first["train"] == sum(first["clusters"].values())
    with Image.open(picture) as opened:
        assert opened.format == "PNG"
        assert min(opened.size) > 200
    assert "rotations" in peer(*arguments)


def test_show_reads_shards(tmp_path):
    peer("data", "split", "--set", "peers=2", "--out", tmp_path)
    printed = json.loads(peer("data", "show", tmp_path, "--json"))
    assert [p["peer"] for p in printed["peers"]] == [0, 1]
    with pytest.raises(UsageError, match="peer data split"):
        peer("data", "show", tmp_path / "empty")


@pytest.mark.parametrize(
    ("changes", "arguments", "words"),
    [
        (
            {"train_x": np.full((4, 1, 8, 8), np.nan, np.float32)},
            (),
            r"peer-0\.safetensors: .*train_x.*: expected finite float32 numbers, got nan",
        ),
        ({"train_y": np.zeros(4)}, (), "train_y: expected as labels .*, got float64"),
        ({"metadata": {}}, (), "expected .*, got classes ''"),
        ({}, ("--set", "run.task=mnist"), "expected samples of shape .1, 28, 28."),
    ],
)
def test_show_checks_shards_as_a_run_does(tmp_path, changes, arguments, words):
    x, y = np.zeros((4, 1, 8, 8), np.float32), np.zeros(4, np.int64)
    shard = Shard(train_x=x, train_y=y, test_x=x, test_y=y, metadata={"classes": "10"})
    save_shard(tmp_path / "peer-0.safetensors", replace(shard, **changes))
    with pytest.raises(ShardError, match=words):
        peer("data", "show", tmp_path, *arguments)


def test_regression_shards_are_marked_as_regression(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\nfrom torch import nn\nfrom peer.tasks import Shard, Task\n"
        "class Own(Task):\n    kind = 'regression'\n"
        "    def make_model(self): return nn.Linear(3, 1)\n"
        "    def load_shard(self, peer_id):\n        x = np.zeros((4, 3)); y = np.zeros(4)\n"
        "        return Shard(train_x=x, train_y=y, test_x=x, test_y=y)\n"
        "task = Own()\n"
    )
    peer("data", "split", "--set", f"run.task={tmp_path / 'own.py'}:task", "--set", "peers=2", "--out", tmp_path)
    printed = json.loads(peer("data", "show", tmp_path, "--json"))
    assert [p["train"] for p in printed["peers"]] == [4, 4]


def test_show_reads_the_split_of_a_graph_file(tmp_path):
    from coordinator_free_bootstrap import make_graph, save_graph

    manifest = Manifest(split_options={"k": 4})
    save_graph(make_graph("ring", 5, seed=1, manifest=manifest), tmp_path / "graph.json")
    printed = json.loads(peer("data", "show", "--graph", tmp_path / "graph.json", "--json"))
    assert [next(iter(p["degrees"])) for p in printed["peers"]] == ["0", "90", "180", "270", "0"]


def test_check_prints_its_findings():
    printed = json.loads(peer("task", "check", "digits", "--json"))
    assert printed["works"]
    assert printed["model"].startswith("19210 values")
    assert "bit for bit" in peer("task", "check", "linear", "--set", "run.split=linear_synth")
    with pytest.raises(TaskError, match="square images"):
        peer("task", "check", "linear", "--peer", 1)


def test_evaluate_needs_only_the_model_file(trained, tmp_path):
    path, learner, theta = trained
    printed = json.loads(peer("evaluate", path, "--peer", 0, "--json"))
    assert printed["accuracy"] == learner.evaluate(theta).metric
    assert printed["accuracy"] > 0.85
    assert "accuracy 0." in peer("evaluate", path, "--peer", 2, "--part", "train")
    peer("data", "split", "--set", "peers=4", "--set", "run.split_options.k=1", "--out", tmp_path)
    shard = tmp_path / "peer-0.safetensors"
    assert json.loads(peer("evaluate", path, "--shard", shard, "--json")) == printed


def test_evaluate_refuses_wrong_models_and_parts(trained):
    path, *_ = trained
    with pytest.raises(StorageError, match="another task"):
        peer("evaluate", path, "--set", "run.model_options.hidden=7")
    with pytest.raises(StorageError, match="expected only tensors of this task's model, got 'more'"):
        _vector_with_one_more_tensor(path)
    with pytest.raises(UsageError, match="--part"):
        peer("evaluate", path, "--part", "all")
    with pytest.raises(StorageError, match="cannot read"):
        peer("evaluate", path.with_name("none.safetensors"))


def _vector_with_one_more_tensor(path):
    saved = SavedModel.read(path)
    subject = load_task(Manifest(split_options={"k": 1}), 4)
    schema = TorchLearner(subject, subject.load_shard(0)).schema
    SavedModel(path, {**saved.tensors, "more": np.zeros(2, np.float32)}, saved.metadata).vector(schema)


@pytest.mark.parametrize(
    ("setting", "error", "words"),
    [
        ("peers=0", UsageError, "--set peers: expected .* got 0"),
        ("peers=x", UsageError, "--set peers: expected .* got 'x'"),
        ("peers", ConfigError, "--set: expected key=value.*, got .peers."),
        ("download=maybe", UsageError, "--set download: expected .* got 'maybe'"),
        ("data_roots=x", ConfigError, "--set data_roots: expected a key of the manifest, got an unknown key"),
        ("data_root=x", UsageError, "--set data_root: .*task 'digits' does not use it"),
    ],
)
def test_a_wrong_key_of_set_is_refused(setting, error, words):
    for verb in (("data", "show"), ("data", "split"), ("task", "check", "digits")):
        with pytest.raises(error, match=words):
            peer(*verb, "--set", setting)


def test_predict_refuses_keys_that_it_does_not_read(trained):
    with pytest.raises(UsageError, match="got peers"):
        peer("predict", trained[0], "x.npy", "--set", "peers=3")


def test_task_check_says_what_of_a_model_travels():
    found = json.loads(peer("task", "check", "digits", "--set", 'run.private_parameters=["3.*"]', "--json"))
    assert found["travels"].endswith("private: 3.weight, 3.bias") and int(found["travels"].split()[0]) > 0
    assert "travels" not in json.loads(peer("task", "check", "digits", "--json"))
    with pytest.raises(ConfigError, match=r"run\.private_parameters: .* got 'head\.\*'.* 1\.weight"):
        peer("task", "check", "digits", "--set", 'run.private_parameters=["head.*"]')

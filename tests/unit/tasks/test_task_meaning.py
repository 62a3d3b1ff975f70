"""The record of a task and a shard: what it holds for tables, pictures, arrays and a user's own task."""

import json
from types import MappingProxyType

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from coordinator_free_bootstrap import parse_manifest
from coordinator_free_bootstrap.errors import ShardError, TaskError
from coordinator_free_bootstrap.meaning import compare
from peer.core.metric import Metric
from peer.learning.learner import TorchLearner
from peer.tasks import Preprocessing, Shard, Task
from peer.tasks.columns import DATE, NUMBER, Columns
from peer.tasks.loading import as_task, load_task
from peer.tasks.meaning import _columns
from peer.tasks.shard_file import save_shard
from peer.tasks.table import Form
from peer.tasks.training_data import training_data

ROWS = np.arange(24, dtype=np.float64).reshape(12, 2)


class Own(Task):
    classes = 2

    def __init__(self, **attributes):
        self.shard = {}
        for name, value in attributes.items():
            setattr(self, name, value)

    def make_model(self):
        return nn.Linear(2, self.classes or 1)

    def load_shard(self, peer_id):
        y = np.arange(12) % 2 if self.kind == "classification" else np.linspace(0, 1, 12, dtype=np.float32)[:, None]
        x = self.shard.pop("x", ROWS)
        return Shard(train_x=x[:8], train_y=y[:8], test_x=x[8:], test_y=y[8:], **self.shard)


def meaning(task, peer_id=0, **run):
    """Return the text that a peer's hello carries."""
    return TorchLearner(task, training_data(task, peer_id, parse_manifest(run, "test"))).meaning


def record(task, peer_id=0, **run):
    return json.loads(meaning(task, peer_id, **run))


def compared(first, second):
    return compare(meaning(first), meaning(second), "peer 0", "peer 1")


def table(path, rows="a,b,y\n" + "1,2,u\n3,5,v\n" * 6):
    path.write_text(rows)
    return path


def loaded(path, task="tabular", **options):
    manifest = parse_manifest({"task": task, "split": "shard", "task_options": options}, "test")
    return load_task(manifest, 2, shard_path=path)


# ---- tables --------------------------------------------------------------------------------------------------------------


def test_a_table_names_target_columns_and_classes(tmp_path):
    found = record(loaded(table(tmp_path / "a.csv")))
    assert (found["target"], found["columns"], found["classes"]) == ("y", ["a", "b"], ["u", "v"])
    assert found["open"] == ["target", "columns", "categories", "classes"]
    assert (found["scaling"], found["scaled"], found["divisor"]) == ("mean and deviation", "ss", 1.0)
    assert "mean" not in found and "std" not in found


def test_means_of_a_peers_own_data_are_not_told_and_make_no_difference(tmp_path):
    one = loaded(table(tmp_path / "a.csv"))
    other = loaded(table(tmp_path / "b.csv", "a,b,y\n" + "7,2000,u\n9,5000,v\n" * 6))
    assert meaning(one) == meaning(other)


def test_a_column_that_is_constant_at_one_site_makes_no_difference(tmp_path):
    one = loaded(table(tmp_path / "a.csv"))
    other = loaded(table(tmp_path / "b.csv", "a,b,y\n" + "0,2,u\n0,5,v\n" * 6))
    assert record(other)["scaled"] == "?s"
    assert not any(compared(one, other))


def test_another_order_of_columns_is_refused_and_an_option_takes_them_by_name(tmp_path):
    files = table(tmp_path / "a.csv"), table(tmp_path / "b.csv", "b,a,y\n" + "2,1,u\n5,3,v\n" * 6)
    refusal = compared(*map(loaded, files)).refusal.reason
    assert "peer 0 has [a, b], peer 1 has [b, a] (the same in another order)" in refusal
    assert '--set \'run.task_options.columns=["a", "b"]\'' in refusal
    first, second = (loaded(file, columns=["a", "b"]) for file in files)
    assert not any(compared(first, second))
    assert np.array_equal(first.load_shard(0).train_x, second.load_shard(0).train_x)


def test_a_name_of_two_columns_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"expected one column named 'a', got 2\. Rename them"):
        loaded(table(tmp_path / "a.csv", "a,a,y\n" + "1,2,u\n3,5,v\n" * 6))


def test_columns_of_texts_and_dates_name_what_they_are_made_of():
    columns = Columns((("age", NUMBER), ("ward", ("heart", "lung")), ("day", DATE)), Form())
    assert _columns(Preprocessing(columns=columns.names, table=columns)) == {
        "columns": ("age", "ward=heart", "ward=lung", "day (date)"),
        "read": ("age", "ward", "day"),
    }


def test_another_column_to_predict_is_refused(tmp_path):
    files = (
        table(tmp_path / "a.csv", "a,b,risk\n" + "1,2,3\n3,5,4\n" * 6),
        table(tmp_path / "b.csv", "a,b,cost\n" + "1,2,3\n3,5,4\n" * 6),
    )
    refusal = compared(*(loaded(file, kind="regression") for file in files)).refusal.reason
    assert refusal.startswith("target columns differ: peer 0 has risk, peer 1 has cost")


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [(["a", "c"], "'c'"), (["a", "a"], "'a'"), (["y"], "'y'"), ("a", "'a'"), ([], "[]"), ([1], "1")],
)
def test_a_wrong_list_of_columns_is_refused_with_the_columns_of_the_table(tmp_path, columns, wrong):
    with pytest.raises(TaskError, match=r"task_options\.columns: expected .* columns of") as error:
        loaded(table(tmp_path / "a.csv"), columns=columns)
    assert wrong in str(error.value) and ": a, b, got" in str(error.value)


def test_other_classes_are_refused_with_the_setting_and_agree_with_it(tmp_path):
    files = table(tmp_path / "a.csv"), table(tmp_path / "b.csv", "a,b,y\n" + "1,2,v\n3,5,w\n" * 6)
    refusal = compared(*map(loaded, files)).refusal.reason
    assert "classes differ: peer 0 has [u, v], peer 1 has [v, w]" in refusal
    assert '--set \'run.task_options.classes=["u", "v", "w"]\'' in refusal
    assert not any(compared(*(loaded(file, classes=["u", "v", "w"]) for file in files)))


# ---- pictures, built-in data sets, shard files ---------------------------------------------------------------------------


def pictures(root, *classes):
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(6):
            Image.new("L", (8, 8), i).save(root / name / f"{i}.png")
    return root


def test_folders_of_pictures_with_other_classes_are_refused_with_the_setting(tmp_path):
    roots = pictures(tmp_path / "0", "cat", "dog"), pictures(tmp_path / "1", "Cat", "dog")
    refusal = compared(*(loaded(root, "image-folder", size=8, channels=1) for root in roots)).refusal.reason
    assert "peer 0 has [cat, dog], peer 1 has [Cat, dog]" in refusal
    assert 'classes=["Cat", "cat", "dog"]\'' in refusal


def test_a_site_without_a_folder_agrees_where_the_manifest_has_the_classes(tmp_path):
    roots = pictures(tmp_path / "0", "cat", "dog", "fox"), pictures(tmp_path / "1", "cat", "dog")
    first, second = (loaded(root, "image-folder", size=8, channels=1) for root in roots)
    assert "(only peer 0 has [fox])" in compared(first, second).refusal.reason
    given = {"size": 8, "channels": 1, "classes": ["cat", "dog", "fox"]}
    assert not any(compared(*(loaded(root, "image-folder", **given) for root in roots)))


def test_a_split_that_renames_the_labels_of_some_peers_makes_no_difference():
    run = {"split": "label_flip", "split_options": {"base": "iid", "q": 0.5}}
    task = load_task(parse_manifest(run, "test"), 4)
    shards = [task.load_shard(peer) for peer in range(4)]
    assert len({shard.class_names for shard in shards}) == 2
    assert len({meaning(task, peer, **run) for peer in range(4)}) == 1


def test_a_shard_file_of_a_table_agrees_with_the_table(tmp_path):
    task = loaded(table(tmp_path / "a.csv"))
    shard = task.load_shard(0)
    shard.metadata.update({"task": "tabular", "kind": "classification", "classes": "2"})
    save_shard(tmp_path / "a.safetensors", shard)
    stored = loaded(tmp_path / "a.safetensors")
    assert not any(compared(task, stored))
    assert "open" not in record(stored)  # the file is decided; a setting could not change it


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": ["v", "u"]}, "expected class names ['v', 'u'], got ['u', 'v']"),
        ({"columns": ["b", "a"]}, "expected columns ['b', 'a'], got ['a', 'b']"),
    ],
)
def test_a_shard_file_that_contradicts_the_manifest_is_refused(tmp_path, options, words):
    shard = loaded(table(tmp_path / "a.csv")).load_shard(0)
    shard.metadata.update({"task": "tabular", "kind": "classification", "classes": "2"})
    save_shard(tmp_path / "a.safetensors", shard)
    with pytest.raises(ShardError) as error:
        loaded(tmp_path / "a.safetensors", **options)
    assert words in str(error.value)


# ---- a user's own task ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"class_names": ("a", "b")}, {"class_names": ("b", "a")}, "classes differ"),
        ({}, {"kind": "regression", "classes": None}, "kinds of targets"),
        ({"classes": 2}, {"classes": 3}, "classes differ: peer 0 has 2, peer 1 has 3"),
        ({"preprocessing": Preprocessing()}, {"preprocessing": Preprocessing(divisor=255)}, "divisors"),
        ({"preprocessing": Preprocessing()}, {"preprocessing": Preprocessing(mean=[1, 2])}, "scalings of inputs"),
        (
            {"preprocessing": Preprocessing(mean=[1, 2])},
            {"preprocessing": Preprocessing(mean=[1, 3])},
            "means of the task's preprocessing differ: peer 0 has [1.0, 2.0], peer 1 has [1.0, 3.0]",
        ),
        (
            {"facts": {"unit": "kW"}},
            {"facts": {"unit": "W"}},
            "facts of the task (unit) differ: peer 0 has kW, peer 1 has W",
        ),
        ({}, {"metric_name": "auc"}, "metrics differ: peer 0 has accuracy, higher is better, peer 1 has auc"),
    ],
)
def test_two_versions_of_a_task_are_refused(first, second, words):
    def task_of(attributes):
        named = attributes.get("metric_name")
        kind = type("Own", (Own,), {"metric_name": named}) if named else Own
        return kind(**{name: value for name, value in attributes.items() if name != "metric_name"})

    assert words in compared(task_of(first), task_of(second)).refusal.reason


def test_one_site_that_scales_and_one_that_does_not_are_refused():
    one, other = Own(), Own()
    one.shard["preprocessing"] = Preprocessing.standardizing(ROWS[:8], ("a", "b"))
    other.shard["preprocessing"] = Preprocessing(columns=("a", "b"))
    assert (
        "scalings of inputs differ: peer 0 has mean and deviation, peer 1 has none"
        in compared(one, other).refusal.reason
    )


def test_an_input_that_only_one_site_scales_is_named():
    one, other = Own(), Own()
    one.shard["preprocessing"] = Preprocessing(mean=[1, 2], std=[3, 4])
    other.shard["preprocessing"] = Preprocessing(mean=[1, 0], std=[3, 1])
    assert (
        "scaled inputs differ: peer 0 has all of these scaled, peer 1 has [1] not scaled"
        in compared(one, other).refusal.reason
    )


def test_channels_of_pictures_are_scaled_or_not():
    task = Own()
    task.shard["x"] = np.random.default_rng(0).normal(size=(12, 2, 4, 4))
    task.shard["preprocessing"] = Preprocessing(mean=[[[0.5]], [[0.0]]])
    task.make_model = lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    assert record(task)["scaled"] == "sr"


def test_pictures_of_another_size_are_a_warning():
    tasks = []
    for size in (4, 8):
        task = Own()
        task.shard["x"] = np.zeros((12, 2, size, size))
        task.make_model = lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
        tasks.append(task)
    result = compared(*tasks)
    assert not result.refusal and len(result.warnings) == 1
    assert "shapes of a sample differ: peer 0 has [2, 4, 4], peer 1 has [2, 8, 8]" in result.warnings[0]


def test_raw_bytes_and_scaled_numbers_of_one_preprocessing_agree():
    raw, scaled = Own(), Own()
    raw.shard["x"] = ROWS.astype(np.uint8)
    scaled.shard["x"] = ROWS / 255
    for task in (raw, scaled):
        task.preprocessing = Preprocessing(divisor=255)
    assert not any(compared(raw, scaled))


def test_token_ids_and_numbers_are_refused():
    tokens, numbers = Own(), Own()
    for task in (tokens, numbers):
        task.make_model = _Either
    tokens.shard["x"] = ROWS.astype(np.int64)
    assert (
        "inputs of the model differ: peer 0 has int64, peer 1 has float32" in compared(tokens, numbers).refusal.reason
    )


class _Either(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x.float())


def test_a_label_of_each_element_and_one_label_are_refused():
    one, each = Own(), Own()
    each.load_shard = lambda peer_id: Shard(
        train_x=np.zeros((8, 2, 5)),
        train_y=np.zeros((8, 5), int),
        test_x=np.zeros((4, 2, 5)),
        test_y=np.zeros((4, 5), int),
    )
    each.make_model = lambda: nn.Conv1d(2, 2, 1)
    assert (
        "forms of a target differ: peer 0 has one label, peer 1 has labels with 1 axes"
        in compared(one, each).refusal.reason
    )


def test_more_metrics_and_an_own_loss_are_warnings():
    class Measured(Own):
        more_metrics = (Metric("f1"),)

        def measure(self, outputs, targets):
            return {"f1": 1.0}

        def loss(self, outputs, targets):
            return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    result = compared(Own(), Measured())
    assert not result.refusal
    assert [warning.partition(" differ")[0] for warning in result.warnings] == ["further metrics", "losses"]


def test_only_the_files_of_two_tasks_differ(tmp_path):
    text = """
from torch import nn
import numpy as np
from peer.tasks import Shard, Task
class T(Task):
    classes, class_names = 2, ("a", "b")
    def make_model(self): return nn.Linear(2, 2)
    def load_shard(self, peer_id):
        x, y = np.ones((4, 2)), np.array([0, 1, 0, 1])
        return Shard(train_x=x, train_y=y, test_x=x, test_y=y)
task = T()
"""
    tasks = []
    for name, content in (("a", text), ("b", text + "# another version\n"), ("c", text.replace("\n", "\r\n"))):
        (tmp_path / f"{name}.py").write_bytes(content.encode())
        tasks.append(load_task(parse_manifest({"task": f"{tmp_path}/{name}.py:task"}, "test"), 2))
    result = compared(tasks[0], tasks[1])
    assert not result.refusal and len(result.warnings) == 1 and "task files (SHA-256) differ" in result.warnings[0]
    assert not any(compared(tasks[0], tasks[2]))  # ends of lines are no difference


@pytest.mark.parametrize("facts", [7, ["unit"], {"unit": 1}, {1: "kW"}])
def test_facts_are_texts_by_name(facts):
    with pytest.raises(TaskError, match=r"facts: expected a dict from text to text, got "):
        as_task(Own(facts=facts), parse_manifest({"task": "x.py:task"}, "test"))
    as_task(Own(facts=MappingProxyType({"unit": "kW"})), parse_manifest({"task": "x.py:task"}, "test"))

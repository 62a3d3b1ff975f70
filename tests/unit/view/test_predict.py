"""The verb `peer predict`, and `peer evaluate` of a model on other data and from another folder."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from tools.verbs import app, peer
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import ShardError, StorageError, TaskError, UsageError
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.learner import TrainingPlan
from peer.learning.learner import TorchLearner
from peer.learning.model_about import model_metadata
from peer.store.model_file import save_model
from peer.tasks.loading import load_task
from peer.view.models.saved import SavedModel


def predictions(*arguments):
    return json.loads(peer("predict", *arguments, "--json"))["predictions"]


def train(path, manifest, *, epochs=20, learning_rate=0.3, peers=2, peer_id=0, **places):
    """Train one peer alone, write its model file, and return the learner and the vector."""
    path.parent.mkdir(parents=True, exist_ok=True)
    task = load_task(manifest, peers, **places)
    learner = TorchLearner(task, task.load_shard(peer_id))
    theta, _ = learner.train(learner.initial_model(0), TrainingPlan(epochs=epochs, seed=0, learning_rate=learning_rate))
    save_model(path, theta, learner.schema, model_metadata(learner, manifest, peers))
    return learner, theta


def table(path, rows=200, seed=0, kind="classification", scale=1.0):
    """Write a table whose columns have very different scales, as those of a medical record; return the raw columns."""
    draw = np.random.default_rng(seed)
    age, volume = draw.normal(50, 10, rows), draw.normal(2000, 600, rows) * scale
    label = np.where(age / 50 + volume / scale / 2000 + draw.normal(0, 0.05, rows) > 2, "malignant", "benign")
    target = label if kind == "classification" else age * 2
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "volume", "diagnosis"])
        writer.writerows(zip(age, volume, target, strict=True))
    return age, volume, target


TABULAR = Manifest(task="tabular", split="iid", model="mlr")


@pytest.fixture(scope="module")
def tabular(tmp_path_factory):
    """Return the folder with a model file of a table, and the table: 2 columns of different scales and 2 classes."""
    place = tmp_path_factory.mktemp("tabular")
    columns = table(place / "data.csv")
    train(place / "model.safetensors", TABULAR, data_root=place / "data.csv")
    return place, columns


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Return a model file of digits, the learner and its vector."""
    path = tmp_path_factory.mktemp("models") / "personalized.safetensors"
    return path, *train(path, Manifest(split_options={"k": 1}), peers=4)


def test_predictions_of_raw_rows_agree_with_the_accuracy_of_evaluate(tabular, tmp_path):
    """`peer predict` ignored the standardization: all 569 raw rows of a medical table got the same class."""
    place, _ = tabular
    model = place / "model.safetensors"
    evaluated = json.loads(peer("evaluate", model, "--set", f"data_root={place / 'data.csv'}", "--json"))
    assert evaluated["accuracy"] > 0.9
    pool = load_task(TABULAR, 2, data_root=place / "data.csv")
    index = pool.split()[0].test.index
    samples = pool._deal.pool
    raw, labels = samples.x[index], samples.y[index]
    with (tmp_path / "raw.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["age", "volume"], *raw.tolist()])
    np.save(tmp_path / "raw.npy", raw)
    names = ["benign", "malignant"]
    for name in ("raw.csv", "raw.npy"):
        found = predictions(model, tmp_path / name)
        right = [row["class"] == names[label] for row, label in zip(found, labels, strict=True)]
        assert np.mean(right) == pytest.approx(evaluated["accuracy"]), name


def test_the_model_file_says_all_that_its_use_needs(tabular, digits):
    about = SavedModel.read(tabular[0] / "model.safetensors").metadata
    assert json.loads(about["sample_shape"]) == [2]
    assert json.loads(about["class_names"]) == ["benign", "malignant"]
    assert (about["input_dtype"], about["kind"], about["outputs"]) == ("float32", "classification", "2")
    assert (about["metric"], about["metric_better"]) == ("accuracy", "higher")
    preprocessing = json.loads(about["preprocessing"])
    assert preprocessing["columns"] == ["age", "volume"]
    assert preprocessing["mean"][1] == pytest.approx(2000, rel=0.1)
    assert json.loads(SavedModel.read(digits[0]).metadata["preprocessing"])["divisor"] == 16.0


def test_columns_are_selected_by_name_and_the_table_of_predictions_has_class_names(tabular, tmp_path):
    place, (age, volume, _) = tabular
    with (tmp_path / "new.csv").open("w", newline="") as file:
        rows = zip(range(9), volume[:9], age[:9], strict=True)
        csv.writer(file).writerows([["patient", "volume", "age"], *rows])
    with (tmp_path / "plain.csv").open("w", newline="") as file:
        csv.writer(file).writerows(zip(age[:9], volume[:9], strict=True))
    arguments = ("predict", place / "model.safetensors")
    out = tmp_path / "predictions.csv"
    result = CliRunner().invoke(app, [str(a) for a in (*arguments, tmp_path / "new.csv", "--out", out)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "does not read: patient" in result.stderr
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "class", "probability"]
    assert [row["row"] for row in rows] == [str(i) for i in range(9)]
    plain = predictions(place / "model.safetensors", tmp_path / "plain.csv")
    assert [row["class"] for row in rows] == [row["class"] for row in plain]
    assert {row["class"] for row in rows} == {"benign", "malignant"}
    assert "0: class " in peer(*arguments, tmp_path / "plain.csv")


def test_a_model_of_unknown_preprocessing_is_refused(tabular, tmp_path):
    place, (age, volume, _) = tabular
    saved = SavedModel.read(place / "model.safetensors")
    metadata = {key: value for key, value in saved.metadata.items() if key != "preprocessing"}
    save_file(dict(saved.tensors), tmp_path / "without.safetensors", metadata)
    np.save(tmp_path / "raw.npy", np.stack([age, volume], axis=1))
    arguments = (tmp_path / "without.safetensors", tmp_path / "raw.npy")
    with pytest.raises(StorageError, match=r"metadata: expected preprocessing, .* or give --preprocessed"):
        peer("predict", *arguments)
    scaled = json.loads(saved.metadata["preprocessing"])
    raw = np.stack([age, volume], axis=1).astype(np.float32)
    np.save(tmp_path / "raw.npy", (raw - np.float32(scaled["mean"])) / np.float32(scaled["std"]))
    ready = predictions(*arguments, "--preprocessed")
    np.save(tmp_path / "raw.npy", raw)
    assert ready == predictions(place / "model.safetensors", tmp_path / "raw.npy")


def test_shard_files_keep_the_preprocessing_of_the_split(tabular, tmp_path):
    place, (age, volume, _) = tabular
    arguments = (
        "--set",
        "run.task=tabular",
        "--set",
        "run.split=iid",
        "--set",
        f"data_root={place / 'data.csv'}",
        "--set",
        "peers=2",
    )
    peer("data", "split", *arguments, "--out", tmp_path)
    manifest = TABULAR.model_copy(update={"split": "shard"})
    train(tmp_path / "model.safetensors", manifest, shard_path=tmp_path / "peer-0.safetensors")
    np.save(tmp_path / "raw.npy", np.stack([age, volume], axis=1))
    found, expected = (predictions(folder / "model.safetensors", tmp_path / "raw.npy") for folder in (tmp_path, place))
    assert found == expected


def test_evaluate_scales_other_data_as_the_model_was_trained(tabular, tmp_path):
    """A table of another site was standardized by its own mean; a shifted site then looked like the training site."""
    place, _ = tabular
    model = place / "model.safetensors"
    table(tmp_path / "shifted.csv", scale=10.0)
    shard = load_task(TABULAR, 2, shard_path=tmp_path / "shifted.csv").load_shard(0)
    raw = shard.test_x * np.array(shard.preprocessing.std) + np.array(shard.preprocessing.mean)
    np.save(tmp_path / "raw.npy", raw)
    found = [row["class"] for row in predictions(model, tmp_path / "raw.npy")]
    expected = np.mean([["benign", "malignant"].index(name) for name in found] == shard.test_y)
    printed = json.loads(peer("evaluate", model, "--shard", tmp_path / "shifted.csv", "--json"))
    assert printed["accuracy"] == pytest.approx(expected)
    assert expected < 0.9


@pytest.mark.parametrize(
    ("header", "label", "words"),
    [
        ("volume,age,diagnosis", "benign", "expected the columns age, volume, .* got volume, age"),
        ("age,volume,diagnosis", "other", "expected the classes benign, malignant, .* got malignant, other"),
    ],
)
def test_evaluate_refuses_data_with_other_columns_or_classes(tabular, tmp_path, header, label, words):
    rows = "".join(f"{i},{i * i},{label if i % 2 else 'malignant'}\n" for i in range(20))
    (tmp_path / "other.csv").write_text(f"{header}\n{rows}")
    with pytest.raises(ShardError, match=words):
        peer("evaluate", tabular[0] / "model.safetensors", "--shard", tmp_path / "other.csv")


def test_regression_writes_values_and_evaluate_names_the_metric(tmp_path):
    manifest = TABULAR.model_copy(update={"task_options": {"kind": "regression"}})
    age, volume, target = table(tmp_path / "data.csv", kind="regression")
    model = tmp_path / "model.safetensors"
    train(model, manifest, data_root=tmp_path / "data.csv", epochs=100, learning_rate=0.1)
    evaluated = json.loads(peer("evaluate", model, "--set", f"data_root={tmp_path / 'data.csv'}", "--json"))
    assert "mse" in evaluated and "accuracy" not in evaluated
    with (tmp_path / "raw.csv").open("w", newline="") as file:
        csv.writer(file).writerows(zip(age, volume, strict=True))
    printed = json.loads(peer("predict", model, tmp_path / "raw.csv", "--json"))
    assert printed["metric"] == "mse"
    values = np.array([row["value"] for row in printed["predictions"]])
    assert np.mean((values - target) ** 2) < 2 * evaluated["mse"] + 0.1
    peer("predict", model, tmp_path / "raw.csv", "--out", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().startswith("row,value\n0,")


def test_arrays_tables_and_pictures_give_the_same_predictions(digits, tmp_path):
    path, learner, theta = digits
    samples = learner.shard.test_x[:5]
    expected = [str(c) for c in learner.predict(theta, samples).argmax(1)]
    raw = (samples * 16).astype(np.uint8)  # the file of the data set has 0..16
    np.save(tmp_path / "five.npy", raw)
    np.savez(tmp_path / "five.npz", x=raw, more=np.zeros(3))
    save_file({"only": raw}, tmp_path / "five.safetensors")
    np.savetxt(tmp_path / "five.csv", raw.reshape(5, -1), delimiter=",", header="a," * 63 + "b", comments="")
    (tmp_path / "pictures" / "ward").mkdir(parents=True)
    for i in range(5):
        pixels = np.rint(samples[i, 0] * 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / "ward" / f"{i}.png")
    for name in ("five.npy", "five.npz", "five.safetensors", "five.csv", "pictures"):
        found = predictions(path, tmp_path / name)
        assert [row["class"] for row in found] == expected, name
        assert all(0.1 <= row["probability"] <= 1.0 for row in found)
    assert [row["file"] for row in found] == [f"ward/{i}.png" for i in range(5)]
    np.save(tmp_path / "one.npy", raw[0])
    assert peer("predict", path, tmp_path / "one.npy").startswith(f"0: class {expected[0]},")
    single = tmp_path / "pictures" / "ward" / "0.png"
    assert peer("predict", path, single).startswith(f"0.png: class {expected[0]},")


def test_pictures_of_the_training_set_are_predicted_as_in_evaluate(tmp_path):
    draw = np.random.default_rng(0)
    for shade, name in ((60, "night"), (200, "day")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(12):
            pixels = draw.integers(shade - 50, shade + 50, (20, 30, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i}.png")
    manifest = Manifest(task="image-folder", task_options={"size": 8}, model="mlr", split="iid")
    train(tmp_path / "model.safetensors", manifest, data_root=tmp_path / "pictures", epochs=300, learning_rate=0.1)
    arguments = (tmp_path / "model.safetensors",)
    evaluated = json.loads(peer("evaluate", *arguments, "--set", f"data_root={tmp_path / 'pictures'}", "--json"))
    assert evaluated["accuracy"] == 1.0
    found = predictions(*arguments, tmp_path / "pictures")
    assert [row["class"] for row in found] == ["day"] * 12 + ["night"] * 12


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.npy", b"no array", "bad.npy: expected arrays, got"),
        ("bad.npz", b"no archive", "bad.npz: expected arrays, got"),
        ("bad.safetensors", b"no tensors", "bad.safetensors: expected arrays, got"),
        ("bad.csv", b"1,2,three\n1,2,x\n", "bad.csv line 1: expected 64.*, got 3 cells"),
        ("split.csv", b"1,2\n" * 32, "split.csv line 1: expected 64.*, got 2 cells"),
        ("text.csv", b"1," * 63 + b"x\n", "text.csv line 1, column 64: expected a finite number, got 'x'"),
        ("gap.csv", b"," * 63 + b"1\n", "gap.csv line 1, column 1: expected a finite number, got ''"),
        ("empty.csv", b"", "empty.csv: expected .*, got no rows"),
        ("latin.csv", b"\xe9,1\n", "latin.csv line 1: expected 64.*, got 2 cells"),
        ("bytes.csv", bytes(range(128, 256)), "bytes.csv: expected text, got"),
        ("bad.png", b"no picture", r"bad.png: expected a picture, got"),
        ("notes.txt", b"1,2", "expected a .npy.*, got the ending '.txt'"),
        ("missing.png", None, "expected a .npy, .* or a folder of pictures, got none"),
    ],
)
def test_files_that_cannot_be_used_are_one_sentence(digits, tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=words):
        peer("predict", digits[0], tmp_path / name)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros((3, 8, 8)), r"expected \[samples, 1, 8, 8\].*, got an array of shape \[3, 8, 8\]"),
        (np.zeros((0, 1, 8, 8)), r"expected .*, got an array of shape \[0, 1, 8, 8\]"),
        (np.full((2, 1, 8, 8), np.nan), r"sample 0, position \[0, 0, 0\]: expected .*, got nan"),
        (np.full((2, 1, 8, 8), 1e300), r"expected finite float32.*, got 1e\+300"),
        (np.full((2, 1, 8, 8), "a"), "expected numbers, got dtype <U1"),
        (
            np.full((2, 1, 8, 8), 0.5),
            r"expected raw values 0\.\.16, got values up to 0.5, which seem to be scaled already",
        ),
    ],
)
def test_arrays_that_cannot_be_used_are_one_sentence(digits, tmp_path, samples, words):
    np.save(tmp_path / "samples.npy", samples)
    with pytest.raises(TaskError, match=words):
        peer("predict", digits[0], tmp_path / "samples.npy")


def test_a_header_without_a_column_of_the_model_is_refused(tabular, tmp_path):
    (tmp_path / "new.csv").write_text("age,size\n1,2\n")
    with pytest.raises(TaskError, match=r"expected one of each.*, got 0 columns named 'volume' in the header"):
        peer("predict", tabular[0] / "model.safetensors", tmp_path / "new.csv")
    with pytest.raises(TaskError, match=r"pictures for samples \[1 or 3, height, width\]"):
        (tmp_path / "a.png").write_bytes(b"")
        peer("predict", tabular[0] / "model.safetensors", tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"--out: expected a file whose name ends in \.csv, got .*"):
        peer("predict", tabular[0], tmp_path / "new.csv", "--out", tmp_path / "out.txt")


TOKENS = """
import numpy as np
from torch import nn
from peer.tasks import Preprocessing, Shard, Task

class Mean(nn.Module):
    def forward(self, words):
        return words.mean(1)

class Words(Task):
    classes = 2
    class_names = ("calm", "urgent")
    preprocessing = Preprocessing()
    def make_model(self):
        return nn.Sequential(nn.Embedding(20, 4), Mean(), nn.Linear(4, 2))
    def load_shard(self, peer_id):
        x = np.random.default_rng(peer_id).integers(0, 20, (60, 5))
        y = (x[:, 0] > 9).astype(int)
        return Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])

task = Words()
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Return a run directory with a model of token ids, and the folder above it, where the task file is."""
    base = tmp_path_factory.mktemp("words")
    (base / "words.py").write_text(TOKENS)
    path = base / "out" / "peer-0" / "models" / "personalized.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        learner, theta = train(path, Manifest(task="words.py:task"))
    return base, path, learner, theta


def test_integer_inputs_are_predicted(words, tmp_path):
    """`peer predict` converted token ids to float32, and the embedding ended in a traceback."""
    _, path, learner, theta = words
    samples = learner.shard.test_x
    expected = [("calm", "urgent")[c] for c in learner.predict(theta, samples).argmax(1)]
    np.save(tmp_path / "ids.npy", samples)
    np.save(tmp_path / "whole.npy", samples.astype(np.float64))
    np.savetxt(tmp_path / "ids.csv", samples, fmt="%d", delimiter=",")
    for name in ("ids.npy", "whole.npy", "ids.csv"):
        found = predictions(path, tmp_path / name)
        assert [row["class"] for row in found] == expected, name


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (0.5, TaskError, r"sample 0, position \[0\]: expected integers, such as token ids, got 0.5"),
        (20, TaskError, "model: IndexError: .* for int64 inputs .* to 20. Give inputs as in training"),
        (-1, TaskError, "model: IndexError: .* from -1 "),
        (np.nan, TaskError, "expected integers.*, got nan"),
        (1e30, TaskError, r"expected integers.*, got 1e\+30"),
    ],
)
def test_wrong_integers_are_one_sentence(words, tmp_path, value, error, said):
    np.save(tmp_path / "ids.npy", np.full((2, 5), value))
    with pytest.raises(error, match=said):
        peer("predict", words[1], tmp_path / "ids.npy")


def test_evaluate_and_predict_find_the_task_file_from_any_folder(words, tmp_path, monkeypatch):
    """Both verbs looked for the task file in the current folder only."""
    _, path, learner, theta = words
    monkeypatch.chdir(tmp_path)
    printed = json.loads(peer("evaluate", path, "--json"))
    assert printed["accuracy"] == learner.evaluate(theta).metric
    np.save("ids.npy", learner.shard.test_x)
    expected = predictions(path, "ids.npy")
    (tmp_path / "moved" / "tasks").mkdir(parents=True)
    moved = tmp_path / "moved" / "personalized.safetensors"
    moved.write_bytes(path.read_bytes())
    for verb in (("evaluate",), ("predict", "ids.npy")):
        with pytest.raises(
            TaskError,
            match=r"expected the file 'words.py', .* in .*moved.* Give its path with --set run.task, such as path/to/words.py",
        ):
            peer(verb[0], moved, *verb[1:])
    (tmp_path / "moved" / "tasks" / "words.py").write_text(TOKENS)
    place = ("--set", "run.task=moved/tasks/words.py:task")
    assert json.loads(peer("evaluate", moved, *place, "--json"))["accuracy"] == printed["accuracy"]
    assert predictions(moved, "ids.npy", *place) == expected


def test_the_task_file_at_another_place_keeps_the_options_of_the_run(tmp_path, monkeypatch):
    sized = TOKENS.replace(
        "    def make_model", "    def __init__(self, width): self.width = width\n    def make_model"
    )
    sized = sized.replace("20, 4)", "20, self.width)").replace("Linear(4", "Linear(self.width").split("task = ")[0]
    (tmp_path / "sized.py").write_text(sized)
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "model.safetensors", Manifest(task="sized.py:Words", task_options={"width": 7}))
    (tmp_path / "new").mkdir()
    (tmp_path / "sized.py").rename(tmp_path / "new" / "sized.py")
    assert "accuracy" in peer("evaluate", "model.safetensors", "--set", "run.task=new/sized.py:Words")


def test_a_task_that_declares_no_preprocessing_is_refused_until_it_does(tmp_path):
    (tmp_path / "silent.py").write_text(TOKENS.replace("    preprocessing = Preprocessing()\n", ""))
    model = tmp_path / "model.safetensors"
    learner, _ = train(model, Manifest(task=f"{tmp_path / 'silent.py'}:task"))
    np.save(tmp_path / "ids.npy", learner.shard.test_x)
    with pytest.raises(
        StorageError, match=r"metadata: expected preprocessing, .* Set `preprocessing` in .*silent\.py:task and"
    ):
        peer("predict", model, tmp_path / "ids.npy")
    expected = predictions(model, tmp_path / "ids.npy", "--preprocessed")
    (tmp_path / "declares").mkdir()
    (tmp_path / "declares" / "silent.py").write_text(TOKENS)
    task = ("--set", f"run.task={tmp_path / 'declares' / 'silent.py'}:task")
    assert predictions(model, tmp_path / "ids.npy", *task) == expected


def test_parameters_that_are_not_trained_have_the_values_of_training(tmp_path):
    """They are not in the model file; `peer predict` drew them anew, so each call gave other predictions."""
    frozen = TOKENS.replace(
        "return nn.Sequential(nn.Embedding(20, 4), Mean()",
        "words = nn.Embedding(20, 4).requires_grad_(False)\n        return nn.Sequential(words, Mean()",
    )
    (tmp_path / "frozen.py").write_text(frozen)
    learner, theta = train(tmp_path / "model.safetensors", Manifest(task=f"{tmp_path / 'frozen.py'}:task"))
    np.save(tmp_path / "ids.npy", learner.shard.test_x)
    outputs = learner.predict(theta, learner.shard.test_x).astype(np.float64)
    expected = (np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)).max(1)
    found = predictions(tmp_path / "model.safetensors", tmp_path / "ids.npy")
    np.testing.assert_allclose([row["probability"] for row in found], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("predictor", "role", "said"),
    [
        ("personalized_model", "personalized_model", None),
        ("mixture", "personalized_model", "another predictor than this model: mixture of the cluster models"),
        ("personalized_model", "cluster 0", "another predictor than this model: personalized model"),
    ],
)
def test_a_model_that_is_not_the_final_predictor_is_marked(tabular, tmp_path, predictor, role, said):
    place, (age, volume, _) = tabular
    saved = SavedModel.read(place / "model.safetensors")
    metadata = {**saved.metadata, "predictor": predictor, "role": role}
    save_file(dict(saved.tensors), tmp_path / "model.safetensors", metadata)
    np.save(tmp_path / "raw.npy", np.stack([age, volume], axis=1))
    arguments = ("predict", tmp_path / "model.safetensors", tmp_path / "raw.npy")
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0
    assert said in result.stderr if said else not result.stderr


def test_a_diverged_model_is_refused(tabular, tmp_path):
    """The class of NaN outputs was 0, and the JSON of both verbs held a bare NaN."""
    place, (age, volume, _) = tabular
    saved = SavedModel.read(place / "model.safetensors")
    np.save(tmp_path / "raw.npy", np.stack([age, volume], axis=1))
    diverged = {name: np.full_like(tensor, np.nan) for name, tensor in saved.tensors.items()}
    save_file(diverged, tmp_path / "model.safetensors", dict(saved.metadata))
    for verb in (("predict", tmp_path / "raw.npy"), ("evaluate", "--set", f"data_root={place / 'data.csv'}")):
        with pytest.raises(StorageError, match=r"tensor '1\.weight': expected .*, got NaN or Inf, so the run diverged"):
            peer(verb[0], tmp_path / "model.safetensors", *verb[1:])
    large = {name: tensor * np.float32(1e20) for name, tensor in saved.tensors.items()}
    save_file(large, tmp_path / "model.safetensors", dict(saved.metadata))
    np.save(tmp_path / "raw.npy", np.full((2, 2), 3e38))
    with pytest.raises(TaskError, match="expected finite outputs, got NaN or Inf for sample 0"):
        peer("predict", tmp_path / "model.safetensors", tmp_path / "raw.npy")


def test_a_file_without_a_manifest_is_not_taken_for_a_model_of_the_default_task(digits, tmp_path):
    """Without a manifest in the file, both verbs used the default task, digits."""
    saved = SavedModel.read(digits[0])
    save_file(dict(saved.tensors), tmp_path / "model.safetensors", {"kind": "classification"})
    for verb in (("evaluate",), ("predict", tmp_path)):
        with pytest.raises(StorageError, match="metadata: expected a manifest, got none"):
            peer(verb[0], tmp_path / "model.safetensors", *verb[1:])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("manifest", "{"),
        ("preprocessing", "{}"),
        ("preprocessing", "[["),
        ("preprocessing", '{"divisor": 0, "mean": 0, "std": 1, "columns": null}'),
        ("preprocessing", '{"divisor": 1, "mean": "a", "std": 1, "columns": null}'),
        ("class_names", '["one"]'),
        ("class_names", "no"),
        ("sample_shape", "[0]"),
        ("input_dtype", "float16"),
        ("outputs", '"two"'),
    ],
)
def test_damaged_metadata_are_one_sentence(tabular, tmp_path, key, value):
    place, (age, volume, _) = tabular
    saved = SavedModel.read(place / "model.safetensors")
    save_file(dict(saved.tensors), tmp_path / "model.safetensors", {**saved.metadata, key: value})
    np.save(tmp_path / "raw.npy", np.stack([age, volume], axis=1))
    with pytest.raises(StorageError, match=r"expected .*, got|allowed|the model has 2 classes"):
        peer("predict", tmp_path / "model.safetensors", tmp_path / "raw.npy")


SEVERAL = """
import numpy as np
from torch import nn
from peer.tasks import Shard, Task


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 4), nn.Linear(4, 2)

    def forward(self, tokens, weight):
        return self.head((self.words(tokens) * weight[:, None, None]).mean(1))


class Several(Task):
    classes = 2

    def make_model(self):
        return Model()

    def load_shard(self, peer_id):
        draw = np.random.default_rng(0)
        x = {"tokens": draw.integers(0, 11, (20, 7), np.uint8), "weight": draw.normal(1, 0.1, 20)}
        y = x["tokens"][:, 0] % 2
        return Shard(train_x=x, train_y=y, test_x=x, test_y=y)


task = Several()
"""


def test_several_inputs_are_read_by_name(tmp_path):
    (tmp_path / "several.py").write_text(SEVERAL)
    model = tmp_path / "model.safetensors"
    learner, theta = train(model, Manifest(task=f"{tmp_path / 'several.py'}:task"))
    x = learner.shard.test_x
    expected = learner.predict_proba(theta)
    np.savez(tmp_path / "x.npz", **x, more=np.zeros(3))
    save_file({name: np.ascontiguousarray(array) for name, array in x.items()}, tmp_path / "x.safetensors")
    for name in ("x.npz", "x.safetensors"):
        rows = predictions(model, tmp_path / name)
        assert [row["class"] for row in rows] == expected.argmax(1).tolist()
        np.testing.assert_allclose([row["probability"] for row in rows], expected.max(1), rtol=1e-5)
    np.savez(tmp_path / "less.npz", tokens=x["tokens"])
    np.savez(tmp_path / "uneven.npz", tokens=x["tokens"], weight=x["weight"][:5])
    np.savez(tmp_path / "scalar.npz", tokens=x["tokens"], weight=1.0)
    np.save(tmp_path / "x.npy", x["tokens"])
    for name in ("less.npz", "uneven.npz", "scalar.npz", "x.npy"):
        with pytest.raises(TaskError, match=r"expected .*tokens \[samples, 7\], weight \[samples\]"):
            peer("predict", model, tmp_path / name)

"""`peer predict` takes the rows that a user has: as the table of the training was written, or as a task's `encode` reads them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from test_predict import predictions, train
from tools.verbs import app, peer
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.view.models.saved import SavedModel

HEADER = ["ward", "dose", "day", "state"]


def rows(count=120):
    """Return rows whose state follows from dose and ward."""
    draw = np.random.default_rng(0)
    found = []
    for n in range(count):
        ward, dose = ("lung", "heart")[n % 2], draw.normal(2, 1)
        state = "müde" if dose > (3 if ward == "lung" else 1) else "wach"
        found.append([ward, f"{dose:.4f}".replace(".", ","), f"2024-03-{n % 28 + 1:02}", state])
    return found


def write(path, table, header=HEADER, separator=";", encoding="latin-1"):
    lines = ([header] if header else []) + table
    path.write_text("".join(separator.join(line) + "\r\n" for line in lines), encoding=encoding)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model of a table with semicolons, decimal commas, Latin-1, a text and a date; and its table."""
    place = tmp_path_factory.mktemp("raw")
    table = write(place / "patients.csv", rows())
    manifest = Manifest(task="tabular", split="iid", task_options={"ignore": ["day"]})
    train(place / "model.safetensors", manifest, peers=1, epochs=150, data_root=table)
    return place / "model.safetensors", table


def right(found, table):
    return np.mean([prediction["class"] == row[-1] for prediction, row in zip(found, table, strict=True)])


def test_the_table_of_the_training_is_an_input_as_it_is(model):
    path, table = model
    found = predictions(path, table)
    assert right(found, rows()) > 0.9
    result = CliRunner().invoke(app, ["predict", str(path), str(table)])
    assert "note: read as cp1252, semicolons, decimal comma, header" in result.stderr
    assert "note: the model does not read: day, state" in result.stderr


@pytest.mark.parametrize("form", ["other order", "english", "utf-16", "parquet", "one row", "no header"])
def test_rows_in_another_form_give_the_same_predictions(model, tmp_path, form):
    path, table = model
    expected = predictions(path, table)
    given = rows()
    if form == "other order":
        new = write(tmp_path / "new.csv", [[r[1], r[0]] for r in given], ["dose", "ward"])
    elif form == "english":
        new = write(tmp_path / "new.csv", [[r[0], r[1].replace(",", ".")] for r in given], HEADER[:2], ",", "utf-8")
    elif form == "utf-16":
        new = write(tmp_path / "new.tsv", given, HEADER, "\t", "utf-16")
    elif form == "parquet":
        frame = pd.DataFrame({"dose": [float(r[1].replace(",", ".")) for r in given], "ward": [r[0] for r in given]})
        frame.to_parquet(new := tmp_path / "new.parquet")
    elif form == "one row":
        new, expected = write(tmp_path / "new.csv", given[:1]), expected[:1]
    else:
        new = write(tmp_path / "new.csv", [r[:2] for r in given], None)
    found = predictions(path, new)
    assert [row["class"] for row in found] == [row["class"] for row in expected]
    probabilities = [[row["probability"] for row in each] for each in (found, expected)]
    np.testing.assert_allclose(*probabilities, rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "header", "words"),
    [
        ([["liver", "1,5"]], HEADER[:2], "line 2, ward: expected one of heart, lung.*, got 'liver'"),
        ([["lung", ""]], HEADER[:2], "line 2, dose: expected a finite number, got ''"),
        ([["lung", "1,5"], ["", "1,5"]], HEADER[:2], "line 3, ward: expected one of heart, lung.*, got ''"),
        ([["lung", "<5"]], HEADER[:2], "line 2, dose: expected a finite number, got '<5'"),
        ([["lung", "x"]], ["ward", "doses"], "expected one of each.*, got 0 columns named 'dose' in the header"),
        (
            [["lung", "1,5", "2"]],
            ["ward", "dose", "dose"],
            "expected one of each column .*, got 2 columns named 'dose'",
        ),
        ([["lung", "1,5", "2,5"]], None, r"line 1: expected 2 cells \(ward, dose\), got 3"),
    ],
)
def test_rows_that_the_model_cannot_read_are_refused(model, tmp_path, table, header, words):
    with pytest.raises(TaskError, match=words):
        peer("predict", model[0], write(tmp_path / "new.csv", table, header))


def test_a_model_of_a_table_without_header_reads_that_table(tmp_path):
    table = write(tmp_path / "t.csv", rows(), None)
    manifest = Manifest(task="tabular", split="iid", task_options={"ignore": ["column 3"]})
    train(tmp_path / "model.safetensors", manifest, peers=1, epochs=150, data_root=table)
    found = predictions(tmp_path / "model.safetensors", table)
    assert right(found, rows()) > 0.9
    inputs = write(tmp_path / "inputs.csv", [row[:2] for row in rows()], None)
    assert predictions(tmp_path / "model.safetensors", inputs) == found


def test_what_the_training_left_open_is_read_as_in_the_training(model, tmp_path):
    """Each "1,234" may be a thousand; the model's table has decimal commas."""
    new = write(tmp_path / "new.csv", [["lung", "1,234"], ["lung", "3,456"]], HEADER[:2])
    assert [row["class"] for row in predictions(model[0], new)] == ["wach", "müde"]


def test_check_and_show_say_how_a_table_is_read(model, tmp_path):
    _, table = model
    said = "cp1252, semicolons, decimal comma, header; numbers: dose; text, one input for each: ward (heart, lung)"
    ignoring = ("--set", 'run.task_options.ignore=["day"]', "--set", "run.split=iid", "--set", f"data_root={table}")
    assert json.loads(peer("task", "check", "tabular", *ignoring, "--json"))["read as"].startswith(said)
    arguments = ["data", "show", "--set", "run.task=tabular", *map(str, ignoring), "--set", "peers=2", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.stderr.count(f"note: data of peer 0 read as {said}") == 1
    assert len(json.loads(result.stdout)["peers"]) == 2
    split = CliRunner().invoke(app, ["data", "split", *arguments[2:-1], "--out", str(tmp_path)])
    assert split.exit_code == 0
    shards = CliRunner().invoke(app, ["data", "show", str(tmp_path), "--json"])
    assert f"read as {said}" in shards.stderr


def test_pictures_to_predict_are_read_as_those_of_the_training(tmp_path):
    for label, level in (("dim", 4000), ("lit", 30000)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(12):
            values = np.random.default_rng([number, level]).normal(level, 500, (8, 8)).clip(0, 65535).astype(np.uint16)
            Image.fromarray(values).save(tmp_path / "pictures" / label / f"{number}.png")
    manifest = Manifest(task="image-folder", task_options={"size": 8, "channels": 1}, model="mlr", split="iid")
    model = tmp_path / "model.safetensors"
    train(model, manifest, peers=1, epochs=100, data_root=tmp_path / "pictures")
    found = predictions(model, tmp_path / "pictures")
    assert [row["class"] for row in found] == ["dim"] * 12 + ["lit"] * 12
    result = CliRunner().invoke(app, ["predict", str(model), str(tmp_path / "pictures")])
    assert "note: read as 24 of 24 pictures: 16 bits, scaled to 8" in result.stderr


OWN = """
import numpy as np
from torch import nn
from peer.tasks import Preprocessing, Shard, Task

COLUMNS = ("dose", "is lung")


def numbers(rows, dose_if_missing):
    doses = [float(row["dose"].replace(",", ".") or dose_if_missing) for row in rows]
    return np.stack([doses, [float(row["ward"] == "lung") for row in rows]], 1)


class Own(Task):
    classes = 2
    class_names = ("low", "high")

    def make_model(self):
        return nn.Linear(2, 2)

    def load_shard(self, peer_id):
        draw = np.random.default_rng(0)
        rows = [{"dose": str(d), "ward": w} for d, w in zip(draw.normal(2, 1, 90), draw.choice(["lung", "heart"], 90))]
        raw, y = numbers(rows, 0.0), np.array([float(row["dose"]) > 2 for row in rows])
        scaling = Preprocessing.standardizing(raw, COLUMNS)
        x = scaling.apply(raw)
        return Shard(train_x=x, train_y=y, test_x=x, test_y=y, preprocessing=scaling)

    def encode(self, rows, preprocessing):
        return preprocessing.apply(numbers(rows, preprocessing.mean[0]))


class Lines(Own):
    def encode(self, rows, preprocessing):
        return super().encode([{key: str(value) for key, value in row.items()} for row in rows], preprocessing)


class Arrays(Own):
    def encode(self, rows, preprocessing):
        return preprocessing.apply(np.stack([rows["dose"], rows["lung"]], 1))


class Wrong(Own):
    def encode(self, rows, preprocessing):
        return np.zeros((len(rows), 3))


class Failing(Own):
    def encode(self, rows, preprocessing):
        return rows[0]["size"]


class Missing(Own):
    def encode(self, rows, preprocessing):
        return np.full((len(rows), 2), np.nan)
"""


@pytest.fixture
def own(tmp_path):
    """Return a function that trains a task of the file ``own.py`` and returns its model file."""
    (tmp_path / "own.py").write_text(OWN)

    def make(name):
        model = tmp_path / f"{name}.safetensors"
        train(model, Manifest(task=f"{tmp_path / 'own.py'}:{name}"), epochs=200)
        return model

    return make


def test_encode_makes_inputs_of_raw_rows(own, tmp_path):
    """The model reads 2 scaled numbers; a row has a text, a decimal comma and may lack its dose."""
    (tmp_path / "new.csv").write_text("name;ward;dose\nA;lung;0,5\nB;heart;3,5\nC;heart;\n")
    found = predictions(own("Own"), tmp_path / "new.csv")
    assert [row["class"] for row in found[:2]] == ["low", "high"] and found[2]["probability"] < 0.9
    (tmp_path / "new.jsonl").write_text('{"ward": "lung", "dose": 0.5}\n\n{"ward": "heart", "dose": 3.5}\n')
    assert predictions(own("Lines"), tmp_path / "new.jsonl") == found[:2]
    np.savez(tmp_path / "new.npz", dose=np.array([0.5, 3.5]), lung=np.array([1.0, 0.0]))
    assert predictions(own("Arrays"), tmp_path / "new.npz") == found[:2]


def test_preprocessed_samples_are_not_encoded(own, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[-1.5, 0.0], [1.5, 0.0]], np.float32))
    found = predictions(own("Own"), tmp_path / "x.npy", "--preprocessed")
    assert [row["class"] for row in found] == ["low", "high"]


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("Wrong", "new.csv", r"encode: expected arrays \[samples, ...\] with samples of shape \[2\], got \[1, 3\]"),
        ("Failing", "new.csv", r"encode\(new.csv\): KeyError: 'size' \(.*own.py, line \d+\)"),
        ("Missing", "new.csv", r"encode: sample 0, position \[0\]: expected finite.*, got nan"),
        ("Own", "new.jsonl", r"new.jsonl: expected one JSON object per line"),
        ("Own", "new.txt", "expected .*, got the ending '.txt'"),
        ("Own", "none.csv", "or a .jsonl file, got none"),
    ],
)
def test_an_encode_that_fails_is_one_sentence(own, tmp_path, name, file, words):
    for written in ("new.csv", "new.jsonl", "new.txt"):
        (tmp_path / written).write_text("dose,ward\n1,lung\n")
    with pytest.raises(TaskError, match=words):
        peer("predict", own(name), tmp_path / file)


def test_the_model_file_keeps_how_rows_are_read(model):
    saved = SavedModel.read(model[0])
    table = json.loads(saved.metadata["preprocessing"])["table"]
    assert table["form"] == {"encoding": "cp1252", "delimiter": ";", "decimal": ",", "header": True}
    assert table["kinds"] == [["ward", ["heart", "lung"]], ["dose", "number"]]

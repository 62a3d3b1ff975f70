"""Each example that starts from a file reads those of examples/make_files.py, passes `peer task check`, and learns."""

import csv
import json
import runpy
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import peer
from peer.cli.main import app

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Return a copy of the examples with the files that they read."""
    folder = tmp_path_factory.mktemp("examples")
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, folder)
    make = runpy.run_path(str(folder / "make_files.py"))
    for device in range(make["DEVICES"]):
        for name in ("patients", "pumps", "cells"):
            make[name](device)
    return folder


@pytest.mark.parametrize(
    ("name", "settings", "bound", "untrained"),
    [
        ("patient_task", {"learning_rate": 0.3}, 0.8, 0.7),
        ("pump_log_task", {"optimizer": "adam", "learning_rate": 0.01, "batch_size": 10}, 0.85, 0.6),
        ("cell_task", {"optimizer": "adam", "learning_rate": 0.02, "batch_size": 10}, 0.8, 0.4),
    ],
)
def test_an_example_reads_its_files_is_checked_and_learns(examples, name, settings, bound, untrained):
    task = f"{examples / name}.py:task"
    checked = CliRunner().invoke(app, ["task", "check", task, "--peer", "3"], catch_exceptions=False)
    assert checked.exit_code == 0 and "decoded bit for bit" in checked.output
    graph = peer.Graph.make("complete", peers=4, run={"algorithm": "dfedavg", "rounds": 12, **settings})
    done = peer.simulate(graph, task, progress=False).metrics
    first = peer.Graph.make("complete", peers=4, run={"algorithm": "local", "rounds": 1, "learning_rate": 1e-9})
    before = peer.simulate(first, task, progress=False).metrics
    assert done["metric_mean"] > bound and before["metric_mean"] < untrained


@pytest.mark.parametrize(("name", "table"), [("patient_task", "patients/clinic"), ("pump_log_task", "pumps/pump")])
def test_an_example_predicts_from_the_file_of_its_device(examples, tmp_path, name, table):
    """Both tasks make inputs of rows by more than scaling; `peer predict` refused the rows."""
    settings = {"optimizer": "adam", "learning_rate": 0.02, "batch_size": 10, "rounds": 15, "algorithm": "dfedavg"}
    graph = peer.Graph.make("complete", peers=2, run=settings)
    run = peer.simulate(graph, f"{examples / name}.py:task", out=tmp_path / "out", progress=False)
    model = tmp_path / "out" / "peer-0" / "models" / "personalized.safetensors"
    arguments = ["predict", str(model), str(examples / "files" / f"{table}-0.csv"), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    found = [row["class"] for row in json.loads(result.stdout)["predictions"]]
    rows = list(csv.DictReader((examples / "files" / f"{table}-0.csv").read_text().splitlines()))
    if name == "pump_log_task":
        labels = [row["state"] for row in rows[63::64]]
        assert len(found) == len(rows) // 64
    else:
        labels = [row["outcome"] for row in rows]
    right = sum(a == b for a, b in zip(found, labels, strict=True)) / len(labels)
    assert right > run.metrics["metric_mean"] - 0.1 > 0.6


def test_an_unknown_category_is_named(examples, tmp_path):
    table = examples / "files" / "patients" / "clinic-0.csv"
    text = table.read_text()
    table.write_text(text.replace("surgery", "dental", 1))
    checked = CliRunner().invoke(app, ["task", "check", f"{examples / 'patient_task.py'}:task"])
    table.write_text(text)
    assert "column ward: expected general, heart, surgery, or nothing, got ['dental']" in str(checked.exception)


def test_the_files_are_small_and_equal_every_time(examples):
    """A peer that makes them again has the same data."""
    before = {path: path.read_bytes() for path in (examples / "files").rglob("*.*") if path.is_file()}
    make = runpy.run_path(str(examples / "make_files.py"))
    for name in ("patients", "pumps", "cells"):
        make[name](0)
    assert {path: path.read_bytes() for path in before} == before
    assert len(before) == 4 * (2 + 80) and sum(map(len, before.values())) < 1 << 20

"""The matrix in reports: every test in JSON and CSV, the best of several models in tables and pictures, reasons in words."""

import csv
import json

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.graph_file import save_graph
from coordinator_free_bootstrap.manifest import Manifest
from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir
from peer.view.report.matrix import matrix, save_matrix
from peer.view.report.plots import matrix_figure, save_plots
from peer.view.report.report import build_report
from peer.view.report.tables import MATRIX_PEERS_MAX, matrix_table, report_view
from peer.view.state.run_files import RunFiles
from peer.view.state.view import View
from peer.view.verbs.report import report
from tests.tools.fake_run import strict


def result(model_of, value, slot=0, loss=None, **more):
    loss = 1 - value if loss is None else loss
    return {"model_of": model_of, "slot": slot, "round_index": 1, "metric_value": value, "loss": loss, **more}


COLUMNS = {  # tester -> its tests; peer 3 has not ended
    0: [result(0, 0.9), result(1, 0.5), {"model_of": 3, "missing": "dead"}],
    1: [result(0, 0.25), result(1, 0.75, 0, 0.9), result(1, 0.5, 1, 0.3), result(2, 0.5)],
    2: [result(1, 0.5), result(2, 1.0), {"model_of": 3, "missing": "edge_down"}],
    3: None,
}


def run_of(directory, columns=COLUMNS, **start):
    graph = make_graph("ring", len(columns))
    save_graph(Graph(graph.nodes, graph.edges, Manifest(rounds=2)), directory / "graph.json")
    for i, tests in columns.items():
        place = StateDir.of_peer(directory, i)
        place.create()
        with HistoryWriter(place.history, incarnation=1 << 32) as history:
            history.write("start", peer_id=i, **start)
            history.write("round", round_index=1, metric_value=0.5)
            if tests is not None:
                history.write("end", rounds_completed=2, metric_value=0.5, model_tests=tests)
    return directory


def text_of(rendered):
    console = Console(width=160)
    with console.capture() as captured:
        console.print(rendered)
    return captured.get()


def test_every_test_is_in_the_report(tmp_path):
    values = strict(build_report(run_of(tmp_path)).values)["matrix"]
    assert values["own_mean"] == pytest.approx((0.9 + 0.5 + 1.0) / 3), "of peer 1 the model with the lower loss"
    assert values["others_mean"] == pytest.approx((0.5 + 0.25 + 0.5 + 0.5) / 4)
    assert values["missing"] == {"dead": 1, "edge_down": 1}
    assert len(values["tests"]) == sum(len(tests or ()) for tests in COLUMNS.values())
    assert values["tests"][0] == {"data_of": 0, **result(0, 0.9)}
    assert {"data_of": 0, "model_of": 3, "missing": "dead"} in values["tests"]


def test_the_table_names_what_is_missing(tmp_path):
    report = build_report(run_of(tmp_path))
    text = text_of(report_view(report.values))
    assert "own 0.800, of neighbors 0.438 (means)" in text
    assert "1 dead: was marked dead when the last round closed" in text
    lines = [line.split() for line in text_of(matrix_table(report.values["matrix"], report.run.metric)).splitlines()]
    assert ["model", "1", "0.500", "0.500", "0.500"] in lines
    assert ["model", "3", "dead", "edge_down"] in lines
    assert ["accuracy", *(["data", "0", "data", "1", "data", "2"])] in lines


def test_a_table_of_many_peers_is_left_to_the_files(tmp_path):
    many = {i: [result(i, 0.5)] for i in range(MATRIX_PEERS_MAX + 1)}
    report = build_report(run_of(tmp_path, many))
    assert matrix_table(report.values["matrix"], report.run.metric) is None
    assert "models of the last round" in text_of(report_view(report.values))


def test_one_state_directory_shows_the_column_of_its_peer(tmp_path):
    run_of(tmp_path)
    report = build_report(tmp_path / "peer-2")
    assert {test["data_of"] for test in report.values["matrix"]["tests"]} == {2}
    assert matrix_figure(report.run, "one column") is not None


def test_a_run_without_tests_has_no_matrix(tmp_path):
    run = RunFiles.read(run_of(tmp_path, dict.fromkeys(range(3))))
    assert matrix(run) is None and matrix_figure(run, "") is None and save_matrix(run, tmp_path / "report") == []
    assert build_report(tmp_path).values["matrix"] is None
    assert not (tmp_path / "report").exists()


def test_the_csv_has_a_line_for_each_test_and_further_metrics_as_columns(tmp_path):
    columns = {0: [result(0, 0.9, metrics={"f1": 0.8}), {"model_of": 1, "missing": "late"}], 1: None, 2: None}
    (path,) = save_matrix(RunFiles.read(run_of(tmp_path, columns)), tmp_path / "report")
    rows = [*csv.DictReader(path.read_text().splitlines())]
    assert rows[0] | {"loss": ""} == {
        **{"model_of": "0", "data_of": "0", "slot": "0", "round_index": "1", "metric_value": "0.9"},
        **{"loss": "", "missing": "", "metrics.f1": "0.8"},
    }
    assert rows[1]["missing"] == "late" and rows[1]["metric_value"] == ""


def test_the_picture_shows_results_missing_ones_and_peers_without_an_edge(tmp_path):
    run = RunFiles.read(run_of(tmp_path))
    axes = matrix_figure(run, "title").axes[0]
    gray, values = (image.get_array() for image in axes.images)
    assert values[1, 1] == 0.5 and values[0, 1] == 0.25
    assert not gray.mask[3, 0] and gray.mask[2, 0], "a missing model; no edge"
    assert sorted(text.get_text() for text in axes.texts) == sorted(
        ["0.90", "0.50", "0.25", "0.50", "0.50", "0.50", "1.00"]
    )
    assert tmp_path / "plots" / "matrix.png" in save_plots(run, tmp_path / "plots")


def test_lower_is_better_reverses_the_colors(tmp_path):
    error = {"name": "error", "higher_is_better": False, "share": False}
    run = RunFiles.read(run_of(tmp_path, metric=error))
    assert matrix_figure(run, "title").axes[0].images[1].get_cmap().name == "viridis_r"


def test_the_state_of_a_peer_has_its_results(tmp_path):
    run = RunFiles.read(run_of(tmp_path))
    rows = {row["id"]: row["tests"] for row in View(run.log, run.graph).everything()["peers"]}
    assert rows[0] == [[0, 0.9, 0, 1, ""], [1, 0.5, 0, 1, ""], [3, None, None, None, "dead"]]
    assert rows[1][1] == [1, 0.5, 1, 1, ""] and rows[3] == []


def test_tests_of_a_wrong_form_make_the_line_unread(tmp_path):
    run_of(tmp_path, {0: [{"model_of": 1, "missing": "No Word"}], 1: None, 2: None})
    report = build_report(tmp_path)
    assert report.values["matrix"] is None
    assert "could not be read" in report.values["warnings"][0]


def test_the_verb_writes_the_csv_beside_the_pictures(tmp_path):
    app = typer.Typer()
    app.command()(report)
    run_of(tmp_path)
    shown = CliRunner().invoke(app, [str(tmp_path)], env={"COLUMNS": "140"})
    assert shown.exit_code == 0 and (tmp_path / "report" / "matrix.csv").is_file()
    elsewhere = CliRunner().invoke(app, [str(tmp_path), "--json", "--out", str(tmp_path / "files")])
    assert (
        (tmp_path / "files" / "matrix.csv")
        .read_text()
        .startswith("model_of,data_of,slot,round_index,metric_value,loss,missing")
    )
    assert len(json.loads(elsewhere.stdout)["matrix"]["tests"]) == 10

"""The report: stable keys, exact numbers of a known run, and interrupted, running and incomplete runs."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console
from tools.fake_run import FINAL, ROUNDS, round_fields, strict, write_graph, write_peer

from coordinator_free_bootstrap.errors import GraphError, StorageError, UsageError
from peer.core.metric import Metric
from peer.store.history import HistoryWriter
from peer.store.identity_files import StateLock
from peer.store.state_dir import StateDir
from peer.view.report.plots import metric_figure, save_plots
from peer.view.report.report import METRICS, build_report
from peer.view.report.tables import report_view
from peer.view.state.run_files import RunFiles, metric_curve

STABLE_KEYS = {
    "metric_mean", "metric_std", "metric_worst", "metric_p10", "cluster_ari", "rounds", "models_sent",
    "models_folded", "duplicates_dropped", "stale_dropped", "payload_bytes_sent", "wire_bytes_sent", "seconds",
    "consensus_distance", "peers",
}  # fmt: skip
STABLE_ROW_KEYS = {
    "peer_id",
    "metric_value",
    "cluster_index",
    "true_cluster",
    "rounds_completed",
    "incarnation",
    "status",
}


def report_of(directory, **options):
    values = build_report(directory, **options).values
    return strict(values)


def test_keys_are_stable(run_directory):
    values = report_of(run_directory)
    assert values.keys() >= STABLE_KEYS | METRICS.keys()
    assert all(row.keys() >= STABLE_ROW_KEYS for row in values["peers"])


def test_numbers_of_a_known_run(run_directory):
    values, final = report_of(run_directory), np.array(list(FINAL.values()))
    assert values["state"] == "complete" and values["notes"] == []
    assert values["metric_mean"] == pytest.approx(0.9)
    assert values["metric_std"] == pytest.approx(float(np.sqrt(np.mean((final - 0.9) ** 2))))
    assert values["metric_worst"] == 0.85 and values["metric_p10"] == 0.85
    assert values["cluster_ari"] == 1.0 and values["cluster_accuracy"] == 1.0
    assert values["rounds"] == ROUNDS and values["models_sent"] == 4 * ROUNDS * 2
    assert values["duplicates_dropped"] == 4 and values["payload_bytes_sent"] == 4 * ROUNDS * 64_000
    assert values["seconds"]["train"] == pytest.approx(0.4 * ROUNDS)
    assert values["algorithm_state"] == {"relay": 0.5}
    assert [row["peer_id"] for row in values["peers"]] == [0, 1, 2, 3]
    assert values["peers"][2]["rounds_with_missing"] == 1 and values["peers"][0]["starts"] == 1


def test_consensus_distance_is_the_mean_squared_distance_to_the_mean(run_directory):
    """Models of cluster 1 are base + peer id: distances to the mean 1.5 in each of 8 values are 1.5, 0.5, 0.5, 1.5."""
    values = report_of(run_directory)
    mean = np.arange(8) + 1.5
    assert values["consensus_distance"] == [0.0, pytest.approx(8 * np.mean([2.25, 0.25, 0.25, 2.25]))]
    assert values["consensus_distance_relative"][1] == pytest.approx(10 / np.sum(mean**2))


def test_broken_model_file_is_a_note(run_directory):
    StateDir.of_peer(run_directory, 2).cluster_model(1).write_bytes(b"torn")
    values = report_of(run_directory)
    assert values["consensus_distance"][1] == pytest.approx(8 * np.var([0, 1, 3]))
    assert "peer-2/models/cluster-1.safetensors" in values["notes"][0]


def test_a_repeated_round_counts_once_as_result_and_twice_as_cost(run_directory):
    place = StateDir.of_peer(run_directory, 0)
    place.summary.unlink()
    with HistoryWriter(place.history, incarnation=2 << 32) as history:
        history.write("start", peer_id=0, round_index=5, true_cluster=0)
        history.write("round", **{**round_fields(0, 5), "metric_value": 0.99})
        history.write("end", rounds_completed=6, metric_value=0.97)
    row = report_of(run_directory)["peers"][0]
    assert (row["metric_value"], row["rounds_completed"], row["starts"], row["models_sent"]) == (0.97, 6, 2, 14)
    assert metric_curve(RunFiles.read(run_directory)).best[5] == 0.99


def test_models_acknowledged_after_the_last_round_count(run_directory):
    with HistoryWriter(StateDir.of_peer(run_directory, 0).history) as history:
        history.write("end", rounds_completed=ROUNDS, models_sent=1)
    assert report_of(run_directory)["models_sent"] == 4 * ROUNDS * 2 + 1


def test_the_end_of_an_earlier_incarnation_is_not_the_result(run_directory):
    with HistoryWriter(StateDir.of_peer(run_directory, 0).history) as history:
        history.write("start", peer_id=0, round_index=0)
        history.write("round", **{**round_fields(0, 0), "metric_value": 0.3})
    row = report_of(run_directory)["peers"][0]
    assert (row["status"], row["metric_value"], row["rounds_completed"]) == ("dead", 0.3, 1)


def test_cut_running_missing_and_left_peers_have_different_statuses(tmp_path):
    write_graph(tmp_path)
    write_peer(tmp_path, 0, rounds=3, end=False)
    write_peer(tmp_path, 1, rounds=2, end=False)
    place = write_peer(tmp_path, 2, rounds=4, end=False)
    with HistoryWriter(place.history) as history:
        history.write("leave", round_index=4, reason="SIGTERM")
    with StateLock(tmp_path / "peer-1"):
        values = report_of(tmp_path)
        assert [row["status"] for row in values["peers"]] == ["dead", "running", "left", "missing"]
        assert values["state"] == "running"
    values = report_of(tmp_path)
    assert values["state"] == "incomplete" and values["rounds"] == 4
    assert [note.split(":")[0] for note in values["notes"]] == ["peer 2", "peer 0, 1", "peer 3"]
    assert values["consensus_distance"] == [None, None]


def test_a_run_without_rounds_has_nulls_not_zeros(tmp_path):
    write_graph(tmp_path)
    write_peer(tmp_path, 0, rounds=0, end=False)
    values = report_of(tmp_path, target=0.5)
    assert values["metric_mean"] is None and values["cluster_ari"] is None and values["rounds"] == 0
    assert values["reached"]["rounds"] is None


@pytest.mark.parametrize(("target", "rounds"), [(0.2, 1), (0.7, 3), (0.89, None), (0.99, None)])
def test_target_must_hold_for_three_evaluations(run_directory, target, rounds):
    """Only the last round reaches 0.89."""
    found = report_of(run_directory, target=target)["reached"]
    assert found["rounds"] == rounds
    if rounds:
        assert found["payload_bytes_per_peer"] == 64_000 * rounds and found["seconds"] == pytest.approx(0.6 * rounds)


def of_regression(directory):
    """Turn a run into one of a regression task: its files have the keys of another metric."""
    metric = Metric("mse", higher_is_better=False, share=False)
    for path in directory.glob("peer-*/history.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[0]["metric"] = metric.as_json()
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        place = path.with_name("summary.json")
        if place.exists():
            summary = json.loads(place.read_text())
            measured = {"metric": metric.as_json() | {"value": summary["metric"]["value"]}}
            place.write_text(json.dumps(summary | measured))
        assert "accuracy" not in path.read_text()


def test_another_metric_is_reported_by_its_name_and_lower_can_be_better(run_directory):
    of_regression(run_directory)
    values = report_of(run_directory, target=0.6)
    assert values["metric"] == {"name": "mse", "higher_is_better": False, "share": False}
    printed = build_report(run_directory).values
    assert printed["metric_worst"] == printed["metric_p10"] == 0.95
    assert [row["metric_value"] for row in printed["peers"]] == list(FINAL.values())
    assert not [key for key in (*printed, *printed["peers"][0]) if key.startswith("accuracy")]
    assert values["reached"]["rounds"] is None  # it only increases
    assert report_of(run_directory, target=2.0)["reached"]["rounds"] == 1
    curve = metric_curve(RunFiles.read(run_directory))
    assert (curve.worst > curve.best)[1:].all() and curve.worst[-1] == 0.95
    console = Console(file=io.StringIO(), width=140)
    console.print(report_view(values))
    shown = console.file.getvalue()
    assert "mse" in shown and "worst 0.95, p90 0.95" in shown and "mean mse 0.6" in shown
    assert "accuracy" not in shown


def test_the_plot_of_another_metric_has_its_name(run_directory):
    of_regression(run_directory)
    run = RunFiles.read(run_directory)
    figure = metric_figure(metric_curve(run), np.arange(ROUNDS), "rounds", "title", run.metric, 4)
    assert figure.axes[0].get_ylabel() == "mse (lower is better)"
    assert figure.axes[0].get_ylim()[1] < 1.0


def test_the_pictures_of_another_metric_are_not_called_accuracy(run_directory, tmp_path):
    of_regression(run_directory)
    names = [path.name for path in save_plots(RunFiles.read(run_directory), tmp_path / "pictures")]
    assert names == ["clusters.png", "metric_bytes.png", "metric_rounds.png"]


def test_a_report_of_accuracies_keeps_its_keys(run_directory):
    report = build_report(run_directory)
    assert report.values["metric"]["name"] == "accuracy"
    with pytest.raises(UsageError, match="--target: expected a value of the metric, accuracy, from 0 to 1, got 2"):
        build_report(run_directory, 2.0)


def test_a_peer_in_the_wrong_cluster_lowers_the_cluster_accuracy(run_directory):
    place = StateDir.of_peer(run_directory, 3)
    place.summary.unlink()
    with HistoryWriter(place.history) as history:
        history.write("round", **{**round_fields(3, 5), "cluster_index": 1})
    values = report_of(run_directory)
    assert values["clusters_used"] == 2
    assert values["cluster_accuracy"] == 0.75 and values["cluster_ari"] == pytest.approx(0.0, abs=0.3)


def test_a_directory_that_is_not_a_run_is_an_error(tmp_path):
    with pytest.raises(UsageError, match=re.escape("no graph.json")):
        build_report(tmp_path)
    (tmp_path / "graph.json").write_text("{}")
    with pytest.raises(GraphError):
        build_report(tmp_path)
    write_graph(tmp_path)
    write_peer(tmp_path, 0).summary.write_text("{")
    with pytest.raises(StorageError, match="expected valid JSON"):
        build_report(tmp_path)


def test_plots_are_written(run_directory):
    from matplotlib.image import imread

    paths = save_plots(RunFiles.read(run_directory), run_directory / "report")
    assert [path.name for path in paths] == ["clusters.png", "metric_bytes.png", "metric_rounds.png"]
    assert all(imread(path).shape[0] > 300 and imread(path).std() > 0.02 for path in paths)


def test_a_run_without_evaluations_has_only_the_graph(tmp_path):
    write_graph(tmp_path)
    write_peer(tmp_path, 0, rounds=0, end=False)
    assert [path.name for path in save_plots(RunFiles.read(tmp_path), tmp_path)] == ["clusters.png"]

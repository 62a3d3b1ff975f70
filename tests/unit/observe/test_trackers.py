"""Trackers get the rounds of a run; each is read back with its own package."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import peer
from coordinator_free_bootstrap.errors import StorageError, UsageError
from peer.cli.main import app
from peer.observe.trackers.export import Feed, LiveExport
from peer.observe.trackers.tracker import KINDS, check

PEERS, ROUNDS = 3, 4


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    graph = peer.Graph.make("ring", peers=PEERS, run={"rounds": ROUNDS})
    return peer.simulate(graph, out=tmp_path_factory.mktemp("tracked") / "run", progress=False)


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {name: [(each.step, each.value) for each in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_tensorboard_has_a_folder_for_each_peer_and_one_for_all(run, tmp_path):
    run.export(f"tensorboard:{tmp_path / 'logs'}")
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["all", "peer-0", "peer-1", "peer-2"]
    table = run.frame()
    for peer_id in range(PEERS):
        found = scalars(tmp_path / "logs" / f"peer-{peer_id}")
        mine = table[table.peer_id == peer_id]
        for name in ("accuracy", "loss", "seconds.train", "payload_bytes_sent"):
            assert [step for step, _ in found[name]] == [1, 2, 3, 4]
            assert [value for _, value in found[name]] == pytest.approx(list(mine[name]), rel=1e-6)
    everyone = scalars(tmp_path / "logs" / "all")
    assert everyone["accuracy_mean"][-1][1] == pytest.approx(run.metrics["accuracy_mean"])
    assert everyone["accuracy_worst"][-1][1] == pytest.approx(run.metrics["accuracy_worst"])


def test_mlflow_has_a_run_for_all_with_a_run_for_each_peer_and_its_model(run, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    run.export(f"mlflow:{tmp_path / 'tracked'}")
    client = MlflowClient(tracking_uri=str(tmp_path / "tracked"))
    experiment = client.get_experiment_by_name("coordinator-free")
    found = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    assert sorted(found) == ["federation", "peer-0", "peer-1", "peer-2"]
    everyone = found["federation"]
    assert everyone.data.params["run.rounds"] == str(ROUNDS)
    assert everyone.data.metrics["accuracy_mean"] == pytest.approx(run.metrics["accuracy_mean"])
    assert everyone.info.status == "FINISHED"
    table = run.frame()
    for peer_id in range(PEERS):
        mine = found[f"peer-{peer_id}"]
        assert mine.data.tags["mlflow.parentRunId"] == everyone.info.run_id
        history = client.get_metric_history(mine.info.run_id, "accuracy")
        expected = list(table[table.peer_id == peer_id].accuracy)
        assert [(each.step, each.value) for each in history] == list(enumerate(expected, 1))
        copied = Path(client.download_artifacts(mine.info.run_id, "models/personalized.safetensors", str(tmp_path)))
        original = run.directory / f"peer-{peer_id}" / "models" / "personalized.safetensors"
        assert copied.read_bytes() == original.read_bytes()


def test_tables_have_the_columns_of_the_frame(run, tmp_path):
    run.export(f"csv:{tmp_path / 'new' / 'h.csv'}", f"parquet:{tmp_path / 'h.parquet'}")
    frame = run.frame()
    for table in (pd.read_csv(tmp_path / "new" / "h.csv"), pd.read_parquet(tmp_path / "h.parquet")):
        assert list(table.columns) == list(frame.columns)
        assert list(table.accuracy) == list(frame.accuracy) and list(table.peer_id) == list(frame.peer_id)


def test_another_metric_has_its_own_column(tmp_path):
    graph = peer.Graph.make("ring", peers=3, run={"rounds": 2, "task": "linear", "split": "linear_synth"})
    run = peer.simulate(graph, progress=False)
    run.export(f"csv:{tmp_path / 'h.csv'}", f"tensorboard:{tmp_path / 'logs'}")
    assert "metric_value" in pd.read_csv(tmp_path / "h.csv").columns
    assert "accuracy" not in pd.read_csv(tmp_path / "h.csv").columns
    assert "metric_mean" in scalars(tmp_path / "logs" / "all")
    assert "metric_value" in run.frame().columns and run.plot().axes[0].get_ylabel() == "mse (lower is better)"


def test_the_verb_exports(run, tmp_path):
    from typer.testing import CliRunner

    words = ["report", str(run.directory), "--json", "--export", f"csv:{tmp_path / 'h.csv'}"]
    found = CliRunner().invoke(app, words)
    assert json.loads(found.stdout)["rounds"] == ROUNDS
    assert len(pd.read_csv(tmp_path / "h.csv")) == PEERS * ROUNDS


@pytest.mark.parametrize("export", ["wandb:x", "csv", "csv:", ""])
def test_an_unknown_tracker_is_refused_with_those_that_there_are(export):
    with pytest.raises(UsageError, match="allowed: tensorboard:LOGDIR, mlflow:URI, csv:FILE, parquet:FILE"):
        check([export])


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_package_is_refused_before_the_run_with_what_installs_it(name, monkeypatch):
    monkeypatch.setattr("peer.observe.trackers.tracker.find_spec", lambda module: None)
    with pytest.raises(UsageError, match=rf"pip install 'coordinator-free\[{KINDS[name].extra}\]'"):
        check([f"{name}:place"])


def test_a_place_that_cannot_be_written_is_named(run, tmp_path):
    (tmp_path / "file").write_text("")
    for export in (f"csv:{tmp_path / 'file' / 'h.csv'}", f"tensorboard:{tmp_path / 'file' / 'logs'}"):
        with pytest.raises(StorageError, match="file"):
            run.export(export)


def test_the_feed_reads_only_new_rounds_and_of_a_repeated_one_the_last(tmp_path):
    history = tmp_path / "peer-7" / "history.jsonl"
    history.parent.mkdir()

    def write(*lines):
        with history.open("a") as file:
            file.writelines(json.dumps({"time": "2026-11-22T00:00:00+00:00", **line}) + "\n" for line in lines)

    write({"kind": "start", "peer_id": 7, "true_cluster": 1}, {"kind": "round", "round_index": 0, "accuracy": 0.1})
    feed = Feed(tmp_path)
    assert [(row["round_index"], row["accuracy"], row["true_cluster"]) for row in feed.read()] == [(0, 0.1, 1)]
    assert feed.read() == []
    write({"kind": "round", "round_index": 1, "accuracy": 0.2}, {"kind": "round", "round_index": 1, "accuracy": 0.3})
    assert [(row["round_index"], row["accuracy"]) for row in feed.read()] == [(1, 0.3)]


def test_a_live_export_ends_with_all_rounds(run, tmp_path):
    with LiveExport(run.directory, [f"csv:{tmp_path / 'h.csv'}"]) as live:
        pass
    assert live.problem == ""
    assert len(pd.read_csv(tmp_path / "h.csv")) == PEERS * ROUNDS


def test_a_live_export_that_fails_says_so_and_the_others_go_on(run, tmp_path):
    (tmp_path / "file").write_text("")
    exports = [f"csv:{tmp_path / 'file' / 'h.csv'}", f"csv:{tmp_path / 'good.csv'}"]
    with LiveExport(run.directory, exports) as live:
        pass
    assert "the export is incomplete: " in live.problem and "peer report" in live.problem
    assert len(pd.read_csv(tmp_path / "good.csv")) == PEERS * ROUNDS


@pytest.mark.slow
def test_without_export_no_tracker_is_imported(tmp_path):
    program = (
        "import sys, peer; run = peer.simulate(peer.Graph.make('ring', peers=3, run={'rounds': 1}), progress=False); "
        "print([name for name in ('tensorboard', 'mlflow', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout == "[]\n"

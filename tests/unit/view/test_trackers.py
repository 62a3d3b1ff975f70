"""Trackers get the rounds of a run; each is read back with its own package."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import peer
from coordinator_free_bootstrap.errors import StorageError, UsageError
from coordinator_free_bootstrap.extras import EXTRAS
from peer.cli.main import app
from peer.view.trackers.curves import AllPeers, PeerCurves
from peer.view.trackers.export import LiveExport
from peer.view.trackers.feed import Feed
from peer.view.trackers.tracker import KINDS, check

PEERS, ROUNDS = 3, 4


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    graph = peer.Graph.make("ring", peers=PEERS, run={"rounds": ROUNDS})
    return peer.simulate(graph, out=tmp_path_factory.mktemp("tracked") / "run", progress=False)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def scalars(folder):
    found = events(folder)
    return {name: [(each.step, each.value) for each in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_tensorboard_has_a_folder_for_each_run_in_it_one_for_each_peer_and_one_for_all(run, tmp_path):
    run.export(f"tensorboard:{tmp_path / 'logs'}")
    (logs,) = (tmp_path / "logs").iterdir()
    assert logs.name.startswith("dfca-digits-20")
    assert sorted(path.name for path in logs.iterdir()) == ["all", "peer-0", "peer-1", "peer-2"]
    table = run.frame()
    columns = {
        "quality/metric_value": "metric_value",
        "quality/loss": "loss",
        "seconds/train": "seconds.train",
        "traffic/payload_bytes_sent": "payload_bytes_sent",
        "clusters/cluster_index": "cluster_index",
    }
    for peer_id in range(PEERS):
        found = scalars(logs / f"peer-{peer_id}")
        mine = table[table.peer_id == peer_id]
        for name, column in columns.items():
            assert [step for step, _ in found[name]] == [1, 2, 3, 4]
            assert [value for _, value in found[name]] == pytest.approx(list(mine[column]), rel=1e-6)
    everyone = scalars(logs / "all")
    assert everyone["quality/metric_mean"][-1][1] == pytest.approx(run.metrics["metric_mean"])
    assert everyone["quality/metric_worst"][-1][1] == pytest.approx(run.metrics["metric_worst"])
    assert everyone["clusters/cluster_ari"][-1][1] == pytest.approx(run.metrics["cluster_ari"])
    assert [step for step, _ in everyone["quality/loss_mean"]] == [1, 2, 3, 4]
    sent = run.metrics["payload_bytes_sent"] / PEERS
    assert everyone["traffic/payload_bytes"][-1][1] == pytest.approx(sent, rel=1e-6)


def test_curves_have_a_group_and_no_number_that_never_changes(run, tmp_path):
    run.export(f"tensorboard:{tmp_path / 'logs'}")
    (logs,) = (tmp_path / "logs").iterdir()
    for folder in logs.iterdir():
        found = scalars(folder)
        assert all("/" in name for name in found)
        assert not {"incarnation", "true_cluster", "t", "round_index"} & {name.rpartition("/")[2] for name in found}
        assert not [name for name, points in found.items() if "dropped" in name and not any(v for _, v in points)]


def test_a_counter_has_its_zeros_once_it_counts():
    curves = PeerCurves()
    rows = [{"round_index": index, "stale_dropped": count} for index, count in enumerate((0, 0, 2, 0))]
    drawn = [(at["round_index"], value) for row in rows for _, value, at in curves.points(row)]
    assert drawn == [(0, 0.0), (1, 0.0), (2, 2.0), (3, 0.0)]


def test_settings_are_hyperparameters_beside_the_results(run, tmp_path):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    run.export(f"tensorboard:{tmp_path / 'logs'}")
    (logs,) = (tmp_path / "logs").iterdir()
    data = events(logs / "all").SummaryMetadata("_hparams_/session_start_info").plugin_data
    settings = HParamsPluginData.FromString(data.content).session_start_info.hparams
    assert settings["run.algorithm"].string_value == "dfca" and settings["run.rounds"].number_value == ROUNDS
    assert settings["peers"].number_value == PEERS
    assert scalars(logs / "all")["result/metric_mean"][0][1] == pytest.approx(run.metrics["metric_mean"])


def test_a_second_export_lies_beside_the_first(run, tmp_path):
    for _ in range(3):
        run.export(f"tensorboard:{tmp_path / 'logs'}")
    first, second, third = sorted((tmp_path / "logs").iterdir())
    assert (second.name, third.name) == (f"{first.name}-2", f"{first.name}-3")
    assert len(scalars(first / "peer-0")["quality/metric_value"]) == ROUNDS


def test_a_round_of_all_peers_is_drawn_when_each_has_it_or_is_far_behind():
    def rows(peer_id, indices):
        return [
            {"peer_id": peer_id, "round_index": index, "time": f"2026-11-22T00:00:{index:02}+00:00", "metric_value": 0.5,
             "payload_bytes_sent": 10} for index in indices
        ]  # fmt: skip

    def drawn(**end):
        return [row["round_index"] for row in everyone.completed(**end)]

    everyone = AllPeers()
    everyone.peers = 2
    everyone.take(rows(0, range(3)))
    assert drawn() == []
    everyone.take(rows(1, range(2)))
    assert drawn() == [0, 1]
    everyone.take(rows(0, range(3, 24)))
    assert drawn() == [2]  # round 23 is 21 ahead of it
    assert drawn(ended=True) == list(range(3, 24))


def test_mlflow_has_a_run_for_all_with_a_run_for_each_peer_and_its_model(run, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    run.export(f"mlflow:{tmp_path / 'tracked'}")
    client = MlflowClient(tracking_uri=str(tmp_path / "tracked"))
    experiment = client.get_experiment_by_name("coordinator-free")
    found = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    parent, *peers = sorted(found)
    assert parent.startswith("dfca-digits-20") and peers == [f"{parent} peer-{peer_id}" for peer_id in range(PEERS)]
    everyone = found[parent]
    assert everyone.data.params["run.rounds"] == str(ROUNDS)
    tags = everyone.data.tags
    assert (tags["algorithm"], tags["task"], tags["peers"]) == ("dfca", "digits", str(PEERS))
    assert everyone.data.metrics["result/metric_mean"] == pytest.approx(run.metrics["metric_mean"])
    for name in ("quality/metric_mean", "quality/loss_mean", "traffic/payload_bytes", "clusters/cluster_ari"):
        steps = [each.step for each in client.get_metric_history(everyone.info.run_id, name)]
        assert steps == [1, 2, 3, 4], name
    assert everyone.info.status == "FINISHED"
    table = run.frame()
    for peer_id in range(PEERS):
        mine = found[f"{parent} peer-{peer_id}"]
        assert mine.data.tags["mlflow.parentRunId"] == everyone.info.run_id
        history = client.get_metric_history(mine.info.run_id, "quality/metric_value")
        expected = list(table[table.peer_id == peer_id].metric_value)
        assert [(each.step, each.value) for each in history] == list(enumerate(expected, 1))
        copied = Path(client.download_artifacts(mine.info.run_id, "models/personalized.safetensors", str(tmp_path)))
        original = run.directory / f"peer-{peer_id}" / "models" / "personalized.safetensors"
        assert copied.read_bytes() == original.read_bytes()


def test_tables_have_the_columns_of_the_frame(run, tmp_path):
    run.export(f"csv:{tmp_path / 'new' / 'h.csv'}", f"parquet:{tmp_path / 'h.parquet'}")
    frame = run.frame()
    for table in (pd.read_csv(tmp_path / "new" / "h.csv"), pd.read_parquet(tmp_path / "h.parquet")):
        assert list(table.columns) == list(frame.columns)
        assert list(table.metric_value) == list(frame.metric_value) and list(table.peer_id) == list(frame.peer_id)


def test_a_csv_names_the_senders_of_the_models_that_a_round_folded(run, tmp_path):
    run.export(f"csv:{tmp_path / 'h.csv'}")
    table = pd.read_csv(tmp_path / "h.csv")
    for found, folded in zip(table.folded.astype(str), run.frame().folded, strict=True):
        assert found.split() == [str(arrival[0]) for arrival in folded]
    assert not any("(" in str(cell) or "[" in str(cell) for cell in table.to_numpy().ravel())


def test_another_metric_has_its_own_column(tmp_path):
    graph = peer.Graph.make("ring", peers=3, run={"rounds": 2, "task": "linear", "split": "linear_synth"})
    run = peer.simulate(graph, progress=False)
    run.export(f"csv:{tmp_path / 'h.csv'}", f"tensorboard:{tmp_path / 'logs'}")
    assert "metric_value" in pd.read_csv(tmp_path / "h.csv").columns
    assert "accuracy" not in pd.read_csv(tmp_path / "h.csv").columns
    (logs,) = (tmp_path / "logs").iterdir()
    assert "quality/metric_mean" in scalars(logs / "all") and "quality/metric_value" in scalars(logs / "peer-0")
    assert "metric_value" in run.frame().columns and run.plot().axes[0].get_ylabel() == "mse (lower is better)"


def test_the_verb_exports(run, tmp_path):
    from typer.testing import CliRunner

    words = ["report", str(run.directory), "--json", "--export", f"csv:{tmp_path / 'h.csv'}"]
    found = CliRunner().invoke(app, words)
    assert json.loads(found.stdout)["rounds"] == ROUNDS
    assert len(pd.read_csv(tmp_path / "h.csv")) == PEERS * ROUNDS


@pytest.mark.parametrize("export", ["wandb:x", "csv", "csv:", ""])
def test_an_unknown_tracker_is_refused_with_those_that_there_are(export):
    with pytest.raises(UsageError, match="expected tensorboard:LOGDIR, mlflow:URI, csv:FILE, parquet:FILE"):
        check([export])


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_package_is_refused_before_the_run_with_what_installs_it(name, monkeypatch):
    monkeypatch.setattr("coordinator_free_bootstrap.extras.find_spec", lambda module: None)
    with pytest.raises(UsageError, match=rf"pip install 'coordinator-free\[{EXTRAS[KINDS[name].needs[0]]}\]'"):
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

    write({"kind": "start", "peer_id": 7, "true_cluster": 1}, {"kind": "round", "round_index": 0, "metric_value": 0.1})
    feed = Feed(tmp_path)
    assert [(row["round_index"], row["metric_value"], row["true_cluster"]) for row in feed.read()] == [(0, 0.1, 1)]
    assert feed.read() == []
    write(
        {"kind": "round", "round_index": 1, "metric_value": 0.2},
        {"kind": "round", "round_index": 1, "metric_value": 0.3},
    )
    assert [(row["round_index"], row["metric_value"]) for row in feed.read()] == [(1, 0.3)]


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

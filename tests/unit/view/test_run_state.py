"""One word for the state of a run, the same in every view; and over how many peers a mean is."""

import io
import json

import pytest
from rich.console import Console
from tools.fake_run import ROUNDS, round_fields, write_graph, write_peer

import peer
from peer.core.metric import Metric
from peer.lab.comparison import cautions
from peer.store.files import write_json
from peer.store.history import HistoryWriter
from peer.store.identity_files import StateLock
from peer.store.state_dir import StateDir
from peer.view.live.watch import TestbedWatcher
from peer.view.models.model_card import Exported, model_card
from peer.view.report.plots import metric_figure, series_figure
from peer.view.report.report import build_report
from peer.view.report.tables import report_view
from peer.view.state.run_files import RunFiles, metric_curve


def leave(directory, peer_id, rounds=2):
    """Let a peer leave after some rounds, as SIGTERM makes it."""
    place = write_peer(directory, peer_id, rounds=rounds, end=False)
    with HistoryWriter(place.history, incarnation=(1 << 32) + peer_id) as history:
        history.write("leave", round_index=rounds, reason="SIGTERM")
    incarnation = (1 << 32) + peer_id
    said = {
        "peer_id": peer_id,
        "status": "left",
        "exit_code": 0,
        "incarnation": incarnation,
        "rounds_completed": rounds,
    }
    write_json(place.summary, said)


def cut(directory, peer_id):
    """Remove a peer's last lines, in the middle of one; its summary is there."""
    place = write_peer(directory, peer_id)
    said = json.loads(place.summary.read_text())
    write_json(place.summary, said | {"incarnation": (1 << 32) + peer_id, "rounds_completed": ROUNDS})
    data = place.history.read_bytes()
    place.history.write_bytes(data[: len(data) * 3 // 5])


def refused(directory, peer_id):
    write_json(write_peer(directory, peer_id).summary, {"peer_id": peer_id, "status": "refused", "exit_code": 10})


def exits(directory, peer_id, code):
    line = {"kind": "exit", "time": "2026-01-01T00:00:00+00:00", "peer_id": peer_id, "exit_code": code}
    with open(directory / "exits.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


WAYS = {
    "completed": write_peer,
    "left": leave,
    "killed": lambda directory, peer_id: write_peer(directory, peer_id, rounds=2, end=False),
    "failed": lambda directory, peer_id: exits(directory, peer_id, 12),
    "never started": lambda directory, peer_id: None,
    "refused": refused,
    "cut": cut,
    "left early": lambda directory, peer_id: leave(directory, peer_id, rounds=0),
}
CASES = [
    (["completed"] * 4, "complete"),
    (["left"] * 4, "stopped"),
    (["left", "left early", "left", "left early"], "stopped"),
    (["completed", "completed", "completed", "left"], "incomplete"),
    (["completed", "completed", "completed", "killed"], "incomplete"),
    (["completed", "completed", "completed", "failed"], "incomplete"),
    (["left", "left", "left", "failed"], "incomplete"),
    (["completed", "completed", "completed", "never started"], "incomplete"),
    (["completed", "completed", "completed", "refused"], "incomplete"),
    (["completed", "completed", "completed", "cut"], "complete"),
]


def printed(directory):
    """Return the report as text."""
    text = io.StringIO()
    Console(file=text, width=400).print(report_view(build_report(directory).values))
    return text.getvalue()


@pytest.mark.parametrize(
    ("ways", "word"), CASES, ids=lambda value: value if isinstance(value, str) else ", ".join(value)
)
def test_the_state_of_a_run_is_one_word_in_every_view(tmp_path, ways, word):
    write_graph(tmp_path)
    for peer_id, way in enumerate(ways):
        WAYS[way](tmp_path, peer_id)
    report = build_report(tmp_path)
    assert report.values["state"] == peer.Run(tmp_path).metrics["state"] == word
    assert sum(report.values["states"].values()) == 4
    watcher = TestbedWatcher(tmp_path)
    watcher.refresh()
    assert watcher.view.everything()["header"]["state"] == word
    assert repr(peer.Run(tmp_path)).startswith(f"<peer.Run: {word}")
    said = next(line for line in printed(tmp_path).splitlines() if line.startswith("run "))
    assert f": {word}" in said and (word == "complete" or f"({', '.join(states(report))})" in said)
    card = model_card(
        Exported("a.pt", "", "personalized", True, (1, 0, 0)), report.run.manifest, {}, report.run.peers[0], report
    )
    assert f"| run | {word}" in card


def states(report):
    return [f"{count} {status}" for status, count in report.values["states"].items()]


def test_a_run_with_a_running_peer_is_running(tmp_path):
    write_graph(tmp_path)
    for peer_id in (0, 2, 3):
        leave(tmp_path, peer_id)
    write_peer(tmp_path, 1, rounds=2, end=False)
    with StateLock(tmp_path / "peer-1"):
        assert build_report(tmp_path).values["state"] == "running"
    assert build_report(tmp_path).values["state"] == "incomplete"


def test_a_run_of_fewer_rounds_than_planned_is_not_complete(tmp_path):
    write_graph(tmp_path)
    for peer_id in range(4):
        write_peer(tmp_path, peer_id, rounds=ROUNDS - 1 if peer_id == 2 else ROUNDS)
    values = build_report(tmp_path).values
    assert values["state"] == "incomplete"
    assert f"peer 2: completed {ROUNDS - 1} rounds, and graph.json has {ROUNDS}" in values["notes"]


def test_a_history_that_was_cut_is_named(tmp_path):
    write_graph(tmp_path)
    for peer_id in range(4):
        (cut if peer_id == 3 else write_peer)(tmp_path, peer_id)
    (note,) = build_report(tmp_path).values["notes"]
    assert note.startswith("peer 3: ") and "without an end line: it was cut" in note and f"{ROUNDS} rounds" in note


def test_a_stopped_peer_is_named_with_what_to_do(tmp_path):
    write_graph(tmp_path)
    for peer_id in range(4):
        leave(tmp_path, peer_id)
    assert build_report(tmp_path).values["notes"] == [
        "peer 0, 1, 2, 3: stopped before the end of the run; started again, it resumes"
    ]
    assert f"2 of {ROUNDS} rounds" in repr(peer.Run(tmp_path))


def test_a_peer_that_completes_after_it_has_left_is_not_left(tmp_path):
    write_graph(tmp_path)
    leave(tmp_path, 0)
    place = StateDir.of_peer(tmp_path, 0)
    with HistoryWriter(place.history, incarnation=2 << 32) as history:
        history.write("start", peer_id=0, resumed_from=2, true_cluster=0)
        history.write("end", rounds_completed=ROUNDS, metric_value=0.9)  # its summary is that of the incarnation before
    assert build_report(tmp_path).values["peers"][0]["status"] == "completed"


@pytest.fixture
def undefined(tmp_path):
    """Return a run in which peer 1 never has a value of the metric, and peer 2 none after the last round."""
    write_graph(tmp_path)
    for peer_id in range(4):
        place = StateDir.of_peer(tmp_path, peer_id)
        place.create()
        with HistoryWriter(place.history, incarnation=(1 << 32) + peer_id) as history:
            metric = Metric("auc").as_json()
            history.write("start", peer_id=peer_id, resumed_from=None, true_cluster=peer_id % 2, metric=metric)
            for index in range(ROUNDS):
                known = peer_id != 1 and not (peer_id == 2 and index == ROUNDS - 1)
                fields = {key: value for key, value in round_fields(peer_id, index).items() if key != "metric_value"}
                history.write("round", **fields, metric_value=0.5 + peer_id / 10 if known else None)
            history.write("end", rounds_completed=ROUNDS)
        known = {0: 0.5, 3: 0.8}.get(peer_id)
        said = {
            "peer_id": peer_id,
            "status": "completed",
            "incarnation": (1 << 32) + peer_id,
            "metric": metric | {"value": known},
        }
        write_json(place.summary, said | {"rounds_completed": ROUNDS})
    return tmp_path


def test_a_mean_says_over_how_many_peers_it_is(undefined):
    report = build_report(undefined)
    values = report.values
    assert values["metric_mean"] == pytest.approx(0.65) and values["metric_peers"] == 2
    assert [row["metric_value"] for row in values["peers"]] == [0.5, None, None, 0.8]
    assert any(
        text.startswith("peer 1, 2: no value of auc") and "over 2 of 4 peers" in text for text in values["warnings"]
    )
    assert "(over 2 of 4 peers)" in printed(undefined)
    assert repr(peer.Run(undefined)).endswith("auc 0.650 (over 2 of 4 peers)>")
    watcher = TestbedWatcher(undefined)
    watcher.refresh()
    assert "auc 0.650 (2 of 4 peers)" in watcher.line()
    assert watcher.view.everything()["header"]["measured"] == 2
    card = model_card(
        Exported("a.pt", "", "personalized", True, (1, 0, 0)), report.run.manifest, {}, report.run.peers[0], report
    )
    assert "auc, mean of 2 of 4 peers" in card


def test_pictures_say_over_how_many_peers_a_mean_is(undefined):
    run = RunFiles.read(undefined)
    curve = metric_curve(run)
    assert list(curve.peers) == [3] * (ROUNDS - 1) + [2]
    for figure in (metric_figure(curve, curve.round_index, "rounds", "", run.metric, 4), series_figure(run)):
        texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        assert "mean over 2 to 3 of 4 peers" in texts


def test_tables_of_experiments_say_over_how_many_peers_a_mean_is():
    shared = {"algorithm": "dfedavg", "peers": 10, "measured": 0.5}
    rows = {
        "all": [shared | {"seed": seed, "metric_peers": 10} for seed in range(3)],
        "some": [shared | {"seed": seed, "metric_peers": 10 - seed} for seed in range(3)],
    }
    said = [sentence for sentence in cautions(rows) if "no value" in sentence]
    assert said == ["some: means over 8 of 10 peers: the others have no value of the metric."]


def test_a_mean_over_all_peers_says_nothing(tmp_path):
    write_graph(tmp_path)
    for peer_id in range(4):
        write_peer(tmp_path, peer_id)
    assert build_report(tmp_path).values["metric_peers"] == 4
    assert "over" not in repr(peer.Run(tmp_path)) and "of 4 peers" not in printed(tmp_path)

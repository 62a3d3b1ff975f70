"""Reports on what by-hand runs leave, on diverged and lonely peers, and on files with wrong records."""

import json
import math
import shutil

import pytest
from test_progress import text_of
from tools.fake_run import round_fields, write_graph, write_peer
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import UsageError
from peer.store.files import write_json
from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir
from peer.view.live.watch import TestbedWatcher
from peer.view.report.faults import save_fault_picture, timeline_of
from peer.view.report.plots import save_plots
from peer.view.report.report import build_report
from peer.view.report.tables import report_view
from peer.view.state.events import LoggedEvent
from peer.view.state.places import state_directories
from peer.view.state.reducer import EventLog
from peer.view.state.run_files import RunFiles


def report_of(directory):
    values = build_report(directory).values
    text_of(report_view(values))
    return json.loads(json.dumps(values, allow_nan=False))


# ---- what a by-hand run leaves (before: an error, or an empty report with exit code 0) ----------------------------------------


def test_one_state_directory_is_a_run(tmp_path):
    place = write_peer(tmp_path, 3)
    moved = tmp_path / "my-state"
    place.root.rename(moved)
    values = report_of(moved)
    assert [row["peer_id"] for row in values["peers"]] == [3] and values["metric_mean"] == 0.89
    assert values["notes"] == [
        "1 state directory and no graph.json: peers without a state directory here are not known"
    ]
    assert (values["rounds"], values["rounds_total"], values["task"], values["clusters"]) == (6, None, None, 2)
    assert [path.name for path in save_plots(RunFiles.read(moved), tmp_path / "plots")] == [
        "metric_bytes.png",
        "metric_rounds.png",
    ]


@pytest.mark.parametrize("with_graph", [True, False])
@pytest.mark.parametrize("folder", [".", "state"])
def test_state_directories_that_were_copied_together_are_a_run(tmp_path, with_graph, folder):
    """``state/peer-<id>`` is what `peer run` makes without --state-dir; the copies here have other names."""
    for peer_id, name in enumerate(("berlin", "paris", "rome", "oslo")):
        place = write_peer(tmp_path, peer_id)
        (tmp_path / folder).mkdir(exist_ok=True)
        place.root.rename(tmp_path / folder / name)
    if with_graph:
        write_graph(tmp_path)
    values = report_of(tmp_path)
    assert values["state"] == "complete" and values["metric_mean"] == pytest.approx(0.9)
    assert values["notes"][0].startswith("4 state directories ")
    assert values["rounds_total"] == (6 if with_graph else None)


def test_two_copies_of_one_peer_and_a_peer_of_another_graph_are_notes(run_directory):
    shutil.copytree(run_directory / "peer-3", run_directory / "peer-9")
    write_peer(run_directory / "old", 3)
    shutil.copytree(run_directory / "old" / "peer-3", run_directory / "other")
    for name in ("history.jsonl", "summary.json"):
        path = run_directory / "other" / name
        path.write_text(path.read_text().replace('"peer_id":3', '"peer_id":7').replace('"peer_id": 3', '"peer_id": 7'))
    notes = report_of(run_directory)["notes"]
    assert sum("peer 3 has" in note for note in notes) == 2 and "peer 7: not in graph.json; not used" in notes


def test_nothing_found_is_an_error_that_says_where_it_looked(tmp_path):
    """Before, a graph file without state directories gave an empty report and exit code 0."""
    from peer.view.verbs.report import report

    looked = r"history.jsonl and summary.json in it, in its folders and in theirs"
    with pytest.raises(UsageError, match=r"none: expected .*, got no such directory"):
        build_report(tmp_path / "none")
    with pytest.raises(UsageError, match=looked):
        build_report(tmp_path)
    write_graph(tmp_path)
    with pytest.raises(UsageError, match=f"expected a state directory of one of the 4 peers in graph.json .{looked}"):
        build_report(tmp_path)
    import typer

    app = typer.Typer()
    app.command()(report)
    assert CliRunner().invoke(app, [str(tmp_path), "--json"]).exit_code != 0


# ---- diverged peers, refusals, peers that were alone ----------------------------------------------------------------------


def test_warnings_name_diverged_refused_and_lonely_peers_first(run_directory):
    """Before, the report of such a run said "complete" and nothing else."""
    write_json(
        StateDir.of_peer(run_directory, 1).summary,
        {"status": "diverged", "loss": math.nan, "refusals": {"non_finite": 24}},
    )
    write_json(StateDir.of_peer(run_directory, 2).summary, {"status": "refused", "refusals": {"manifest_mismatch": 3}})
    shutil.rmtree(run_directory / "peer-0")
    place = StateDir.of_peer(run_directory, 0)
    place.create()
    with HistoryWriter(place.history) as history:
        history.write("start", peer_id=0)
        history.write("refused", neighbor=1, code="graph_mismatch", reason="x")
        history.write("round", **round_fields(0, 0) | {"models_folded": 0, "neighbors_alive": 0, "folded": []})
        history.write("end", rounds_completed=1)
    values = report_of(run_directory)
    assert values["state"] == "diverged" and values["refusals"] == {
        "non_finite": 24,
        "manifest_mismatch": 3,
        "graph_mismatch": 1,
    }
    assert values["warnings"] == [
        "peer 1: diverged: models that are not finite cannot be used",
        "peer 2: refused by every neighbor, and ended; their logs name the difference",
        "24 messages refused by peer 1: NaN or infinity, or a norm beyond float32 (non_finite)",
        "3 messages refused by peer 2: the manifests differ (manifest_mismatch)",
        "1 message refused by peer 0: the graph files differ (graph_mismatch); the last after 0 s",
        "peer 0: alone: no neighbor was ever alive, so all rounds were without exchange",
    ]
    assert [row["alone"] for row in values["peers"]] == [True, False, False, False]
    shown = text_of(report_view(values))
    assert shown.startswith("warning: peer 1: diverged")


def test_rounds_alone_are_counted_and_named_and_most_of_them_are_no_complete_run(run_directory):
    for peer_id, alone, status in ((0, 2, "completed"), (1, 5, "alone")):
        place = StateDir.of_peer(run_directory, peer_id)
        with HistoryWriter(place.history, incarnation=(1 << 32) + peer_id) as history:
            for round_index in range(6, 6 + alone):
                lonely = {"models_folded": 0, "neighbors_alive": 0, "folded": [], "rounds_alone": 1}
                history.write("round", **round_fields(peer_id, round_index) | lonely)
            history.write("end", rounds_completed=6 + alone)
        code = {"completed": 0, "alone": 51}[status]
        write_json(place.summary, {"peer_id": peer_id, "status": status, "exit_code": code})
    values = report_of(run_directory)
    assert values["state"] == "alone" and values["rounds_alone"] == 7
    assert values["warnings"] == [
        "peer 0: 2 of 8 rounds without any neighbor",
        "peer 1: 5 of 11 rounds without any neighbor",
    ]
    assert [row["rounds_alone"] for row in values["peers"]] == [2, 5, 0, 0]
    assert [row["alone"] for row in values["peers"]] == [False, True, False, False]
    shown = text_of(report_view(values))
    assert "rounds alone" in shown and "alone, exit code 51" in shown


def test_a_diverged_peer_without_an_end_line_is_known_from_its_summary(run_directory):
    place = write_peer(run_directory / "x", 2, end=False)
    write_json(place.summary, {"peer_id": 2, "status": "diverged", "incarnation": (1 << 32) + 2})
    assert report_of(run_directory / "x")["state"] == "diverged"


def test_a_healthy_run_has_no_warnings(run_directory):
    assert report_of(run_directory)["warnings"] == []


def test_models_and_summaries_with_nan_give_valid_json(run_directory):
    """Before, `peer report --json` ended with "Out of range float values are not JSON compliant"."""
    import numpy as np
    from tools.fake_run import SCHEMA

    from peer.store.model_file import save_model

    save_model(StateDir.of_peer(run_directory, 1).cluster_model(0), np.full(8, np.nan, np.float32), SCHEMA)
    StateDir.of_peer(run_directory, 1).summary.write_text(
        '{"status": "completed", "loss": NaN, "run_seconds": Infinity}'
    )
    values = report_of(run_directory)
    assert any("summary.json: not used: loss: expected a finite number, got NaN" in note for note in values["warnings"])
    assert values["peers"][1]["metric_value"] == 0.91  # of the end line
    assert any("values that are not finite: not part of the consensus distance" in note for note in values["notes"])


# ---- wrong records --------------------------------------------------------------------------------------------------------

WRONG_LINES = [
    {"kind": "round"},
    {"kind": "round", "round_index": "7"},
    {"kind": "round", "round_index": 1, "metric_value": "high"},
    {"kind": "round", "round_index": 1, "metric_value": math.nan},
    {"kind": "round", "round_index": 1, "seconds": 3.0},
    {"kind": "round", "round_index": 1, "seconds": {"train": "long"}},
    {"kind": "round", "round_index": 1, "models_sent": "many"},
    {"kind": "round", "round_index": 1, "payload_bytes_sent": -1},
    {"kind": "round", "round_index": 1, "state": [1]},
    {"kind": "round", "round_index": 1, "state": {"confusion": [[1], [1, 2]]}},
    {"kind": "round", "round_index": 1, "state": {"mixture": ["x"]}},
    {"kind": "round", "round_index": 1, "cluster_index": 1.5},
    {"kind": "round", "round_index": 1, "time": "yesterday"},
    {"kind": "start", "digests": ["x"]},
    {"kind": "end", "rounds_completed": None, "metric_value": {}},
    {"kind": "refused", "code": ["x"]},
    {"kind": "neighbor", "neighbor": "\u202e", "state": 3},
    {"kind": ["round"]},
]


@pytest.mark.parametrize("line", WRONG_LINES, ids=json.dumps)
def test_a_wrong_history_line_is_a_warning(run_directory, line):
    """Before, each of these ended `peer report` or the live progress with a traceback, or gave wrong numbers."""
    before = report_of(run_directory)
    with open(StateDir.of_peer(run_directory, 1).history, "a") as file:
        file.write(json.dumps(line) + "\n")
    values = report_of(run_directory)
    (warning,) = values["warnings"]
    assert "history.jsonl: 1 line could not be read and is left out; the first is line " in warning
    assert warning.isprintable() and values | {"warnings": []} == before
    TestbedWatcher(run_directory, write_graph(run_directory)).refresh()


def test_pictures_are_drawn_of_a_run_with_all_wrong_lines(run_directory):
    expected = {path.name for path in save_plots(RunFiles.read(run_directory), run_directory / "before")}
    with open(StateDir.of_peer(run_directory, 1).history, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in WRONG_LINES)
    assert {path.name for path in save_plots(RunFiles.read(run_directory), run_directory / "report")} == expected


def test_many_wrong_lines_are_counted(run_directory):
    with open(StateDir.of_peer(run_directory, 1).history, "a") as file:
        file.write(100 * '{"kind": "round"}\n')
    (warning,) = report_of(run_directory)["warnings"]
    assert "history.jsonl: 100 lines could not be read and are left out; the first is line " in warning


@pytest.mark.parametrize(
    "summary", [[], {"status": 3}, {"metric": "x"}, {"refusals": {"a": "b"}}, {"digests": {"metric": 1}}]
)
def test_a_wrong_summary_is_a_warning(run_directory, summary):
    StateDir.of_peer(run_directory, 1).summary.write_text(json.dumps(summary))
    assert any("summary.json: not used" in line for line in report_of(run_directory)["warnings"])


def test_wrong_lines_of_a_timeline_are_left_out_and_counted(run_directory):
    right = {
        "kind": "fault",
        "time": "2026-11-22T17:00:00+00:00",
        "do": "kill",
        "undo": "restart",
        "result": "done",
        "peers": [1],
    }
    wrong = [{"kind": "fault"}, right | {"time": 3}, right | {"peers": "x"}, right | {"edges": [[1]]}]
    text = "".join(json.dumps(line) + "\n" for line in [right, *wrong])
    (run_directory / "chaos.jsonl").write_text(text)
    assert len(timeline_of(RunFiles.read(run_directory))) == 1
    (warning,) = report_of(run_directory)["warnings"]
    assert "chaos.jsonl: 4 lines could not be read and are left out; the first is line 2: " in warning
    assert save_fault_picture(RunFiles.read(run_directory), run_directory / "report")


def test_how_a_process_ended_is_in_the_report_and_a_later_start_makes_it_past(run_directory):
    right = {"kind": "exit", "time": "2126-11-22T17:00:00+00:00", "peer_id": 1, "exit_code": -9}
    wrong = right | {"time": 3, "peer_id": 0, "exit_code": 7}
    (run_directory / "exits.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (right, wrong)))
    StateDir.of_peer(run_directory, 1).summary.unlink(missing_ok=True)
    rows = report_of(run_directory)["peers"]
    assert rows[1]["exit_code"] == -9 and rows[0]["exit_code"] != 7
    log = EventLog()
    kinds = [("start", {"incarnation": 1}), ("exit", {"exit_code": 12}), ("start", {"incarnation": 2})]
    codes = []
    for at, (kind, data) in enumerate(kinds):
        log.append([LoggedEvent(float(at), 4, {"kind": kind} | data)])
        codes.append((log.newest(4).status, log.newest(4).exit_code))
    assert codes == [("dead", None), ("dead", 12), ("dead", None)]


def test_state_directories_are_found_by_name_where_no_file_has_the_id(tmp_path):
    (tmp_path / "peer-5").mkdir()
    (tmp_path / "peer-5" / "history.jsonl").write_text('{"kind": "round", "round_index": 0}\n')
    assert state_directories(tmp_path) == {5: StateDir(tmp_path / "peer-5")}

"""Live progress: reads new complete lines only; a table on a terminal, single lines in a pipe."""

import io
import json

import pytest
from rich.console import Console
from tools.fake_run import FINAL, ROUNDS, round_fields, write_graph, write_peer

from peer.core.metric import Metric
from peer.store.history import HistoryWriter
from peer.store.identity_files import StateLock
from peer.store.state_dir import StateDir
from peer.view.live.rounds_bar import RoundsBar
from peer.view.live.watch import LinePace, LiveProgress, TestbedWatcher
from peer.view.report.report import build_report
from peer.view.report.tables import ROWS_MAX, peers_table, report_view
from peer.view.state.durations import duration


def text_of(renderable, width=140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


def test_watcher_follows_appended_lines(tmp_path):
    watcher = TestbedWatcher(tmp_path, write_graph(tmp_path))
    watcher.refresh()
    assert "4 not started" in watcher.line()
    place = write_peer(tmp_path, 0, rounds=2, end=False)
    watcher.refresh()
    peer = watcher.tail.log.newest(0)
    assert (peer.phase, peer.rounds_completed, peer.last.get("cluster_index"), peer.totals.payload_bytes_sent) == (
        "start",
        2,
        1,
        128_000,
    )
    with HistoryWriter(place.history) as history:
        history.write("round", **round_fields(0, 2))
        history.write("end", metric_value=0.5)
    watcher.refresh()
    watcher.refresh()
    found = (peer.status, peer.rounds_completed, peer.last.get("metric_value"), peer.totals.payload_bytes_sent)
    assert found == ("completed", 3, 0.5, 192_000)


def test_an_incomplete_line_is_read_when_it_is_complete(tmp_path):
    watcher = TestbedWatcher(tmp_path, write_graph(tmp_path))
    place = write_peer(tmp_path, 0, rounds=1, end=False)
    whole = place.history.read_bytes()
    place.history.write_bytes(whole[:-10])
    watcher.refresh()
    assert watcher.tail.log.newest(0).phase == "start" and watcher.rounds_completed() == 0
    place.history.write_bytes(whole)
    watcher.refresh()
    assert watcher.rounds_completed() == 1


def test_the_history_of_a_peer_that_lost_its_disk_is_read_from_the_start(tmp_path):
    watcher = TestbedWatcher(tmp_path, write_graph(tmp_path))
    place = write_peer(tmp_path, 0, rounds=3, end=False)
    watcher.refresh()
    place.history.write_bytes(b"")
    watcher.refresh()
    write_peer(tmp_path, 0, rounds=1, end=False)
    watcher.refresh()
    assert watcher.rounds_completed() == 1


def test_a_terminal_shows_a_table_and_a_pipe_lines(run_directory):
    watcher = TestbedWatcher(run_directory, write_graph(run_directory))
    terminal = Console(file=io.StringIO(), force_terminal=True, width=140)
    with LiveProgress(watcher, terminal):
        pass
    assert "neighbors alive" in terminal.file.getvalue() and "2/2" in terminal.file.getvalue()
    pipe = Console(file=io.StringIO(), width=20)
    with LiveProgress(watcher, pipe) as progress:
        progress.update(force=True)
    lines = pipe.file.getvalue().splitlines()
    assert lines == [f"round {ROUNDS}/{ROUNDS}  accuracy 0.900  clusters 2+2  1.5 MB sent  4 completed"]


def test_lines_in_a_pipe_become_rare():
    pace = LinePace()
    lines = [second for second in range(3600) if pace.due(second)]
    assert lines[:4] == [0, 2, 5, 9] and 60 < len(lines) < 75


def test_rounds_of_several_runs_are_a_bar_on_a_terminal_and_lines_in_a_pipe():
    terminal = Console(file=io.StringIO(), force_terminal=True, width=140)
    pipe = Console(file=io.StringIO(), width=20)
    for console in (terminal, pipe):
        with RoundsBar(console, 50) as bar:
            for completed in range(1, 51):
                bar.update(completed, "dfca, seed 1")
    assert "50/50" in terminal.file.getvalue() and "left" in terminal.file.getvalue()
    lines = pipe.file.getvalue().splitlines()
    assert lines[0].startswith("dfca, seed 1: 1 of 50 rounds, ") and lines[0].endswith(" left")
    assert len(lines) < 25


def test_time_left_is_that_of_the_slowest_peer(tmp_path):
    graph = write_graph(tmp_path)
    for peer_id, seconds in ((0, 1), (1, 10)):
        place = StateDir.of_peer(tmp_path, peer_id)
        place.create()
        with HistoryWriter(place.history) as history:
            for index in range(-1, 3):
                kind, fields = ("start", {"peer_id": peer_id}) if index < 0 else ("round", round_fields(peer_id, index))
                history.write(kind, **fields, time=f"2026-01-01T00:00:{seconds * (index + 1):02d}Z")
    watcher = TestbedWatcher(tmp_path, graph)
    with StateLock(StateDir.of_peer(tmp_path, 0).root), StateLock(StateDir.of_peer(tmp_path, 1).root):
        watcher.refresh()
    assert watcher.line().endswith("30 s left") and "2 not started, 2 running" in watcher.line()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (86_400, "1 d"), (100_000, "1 d 3 h")],
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text


def test_report_view_shows_every_peer_and_every_note(run_directory):
    (run_directory / "peer-3" / "history.jsonl").unlink()
    shown = text_of(report_view(build_report(run_directory, 0.5).values))
    assert all(f"{accuracy:.3f}" in shown for accuracy in FINAL.values())
    assert "note: peer 3: no history; only the summary is known" in shown and "mean accuracy 0.5" in shown


def test_report_view_of_an_empty_run_shows_dashes(tmp_path):
    write_graph(tmp_path)
    write_peer(tmp_path, 0, rounds=0, end=False)
    assert "mean -, std -" in text_of(report_view(build_report(tmp_path).values))


def test_long_tables_end_with_a_count(run_directory):
    row = build_report(run_directory).values["peers"][0]
    assert "and 7 more peers" in text_of(peers_table([row] * (ROWS_MAX + 7), Metric()))


def test_progress_names_the_metric_of_the_task(tmp_path):
    """Before, live progress of a regression said "accuracy" beside a mean absolute error."""
    watcher = TestbedWatcher(tmp_path, write_graph(tmp_path))
    assert "accuracy" not in watcher.line()  # the metric is not known yet
    place = write_peer(tmp_path, 0, rounds=1, end=False)
    lines = [json.loads(line) for line in place.history.read_text().splitlines()]
    metric = Metric("mae", higher_is_better=False, share=False)
    lines[0]["metric"] = metric.as_json()
    place.history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    watcher.refresh()
    for shown in (watcher.line(), text_of(watcher.render())):
        assert "mae" in shown and "accuracy" not in shown

"""Damaged lines inside of the files of a run: every reader says, once, how many of which file it has left out, and the first.

Before, a line that is no JSON was left out in silence, and the numbers were those of the other lines.
"""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
from rich.console import Console
from tools.fake_run import write_graph
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app
from peer.lab.blocks import read_blocks
from peer.lab.jobs import read_result
from peer.store.history import read_history
from peer.store.state_dir import StateDir
from peer.view.live.ask import _silent, view_of
from peer.view.live.watch import LiveProgress, TestbedWatcher, follow
from peer.view.page.source import RunSource
from peer.view.report.report import build_report
from peer.view.state.places import state_directories
from peer.view.state.tail import RunTail
from peer.view.trackers.feed import Feed

JUNK = b"\x00\xff{ half of a li"
SENTENCE = (
    "history.jsonl: 2 lines could not be read and are left out; the first is line 3: expected a JSON object with a kind"
)


@pytest.fixture
def damaged(run_directory: Path) -> Path:
    """Return a run with two damaged lines inside of the history of peer 1, one of them valid JSON; and an empty line."""
    path = StateDir.of_peer(run_directory, 1).history
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], JUNK, b"", b"[1, 2]", *lines[2:]]))
    return run_directory


def told(lines: list[str]) -> bool:
    """Return whether these lines have the sentence, once."""
    return sum(SENTENCE in line and "peer-1" in line for line in lines) == 1


def test_report_and_the_fold_of_all_other_lines(damaged: Path, run_directory: Path) -> None:
    report = build_report(damaged)
    assert told(report.values["warnings"]) and not report.values["notes"]
    done = CliRunner().invoke(app, ["report", str(damaged), "--json"])
    assert done.exit_code == 0 and told(json.loads(done.stdout)["warnings"])
    shown = " ".join(CliRunner().invoke(app, ["report", str(damaged)]).output.split())
    assert shown.count("2 lines could not be read") == 1


def test_python_says_it_as_a_warning(damaged: Path) -> None:
    with pytest.warns(RuntimeWarning, match="2 lines could not be read") as caught:
        run = peer.Run(damaged)
    assert told([str(each.message) for each in caught]) and told(run.metrics["warnings"])


def test_progress_in_a_pipe_and_on_a_terminal(damaged: Path) -> None:
    out = io.StringIO()
    follow(damaged, Console(file=out, width=200))
    assert told(out.getvalue().splitlines())
    screen = Console(file=io.StringIO(), width=300, record=True)
    watcher = TestbedWatcher(damaged)
    watcher.refresh()
    screen.print(watcher.render())
    assert told(screen.export_text().splitlines())


def test_progress_says_it_once(damaged: Path) -> None:
    out = io.StringIO()
    with LiveProgress(TestbedWatcher(damaged), Console(file=out, width=200)) as progress:
        for _ in range(3):
            progress.update(force=True)
    assert told(out.getvalue().splitlines())


def test_page(damaged: Path) -> None:
    source = RunSource(damaged)
    assert source.refresh() and told(source.film.warnings)
    assert told(source.film.everything()["state"]["warnings"])


def test_page_of_a_history_without_any_usable_line(tmp_path: Path) -> None:
    place = StateDir.of_peer(tmp_path, 1)
    place.create()
    place.history.write_bytes(b"x\ny\n")
    source = RunSource(tmp_path)
    source.refresh()
    assert any("2 lines could not be read" in line for line in source.film.warnings)


def test_status(damaged: Path) -> None:
    graph = write_graph(damaged)
    news = [_silent(peer_id, "no answer") for peer_id in graph.ids]
    view = view_of(graph, news, state_directories(damaged))
    assert told(view.log.problems)
    for words in ([], ["--json"]):
        done = CliRunner().invoke(app, ["status", str(damaged), *words])
        assert told(done.stderr.splitlines()), words
        assert "could not be read" not in done.stdout


def test_trackers(damaged: Path) -> None:
    feed = Feed(damaged)
    feed.read()
    assert told(feed.problems)


def test_library_function(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_history(StateDir.of_peer(damaged, 1).history)
    assert told(caplog.messages)


def test_lines_that_come_while_a_run_goes_on_are_counted_with_their_numbers(damaged: Path) -> None:
    path, tail = StateDir.of_peer(damaged, 1).history, RunTail(damaged)
    tail.refresh()
    assert not tail.refresh()
    with path.open("ab") as file:
        file.write(JUNK + b"\n" + JUNK)  # the second one may still become a line
    assert tail.refresh() and "3 lines could not be read" in tail.log.problems[0]
    assert "the first is line 3:" in tail.log.problems[0]
    path.write_bytes(b"".join(b'{"kind": "start", "incarnation": %d}\n' % i for i in range(9)) + b"[]\n")
    tail.refresh()
    assert "1 line could not be read and is left out; the first is line 10:" in tail.log.problems[0]


@pytest.mark.parametrize("name", ["chaos.jsonl", "exits.jsonl", "watch.jsonl"])
def test_other_files_of_a_run(run_directory: Path, name: str) -> None:
    (run_directory / name).write_bytes(JUNK + b"\n" + b'{"kind": "gap"}\n')
    (warning,) = build_report(run_directory).values["warnings"]
    assert f"{name}: 2 lines could not be read and are left out; the first is line 1: " in warning
    assert warning in problems_of(run_directory)


def problems_of(directory: Path) -> list[str]:
    tail = RunTail(directory)
    tail.refresh()
    return tail.log.problems


def test_a_damaged_result_of_an_experiment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before, a table had the mean of fewer seeds, in silence."""
    path = tmp_path / "case" / "seed-1.json"
    path.parent.mkdir()
    path.write_bytes(JUNK)
    with caplog.at_level(logging.WARNING), pytest.raises(UsageError, match="expected results, got none"):
        read_blocks(tmp_path)
    assert len(caplog.messages) == 1 and f"{path}: could not be read and is left out" in caplog.messages[0]
    assert read_result(tmp_path / "none.json") is None and len(caplog.messages) == 1

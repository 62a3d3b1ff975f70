"""Histories in parts: readers take all of them in order, whenever a part is closed, and a crash in between loses nothing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer import failpoints
from peer.store.history import HistoryWriter, first_line, read_history
from peer.store.lines import LineFile, closed_part, parts_of
from peer.store.state_dir import StateDir
from peer.view.state.places import state_directories
from peer.view.state.tail import PeerTail


def written(place: StateDir, rounds: range, part_bytes: int = 1000) -> None:
    with HistoryWriter(place.history, incarnation=1, part_bytes=part_bytes) as history:
        if rounds.start == 0:
            history.write("start", peer_id=3, backend="real")
        for index in rounds:
            history.write("round", round_index=index, missing=[])


def rounds_in(lines: list[dict[str, Any]]) -> list[int]:
    return [line["round_index"] for line in lines if line["kind"] == "round"]


def test_a_part_is_closed_when_it_is_full_and_all_are_read(tmp_path: Path) -> None:
    place = StateDir(tmp_path)
    written(place, range(50))
    parts = parts_of(place.history)
    assert len(parts) > 4 and parts[0].name == "history.1.jsonl" and parts[-1] == place.history
    assert all(1000 <= part.stat().st_size < 1200 for part in parts[:-1])
    assert rounds_in(read_history(place.history)) == list(range(50))
    assert json.loads(first_line(place.history))["kind"] == "start"
    assert state_directories(tmp_path) == {3: place}
    written(place, range(50, 60))
    assert rounds_in(read_history(place.history)) == list(range(60))
    target = place.set_aside()
    assert parts_of(place.history) == [] and rounds_in(read_history(target / "history.jsonl")) == list(range(60))


def test_a_reader_that_follows_reads_each_line_once(tmp_path: Path) -> None:
    """Before each read some rounds are written: none, some, or so many that parts are closed in between."""
    place = StateDir(tmp_path)
    tail, found, done = PeerTail(3, place), [], 0
    for more in (1, 0, 3, 30, 0, 1, 70, 2, 0):
        written(place, range(done, done + more))
        done += more
        found += [event.data for event in tail.read(processes=False) if event.data["kind"] in ("round", "lost")]
        assert rounds_in(found) == list(range(done)) and len(found) == done
    assert len(parts_of(place.history)) > 8


def test_a_reader_that_follows_begins_again_with_another_run(tmp_path: Path) -> None:
    place = StateDir(tmp_path)
    tail = PeerTail(3, place)
    written(place, range(50))
    list(tail.read(processes=False))
    for part in parts_of(place.history):
        part.unlink()
    written(place, range(30))
    events = [event.data for _ in range(2) for event in tail.read(processes=False)]
    assert events[0]["kind"] == "lost"
    assert rounds_in(events) == list(range(30))


def test_a_part_that_a_crash_closed_is_followed_by_a_new_one(tmp_path: Path) -> None:
    """The process ends between the two steps, so there is no file that grows."""
    place = StateDir(tmp_path)
    failpoints.arm("part.closed=error:EIO@1")
    try:
        with pytest.raises(StorageError):
            written(place, range(50))
    finally:
        failpoints.arm("")
    assert not place.history.exists() and closed_part(place.history, 1).exists()
    lost = len(rounds_in(read_history(place.history)))
    assert lost > 0
    written(place, range(lost, 50))
    assert rounds_in(read_history(place.history)) == list(range(50))


def test_a_part_that_cannot_be_begun_goes_on_to_grow(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    file = LineFile(path, "audit.write", part_bytes=10)
    file.append(b"the first line\n")
    failpoints.arm("part.closed=error:EMFILE@1")
    try:
        with pytest.raises(StorageError, match="Too many open files"):
            file.close_part()
        file.append(b"the second\n")
        file.close_part()
    finally:
        failpoints.arm("")
    file.append(b"the third\n")
    assert [part.read_bytes() for part in parts_of(path)] == [b"the first line\nthe second\n", b"the third\n"]
    assert file.last_line() == b"the third"
    file.close()


@pytest.mark.parametrize("size", [0, 5, 70_000, 200_000])
def test_the_last_line_of_all_parts(tmp_path: Path, size: int) -> None:
    file = LineFile(tmp_path / "log.jsonl", "audit.write")
    assert file.last_line() == b""
    for line in (b"first", b"x" * size):
        file.append(line + b"\n")
    assert file.last_line() == b"x" * size
    file.close_part()
    assert file.last_line() == b"x" * size
    file.close()


def test_a_line_that_cannot_be_written_leaves_none(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "log.jsonl", "audit.write")
    file.append(b"whole\n")
    failpoints.arm("audit.write=error:ENOSPC@1")
    try:
        with pytest.raises(StorageError, match="disk is full"):
            file.append(b"none\n")
    finally:
        failpoints.arm("")
    file.append(b"next\n", durable=True)
    assert file.path.read_bytes() == b"whole\nnext\n" and os.strerror(errno.ENOSPC)
    file.close()

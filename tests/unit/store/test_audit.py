"""The audit log: what was changed, removed or put in between is found, over parts, restarts and crashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer import failpoints
from peer.store.audit import AUDIT_KINDS, AuditLog, verify
from peer.store.lines import parts_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def written(path: Path, *numbers: int, part_bytes: int = 1 << 20) -> None:
    log = AuditLog(path, part_bytes)
    log.write("start", peer_id=3)
    for number in numbers:
        log.write("sent", neighbor=number, bytes=10 * number)
    log.close()


def test_lines_of_several_processes_and_parts_are_one_chain(path: Path) -> None:
    for begin in range(0, 30, 10):
        written(path, *range(begin, begin + 10), part_bytes=900)
    assert len(parts_of(path)) > 4
    found = verify(path)
    assert (found.lines, found.problem) == (33, "")
    lines = [json.loads(line) for part in parts_of(path) for line in part.read_text().splitlines()]
    assert [line["neighbor"] for line in lines if line["kind"] == "sent"] == list(range(30))
    assert lines[0]["before"] == "" and all(line["before"] for line in lines[1:])


@pytest.mark.parametrize("place", [0, 1, 5, 10])
def test_each_change_is_found_at_the_line_after_it(path: Path, place: int) -> None:
    written(path, *range(10))
    whole = path.read_text().splitlines(keepends=True)
    changes = {
        "changed": [*whole[:place], whole[place].replace("20", "21", 1), *whole[place + 1 :]],
        "removed": [*whole[:place], *whole[place + 1 :]],
        "twice": [*whole[: place + 1], *whole[place:]],
        "blank": [*whole[:place], "\n", *whole[place:]],
        "no object": [*whole[:place], "[]\n", *whole[place:]],
    }
    for what, lines in changes.items():
        path.write_text("".join(lines))
        found = verify(path)
        if place == 10 and what in ("changed", "removed"):  # nothing follows the last line
            assert not found.problem and not verify(path, holds=_last(whole)).found
            continue
        assert found.problem.startswith(f"audit.jsonl line {place + (2 if what in ('changed', 'twice') else 1)}: "), (
            what
        )
        assert found.lines < len(lines)


def _last(whole: list[str]) -> str:
    from peer.store.audit import hash_of

    return hash_of(whole[-1].rstrip("\n").encode())


def test_a_missing_part_is_found(path: Path) -> None:
    written(path, *range(30), part_bytes=900)
    parts = parts_of(path)
    parts[0].write_bytes(b"")
    assert "expected before nothing" in verify(path).problem


def test_a_removed_end_is_found_by_a_hash_that_was_noted(path: Path) -> None:
    written(path, 1, 2, 3)
    noted = verify(path).last
    written(path, 4)
    assert verify(path, holds=noted).found
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    found = verify(path, holds=noted)
    assert not found.problem and not found.found


def test_a_crash_in_a_line_is_mended_and_told(path: Path) -> None:
    written(path, 1)
    with path.open("ab") as file:
        file.write(b'{"kind":"sent","nei')
    written(path, 2)
    last = [json.loads(line) for line in path.read_text().splitlines()][-2:]
    assert last[0]["kind"] == "start" and last[0]["cut_bytes"] == 19 and "cut_bytes" not in last[1]
    assert verify(path).problem == ""


def test_a_line_that_could_not_be_written_breaks_no_chain(path: Path) -> None:
    log = AuditLog(path)
    log.write("start")
    failpoints.arm("audit.write=error:ENOSPC@1")
    try:
        with pytest.raises(StorageError, match="disk is full"):
            log.write("sent", neighbor=1)
    finally:
        failpoints.arm("")
    log.write("sent", neighbor=2)
    log.close()
    assert (verify(path).lines, verify(path).problem) == (2, "")


def test_only_known_kinds_are_written(path: Path) -> None:
    with pytest.raises(AssertionError):
        AuditLog(path).write("other")
    assert "sent" in AUDIT_KINDS

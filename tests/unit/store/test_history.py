"""The history has complete lines only, also after a crash or a disk error."""

import json

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer.store.history import HistoryWriter, read_history
from peer.store.records import KINDS, Latest, Line, fields_of


def test_lines_are_stamped_and_read_back(tmp_path):
    with HistoryWriter(tmp_path / "h.jsonl", incarnation=7) as history:
        history.write("start", peer_id=3)
        history.write("round", round_index=0, metric_value=0.5, t=12.5)
    first, second = read_history(tmp_path / "h.jsonl")
    assert first["kind"] == "start" and first["incarnation"] == 7 and first["t"] >= 0 and "T" in first["time"]
    assert (second["kind"], second["metric_value"], second["t"]) == ("round", 0.5, 12.5)


@pytest.mark.parametrize("tail", [b'{"kind":"rou', b"\x00" * 70_000, b'{"kind":"round"}'])
def test_an_incomplete_last_line_is_ignored_then_removed(tmp_path, tail):
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as history:
        history.write("round", round_index=0)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert len(read_history(path)) == 1
    with HistoryWriter(path) as history:
        assert path.read_bytes() == whole
        history.write("round", round_index=1)
    assert [line["round_index"] for line in read_history(path)] == [0, 1]


def test_a_file_of_one_incomplete_line_becomes_empty(tmp_path):
    path = tmp_path / "h.jsonl"
    path.write_bytes(b'{"kind":')
    HistoryWriter(path).close()
    assert path.read_bytes() == b""


def test_fragments_in_the_middle_are_skipped(tmp_path):
    path = tmp_path / "h.jsonl"
    path.write_bytes(b'{"kind":"round","round_index":0}\n\x00\x00\n[1]\n{"no":1}\n{"kind":"end"}\n')
    assert [line["kind"] for line in read_history(path)] == ["round", "end"]


def test_no_file_is_an_empty_history(tmp_path):
    assert read_history(tmp_path / "none.jsonl") == []


def test_numpy_and_not_finite_numbers_become_strict_json(tmp_path):
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as history:
        history.write("round", loss=float("nan"), u=np.array([0.5, np.inf]), n=np.int64(3), missing={2, 1})
    line = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (line["loss"], line["u"], line["n"], line["missing"]) == (None, [0.5, None], 3, [1, 2])


def test_unknown_kinds_and_types_are_refused(tmp_path):
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        with pytest.raises(ValueError, match=r"expected kind to be one of start.*, got 'rounds'"):
            history.write("rounds")
        with pytest.raises(TypeError, match="object"):
            history.write("round", x=object())
    assert read_history(tmp_path / "h.jsonl") == []


def test_a_full_disk_is_a_storage_error(monkeypatch):
    monkeypatch.setattr("peer.store.lines.ordinary_file", lambda path: path)  # which refuses a device
    with HistoryWriter("/dev/full") as history, pytest.raises(StorageError, match="The disk is full"):
        history.write("round", round_index=0)


def test_a_missing_directory_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot open"):
        HistoryWriter(tmp_path / "none" / "h.jsonl")


def test_values_of_the_metric_have_one_name_whatever_the_task():
    named = {name for kind in KINDS for name in fields_of(kind)}
    assert {"metric_value", "metric_train", "metric_shared", "metric_before_final", "metric_after_final"} <= named
    assert not [name for name in named if "accuracy" in name]


def test_the_types_of_lines_are_the_table():
    """A field without an entry would be in no page, and a field that `Latest` lacks would have no type for readers."""
    for kind, line in KINDS.items():
        assert line.__annotations__.keys() == {"kind", *Line.__annotations__, *fields_of(kind)}, kind
    ends = {name for kind in ("start", "round", "leave", "end") for name in fields_of(kind)}
    assert Latest.__annotations__.keys() == ends | Line.__annotations__.keys()

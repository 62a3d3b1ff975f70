"""`peer watch`: what it says before there is a run."""

from __future__ import annotations

from coordinator_free_bootstrap import make_graph, save_graph
from peer.store.history import HistoryWriter
from peer.view.verbs.watch import no_run_yet


def test_a_directory_is_without_a_run_until_a_graph_or_a_history_lies_in_it(tmp_path):
    assert no_run_yet(tmp_path)
    assert not no_run_yet(tmp_path / "missing")  # an error of its own
    (tmp_path / "notes.txt").write_text("x")
    assert no_run_yet(tmp_path)
    (tmp_path / "peer-0").mkdir()
    with HistoryWriter(tmp_path / "peer-0" / "history.jsonl") as history:
        history.write("start", peer_id=0)
    assert not no_run_yet(tmp_path)
    (tmp_path / "b").mkdir()
    save_graph(make_graph("ring", 3), tmp_path / "b" / "graph.json")
    assert not no_run_yet(tmp_path / "b")

"""The collaboration graph in reports: links of the last evaluated round, symmetry, links to other clusters and renamed peers."""

import pytest
from matplotlib.colors import to_hex
from rich.console import Console

from coordinator_free_bootstrap import Manifest, make_graph
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.graph_file import save_graph
from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir
from peer.view.report.collaboration import collaboration, links
from peer.view.report.plots import COLORS, collaboration_figure, save_plots
from peer.view.report.report import build_report
from peer.view.report.tables import summary_table
from peer.view.state.run_files import RunFiles


def run_of(tmp_path, chosen, true, **manifest):
    tmp_path.mkdir(exist_ok=True)
    made = make_graph("complete", len(chosen), seed=1)
    save_graph(Graph(made.nodes, made.edges, Manifest(**manifest)), tmp_path / "graph.json")
    for i, (others, cluster) in enumerate(zip(chosen, true, strict=True)):
        place = StateDir.of_peer(tmp_path, i)
        place.create()
        with HistoryWriter(place.history) as history:
            history.write("start", peer_id=i, true_cluster=cluster)
            first = {"candidates": [0], "collaborators": [0]}
            history.write("round", round_index=0, metric_value=0.1, state=first)
            last = {} if others is None else {"candidates": [0, 1, 2], "collaborators": others, "gain": 0.5}
            history.write("round", round_index=1, metric_value=0.2, state=last)
    return tmp_path


def test_links_of_the_last_round(tmp_path):
    run = RunFiles.read(run_of(tmp_path, [[1, 2], [0], [], [0]], [0, 0, 1, 1], algorithm="dpfl", split="label_flip"))
    found = collaboration(run)
    assert found["collaborators"] == {"0": [1, 2], "1": [0], "2": [], "3": [0]}
    assert found["candidates_mean"] == 3 and found["collaborators_mean"] == 1
    assert found["sparsity"] == pytest.approx(1 - 4 / 12)
    assert found["symmetry"] == 2 / 4
    assert found["links_to_other_clusters"] == 2 / 4
    assert found["links_to_renamed"] == pytest.approx(1 / 3), "0 -> 2, of the three links of peers 0 and 1"
    assert found["links_to_renamed_first"] == 0, "at first all chose peer 0"


def test_report_and_table(tmp_path):
    report = build_report(run_of(tmp_path, [[1], [0]], [0, 1], algorithm="dpfl", split="label_flip"))
    assert report.values["collaboration"]["links_to_renamed"] == 1.0
    console = Console(width=160)
    with console.capture() as captured:
        console.print(summary_table(report.values))
    assert "1.0 of 3.0 candidates (mean over peers)" in captured.get()
    assert "100% of the others' to peers with renamed labels" in captured.get().replace("100.0%", "100%")


def test_the_picture_has_a_square_for_each_link(tmp_path):
    run = RunFiles.read(run_of(tmp_path / "a", [[1, 2], [0], [], [0]], [0, 0, 1, None], algorithm="dpfl"))
    (axes,) = collaboration_figure(run, links(run), "title").axes
    squares = {(round(p.get_y() + 0.45), round(p.get_x() + 0.45)): to_hex(p.get_facecolor()) for p in axes.patches}
    within, across, unknown = (COLORS[i].lower() for i in (0, 1, 7))
    assert squares == {(0, 1): within, (1, 0): within, (0, 2): across, (3, 0): unknown}
    assert "collaboration.png" in [path.name for path in save_plots(run, tmp_path / "plots")]


def test_no_picture_where_nobody_chooses(tmp_path):
    run = RunFiles.read(run_of(tmp_path, [None, None], [0, 0]))
    assert "collaboration.png" not in [path.name for path in save_plots(run, tmp_path / "plots")]


def test_without_links_and_without_such_an_algorithm(tmp_path):
    lonely = collaboration(RunFiles.read(run_of(tmp_path / "a", [[], []], [None, None])))
    assert lonely["symmetry"] is None and lonely["sparsity"] == 1 and lonely["links_to_other_clusters"] is None
    assert collaboration(RunFiles.read(run_of(tmp_path / "b", [None, None], [0, 0]))) is None

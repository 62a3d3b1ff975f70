"""Mixtures compared with the true clusters: matching over all peers, errors, collapse, models of other algorithms."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Manifest, make_graph
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.graph_file import save_graph
from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir
from peer.view.report import soft_clusters
from peer.view.state.run_files import RunFiles

SWAPPED = [np.array([[2, 8], [9, 1]]), np.array([[0, 10], [10, 0]])]  # [true, label]: label 1 means distribution 0


def run_of(tmp_path, lines, **manifest) -> RunFiles:
    made = make_graph("ring", len(lines), seed=1)
    save_graph(Graph(made.nodes, made.edges, Manifest(**manifest)), tmp_path / "graph.json")
    for i, rows in enumerate(lines):
        place = StateDir.of_peer(tmp_path, i)
        place.create()
        with HistoryWriter(place.history) as history:
            history.write("start", peer_id=i)
            for t, row in enumerate(rows):
                history.write("round", round_index=t, **row)
            history.write("end")
    return RunFiles.read(tmp_path)


def test_labels_are_matched_once_over_all_peers():
    assert soft_clusters.sample_accuracy(SWAPPED) == pytest.approx(37 / 40)
    assert soft_clusters.mixture_error(SWAPPED) == pytest.approx(np.mean([[1 / 20, 1 / 20], [0, 0]]))
    most_in_one_label = [np.array([[9, 1], [8, 2]])]  # alone, the matching would be the other one
    alone = soft_clusters.sample_accuracy(most_in_one_label)
    assert alone == pytest.approx(11 / 20)


def test_tables_of_different_shapes_are_padded():
    tables = [
        np.array([[5, 0, 1]]),
        np.array([[0, 4, 0], [0, 0, 6]]),
    ]  # a peer without the second distribution; 3 labels
    padded, label_of = soft_clusters.matched(tables)
    assert padded.shape == (2, 3, 3) and list(label_of[:2]) == [0, 2]
    assert soft_clusters.sample_accuracy(tables) == pytest.approx(11 / 16)
    assert 0 < soft_clusters.mixture_error(tables) < 0.5


def test_collapse_is_one_cluster_with_nearly_all_samples():
    assert soft_clusters.collapse([[0.96, 0.04], [1.0, 0.0]])
    assert not soft_clusters.collapse([[1.0, 0.0], [0.0, 1.0]])
    assert not soft_clusters.collapse([[0.95, 0.05]])


def test_a_run_reports_its_last_mixtures(tmp_path):
    early = {"metric_value": 0.1, "state": {"mixture": [0.5, 0.5], "confusion": [[5, 5], [5, 5]]}}
    late = [{"metric_value": 0.5, "state": {"mixture": [0.9, 0.1], "confusion": t.tolist()}} for t in SWAPPED]
    run = run_of(tmp_path, [[early, last] for last in late] + [[early, late[0]]])
    assert soft_clusters.mix_err(run) == pytest.approx(soft_clusters.mixture_error([*SWAPPED, SWAPPED[0]]))
    assert soft_clusters.sample_cluster_accuracy(run) == pytest.approx(54 / 60)
    assert soft_clusters.collapsed(run) is False


def test_a_run_reports_what_explains_the_labels(tmp_path):
    states = [
        {"class_explains": share, "confusion": table} for share, table in ((1.0, [[8, 2], [2, 8]]), (0.9, [[6, 4]]))
    ]
    run = run_of(tmp_path, [[{"metric_value": 0.5, "state": state}] for state in states] + [[{"metric_value": 0.5}]])
    assert soft_clusters.class_explains(run) == pytest.approx(0.95)
    assert soft_clusters.truth_explains(run) == pytest.approx((0.8 + 0.6) / 2)


def test_unknown_values_are_none(tmp_path):
    run = run_of(tmp_path, [[{"metric_value": 0.5}]] * 3)
    assert soft_clusters.mix_err(run) is None and soft_clusters.sample_cluster_accuracy(run) is None
    assert soft_clusters.collapsed(run) is None and soft_clusters.final_phase(run) is None


@pytest.mark.parametrize(
    ("manifest", "dfca"), [({}, 4 * 2 * 3), ({"participation": 0.5}, None), ({"dynamic_edges": 0.5}, None)]
)
def test_the_models_of_other_algorithms_follow_the_schedule(tmp_path, manifest, dfca):
    run = run_of(tmp_path, [[{}] * 3] * 4, clusters=3, **manifest)
    found = soft_clusters.models_compared(run)
    assert found["fedem"] == 3 * found["dfca"]
    assert found["dfca"] == dfca if dfca else 0 < found["dfca"] < 24

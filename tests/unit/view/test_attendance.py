"""A peer that was hardly there is a warning of the report and of the status of a finished run, from the histories alone."""

import json
import shutil
from dataclasses import replace

import pytest
from tools.fake_run import ROUNDS, round_fields, write_graph, write_peer

from coordinator_free_bootstrap.graph_file import save_graph
from coordinator_free_bootstrap.schedule import edge_is_up, is_active
from peer.core.participation import PRESENT_SHARE
from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir
from peer.view.live.status_table import notes
from peer.view.report.report import build_report
from peer.view.state.run_files import RunFiles
from peer.view.state.view import View

AWAY = [0, 1, 2]  # three of six rounds


def write_run(directory, missing, **run):
    """Write a ring of four completed peers; ``missing(neighbor, round)`` says whether the line names peer 3."""
    graph = write_graph(directory)
    save_graph(replace(graph, manifest=graph.manifest.model_copy(update=run)), directory / "graph.json")
    for peer_id in range(4):
        place = write_peer(directory, peer_id)
        lines = [json.loads(line) for line in place.history.read_text().splitlines()]
        place.history.unlink()
        with HistoryWriter(place.history, incarnation=1 << 32) as history:
            for line in lines:
                if line["kind"] == "round":
                    line["missing"] = [3] if peer_id in (0, 2) and missing(peer_id, line["round_index"]) else []
                history.write(**{key: value for key, value in line.items() if key != "incarnation"})
    return directory


def said(directory):
    """Return the warnings on peers that were hardly there, of the report; the status must say the same."""
    warnings = [line for line in build_report(directory).values["warnings"] if "took part" in line]
    run = RunFiles.read(directory)
    view = View(run.log, run.graph)
    assert [line for line in notes(view, view.log.state()) if "took part" in line] == [
        f"warning: {w}" for w in warnings
    ]
    return warnings


def test_a_peer_that_its_neighbors_missed_in_half_of_the_rounds_is_named(tmp_path):
    assert said(write_run(tmp_path, lambda _, t: t in AWAY)) == ["peer 3 took part in 3 of 6 rounds"]


def test_the_threshold_is_the_declared_share(tmp_path):
    few = int(ROUNDS * (1 - PRESENT_SHARE))
    assert said(write_run(tmp_path, lambda _, t: t < few)) == []


def test_a_peer_that_one_neighbor_heard_took_part(tmp_path):
    assert said(write_run(tmp_path, lambda neighbor, t: neighbor == 0)) == []


def test_a_peer_that_never_arrived_is_named(tmp_path):
    directory = write_run(tmp_path, lambda _, t: True)
    shutil.rmtree(directory / "peer-3")
    assert said(directory) == ["peer 3 took part in 0 of 6 rounds"]


def test_to_sit_out_is_no_absence(tmp_path):
    share, seed = 0.5, 1
    active = [t for t in range(ROUNDS) if is_active(seed, t, 3, share)]
    assert 0 < len(active) < ROUNDS, "the case shows nothing"
    assert said(write_run(tmp_path, lambda _, t: False, participation=share, seed=seed)) == []


def test_an_edge_that_is_down_says_nothing_of_a_peer(tmp_path):
    p, seed = 0.5, 1
    up = [t for t in range(ROUNDS) if any(edge_is_up(seed, t, 3, n, p) for n in (0, 2))]
    found = said(
        write_run(tmp_path, lambda n, t: edge_is_up(seed, t, 3, n, p), dynamic_edges=p, seed=seed)
    )  # missed wherever it was expected
    assert found == [f"peer 3 took part in {ROUNDS - len(up)} of 6 rounds"]


@pytest.mark.parametrize("rounds", [2, ROUNDS])
def test_in_async_pace_the_own_history_counts(tmp_path, rounds):
    """No round waits there: who left early has fewer rounds than the others."""
    directory = write_run(tmp_path, lambda _, t: False, pace="async")
    place = StateDir.of_peer(directory, 3)
    place.history.unlink()
    with HistoryWriter(place.history) as history:
        history.write("start", peer_id=3)
        for t in range(rounds):
            history.write("round", **round_fields(3, t))
        history.write("leave", rounds_completed=rounds)
    assert said(directory) == ([] if rounds == ROUNDS else ["peer 3 took part in 2 of 6 rounds"])

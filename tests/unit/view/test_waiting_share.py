"""The share of a run's time in which peers waited, and for whom: a delay that is passed on counts for its cause."""

import io

import pytest
from rich.console import Console
from tools.fake_run import strict, write_graph

from peer.store.history import HistoryWriter
from peer.store.state_dir import StateDir
from peer.view.report.report import build_report
from peer.view.report.tables import report_view

ROUNDS = 4


def write(directory, waits):
    """Write the histories of a ring of four; ``waits``: peer -> (seconds, awaited) in each round but the first."""
    write_graph(directory)
    for peer_id, (seconds, awaited) in waits.items():
        place = StateDir.of_peer(directory, peer_id)
        place.create()
        with HistoryWriter(place.history, incarnation=1 << 32) as history:
            history.write("start", peer_id=peer_id)
            for t in range(ROUNDS):
                known = {"awaited": awaited} if t and awaited is not None else {}
                history.write("round", round_index=t, seconds={"train": 1.0, "wait": seconds if t else 0.0}, **known)


def waiting(directory):
    return strict(build_report(directory).values)["waiting"]


def test_a_peer_far_from_the_slow_one_waits_for_it_too(tmp_path):
    """Peers 1 and 3 wait for peer 0, and peer 2 for peer 1."""
    write(tmp_path, {0: (0.0, None), 1: (4.0, 0), 2: (4.0, 1), 3: (4.0, 0)})
    found = waiting(tmp_path)
    assert found["share"] == pytest.approx(36 / 52)
    assert found["for"] == [{"peer_id": 0, "share": 1.0}]
    console = Console(width=200, file=io.StringIO())
    console.print(report_view(build_report(tmp_path).values))
    assert "69% of the peers' time; of it for peer 0: 100%" in console.file.getvalue()


def test_a_neighbor_that_waited_little_is_the_cause_itself(tmp_path):
    write(tmp_path, {0: (0.0, None), 1: (1.0, 0), 2: (4.0, 1), 3: (0.0, None)})
    assert [row["peer_id"] for row in waiting(tmp_path)["for"]] == [1, 0]


def test_a_delay_of_the_round_before_is_passed_on(tmp_path):
    """Peer 2 waits for peer 1, which waited for peer 0 in the round before."""
    write(tmp_path, {0: (0.0, None), 1: (0.0, None), 2: (0.0, None), 3: (0.0, None)})
    for peer_id, t, awaited in ((1, ROUNDS, 0), (2, ROUNDS + 1, 1)):
        with HistoryWriter(StateDir.of_peer(tmp_path, peer_id).history, incarnation=1 << 32) as history:
            history.write("round", round_index=t, seconds={"wait": 4.0}, awaited=awaited)
    assert waiting(tmp_path)["for"] == [{"peer_id": 0, "share": 1.0}]


def test_peers_that_wait_for_each_other_end_the_search(tmp_path):
    write(tmp_path, {0: (1.0, 1), 1: (1.0, 0), 2: (0.0, None), 3: (0.0, None)})
    assert [row["share"] for row in waiting(tmp_path)["for"]] == [0.5, 0.5]


@pytest.mark.parametrize("awaited", [99, 2, None])
def test_peers_that_are_not_there_or_wait_for_themselves_end_the_search(tmp_path, awaited):
    write(tmp_path, {0: (0.0, None), 1: (0.0, None), 2: (4.0, awaited), 3: (0.0, None)})
    assert [row["peer_id"] for row in waiting(tmp_path)["for"]] == [awaited] * (awaited is not None)


def test_without_rounds_nothing_is_known(tmp_path):
    write_graph(tmp_path)
    place = StateDir.of_peer(tmp_path, 0)
    place.create()
    with HistoryWriter(place.history, incarnation=1 << 32) as history:
        history.write("start", peer_id=0)
    assert waiting(tmp_path) is None

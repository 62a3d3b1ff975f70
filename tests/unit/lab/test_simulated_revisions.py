"""Simulated runs under several graph files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import peer
from coordinator_free_bootstrap.errors import GraphError, UsageError
from coordinator_free_bootstrap.revision import next_graph, with_changes
from peer.lab.simulated import simulate

SMALL = {"samples_per_peer": 60, "test_per_peer": 30}


def following(graph, **how):
    return next_graph(graph, with_changes(graph, **how))


@pytest.fixture(scope="module")
def first():
    return peer.Graph.make("complete", peers=4, run={"algorithm": "dfedavg", "rounds": 6, "split_options": SMALL})


def test_a_change_of_nothing_but_the_files_name_changes_no_bit(first):
    second = replace(first, continues=(first.run_digest,), from_round=3)
    whole, changed = simulate(first, None), simulate(first, None, revisions=[second])
    for i in first.ids:
        assert np.array_equal(*(run[i].host.workspace.models.model(0) for run in (whole, changed)))
        assert [line[0] for line in changed[i].recording.lines].count("start") == 2


def test_edges_settings_and_peers_change_in_their_round(first):
    second = following(first, remove=[3], remove_edges=[(0, 1)], from_round=2)
    run = second.manifest.model_copy(update={"local_epochs": 1})
    third = following(second, manifest=run, add=[(3, "127.0.0.1:9")], add_edges=[(3, 0), (3, 2)], from_round=4)
    peers = simulate(first, None, revisions=[second, third])
    assert sorted(peers) == [0, 1, 2, 3]
    rounds = {i: [f for kind, f in each.recording.lines if kind == "round"] for i, each in peers.items()}
    assert [f["neighbors_alive"] for f in rounds[0]] == [3, 3, 1, 1, 2, 2]
    assert [f["round_index"] for f in rounds[3]] == [4, 5], "a new peer takes the models of its neighbors"
    assert {f["models_folded"] for f in rounds[3]} == {2}


@pytest.mark.parametrize("pace", ["lockstep", "async"])
def test_a_new_peer_behind_a_new_one_catches_up_with_it(pace):
    run = {"algorithm": "dfedavg", "rounds": 12, "split_options": SMALL, "pace": pace}
    graph = peer.Graph.make("line", peers=2, run=run)
    new = [(n, f"127.0.0.1:{n}") for n in (2, 3)]
    peers = simulate(graph, None, revisions=[following(graph, add=new, add_edges=[(1, 2), (2, 3)], from_round=6)])
    skipped = {
        i: [fields["to_round"] for kind, fields in each.recording.lines if kind == "caught_up"]
        for i, each in peers.items()
    }
    assert skipped == {0: [], 1: [], 2: [6], 3: [6]}


def test_files_that_no_run_can_follow_are_refused(first):
    without_round = following(first, remove=[3])
    with pytest.raises(UsageError, match="revisions: from_round: expected 1 or more, got 0"):
        simulate(first, None, revisions=[without_round])
    with pytest.raises(GraphError, match="which does not name it"):
        simulate(
            without_round,
            None,
            revisions=[replace(first, from_round=1, manifest=first.manifest.model_copy(update={"seed": 3}))],
        )


def test_from_python(first):
    second = following(first, remove=[3], from_round=2)
    run = peer.simulate(first, revisions=[second], progress=False)
    assert sorted(set(run.frame()["peer_id"])) == [0, 1, 2]

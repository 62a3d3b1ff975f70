"""Dynamic edges and participation: both ends of an edge agree, and the rates are those of the manifest."""

import itertools

import pytest

from coordinator_free_bootstrap import Manifest, edge_is_up, is_active, make_graph, neighbors_in_round
from coordinator_free_bootstrap.seeds import uniform


def test_both_ends_of_an_edge_agree_in_every_round():
    graph = make_graph("complete", 10, manifest=Manifest(dynamic_edges=0.4, seed=5))
    for round_index, (i, j) in itertools.product(range(20), itertools.combinations(range(10), 2)):
        up = edge_is_up(5, round_index, i, j, 0.4)
        assert (
            up == (j in neighbors_in_round(graph, round_index, i)) == (i in neighbors_in_round(graph, round_index, j))
        )


def test_edges_are_down_at_rate_p_and_change_with_round_and_seed():
    edges, rounds, p = list(itertools.combinations(range(25), 2)), 40, 0.3
    up = {(r, e): edge_is_up(7, r, *e, p) for r in range(rounds) for e in edges}
    # 12,000 independent draws: four standard deviations of the share are 0.017.
    assert sum(up.values()) / len(up) == pytest.approx(1 - p, abs=0.017)
    assert any(up[0, e] != up[1, e] for e in edges)
    assert any(up[0, e] != edge_is_up(8, 0, *e, p) for e in edges)


def test_default_rates_keep_all_edges_up_and_all_peers_active():
    assert all(edge_is_up(1, r, 0, 1, 0.0) for r in range(1000))
    assert all(is_active(1, r, 3, 1.0) for r in range(1000))


def test_participation_has_the_given_rate_and_differs_by_peer_and_round():
    active = [[is_active(3, r, i, 0.25) for i in range(50)] for r in range(100)]
    assert sum(map(sum, active)) / 5000 == pytest.approx(0.25, abs=0.025)
    assert active[0] != active[1]
    assert [row[0] for row in active] != [row[1] for row in active]


def test_the_schedule_never_changes_between_releases():
    assert [edge_is_up(1, r, 2, 7, 0.5) for r in range(8)] == [True, False, True, False, False, False, False, False]
    assert [is_active(1, r, 2, 0.5) for r in range(8)] == [True, False, False, True, True, True, False, False]


def test_uniform_is_below_one():
    draws = [uniform(1, "x", i) for i in range(1000)]
    assert 0 <= min(draws) < 0.01
    assert 0.99 < max(draws) < 1

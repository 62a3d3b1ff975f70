"""The spectral gap: known graphs, the bound that it promises, and the two ways to compute it."""

import math

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, Node, make_graph
from coordinator_free_bootstrap.mixing import _metropolis, rounds_to_agree, spectral_gap


@pytest.mark.parametrize(
    ("kind", "peers", "gap"),
    [
        ("complete", 6, 1.0),
        ("ring", 12, 1 - (1 + 2 * math.cos(2 * math.pi / 12)) / 3),  # W is circulant: (1 + 2 cos(2 pi k / N)) / 3
        ("star", 5, 0.2),  # two leaves differ by 4/5 after a round
        ("line", 2, 1.0),
    ],
)
def test_the_gap_of_known_graphs(kind, peers, gap):
    assert spectral_gap(make_graph(kind, peers)) == pytest.approx(gap, abs=1e-9)


def test_both_ways_to_compute_it_agree(monkeypatch):
    graph = make_graph("erdos-renyi", 40, seed=2, degree=5)
    dense = spectral_gap(graph)
    monkeypatch.setattr("coordinator_free_bootstrap.mixing.DENSE_PEERS_MAX", 0)
    assert spectral_gap(graph) == pytest.approx(dense, abs=1e-6)


@pytest.mark.parametrize("kind", ["ring", "torus", "star"])
def test_after_so_many_rounds_a_hundredth_of_any_difference_is_left(kind):
    graph = make_graph(kind, 12)
    rounds = rounds_to_agree(spectral_gap(graph))
    rows, columns, values = _metropolis(graph)
    weights = np.zeros((12, 12))
    weights[rows, columns] = values
    left = np.linalg.matrix_power(weights, rounds) - np.full((12, 12), 1 / 12)
    before = np.linalg.matrix_power(weights, max(rounds - 2, 0)) - np.full((12, 12), 1 / 12)
    assert np.linalg.norm(left, 2) <= 0.01 < np.linalg.norm(before, 2)


def test_parts_never_agree():
    graph = Graph(
        tuple(Node(i, f"127.0.0.1:{7400 + i}") for i in range(4)), ((0, 1), (2, 3)), Manifest(algorithm="local")
    )
    assert spectral_gap(graph) == 0
    assert rounds_to_agree(0.0) is None


def test_an_expander_has_the_largest_gap_of_its_draws():
    draws = [make_graph("regular", 40, seed=seed, degree=3) for seed in range(50, 60)]
    gaps = [spectral_gap(graph) for graph in draws]
    assert spectral_gap(make_graph("expander", 40, seed=5, degree=3)) == max(gaps) > min(gaps)
    assert max(gaps) > 10 * spectral_gap(make_graph("ring", 40))

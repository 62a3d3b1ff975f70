"""The spectral gap and agreement on one edge: known graphs, the bounds that they promise, and the two ways to compute each."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, Node, make_graph, neighbors_in_round
from coordinator_free_bootstrap.generators import kind_named
from coordinator_free_bootstrap.mixing import _metropolis, agreement_on_one_edge, rounds_to_agree, spectral_gap


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


def one_edge(graph):
    """Return what `agreement_on_one_edge` does, round by round: the share of the worst difference by an SVD after each."""
    models, rounds = np.eye(len(graph.ids)), 0
    apart, sent = np.full(models.shape, 1 / len(models)), 0
    while np.linalg.norm(models - apart, 2) > 0.01:
        pairs = [(i, n) for i in graph.ids for n in neighbors_in_round(graph, rounds, i)]
        mean = {i: (models[i] + models[n]) / 2 for i, n in pairs}
        models = np.array([mean.get(i, models[i]) for i in graph.ids])
        rounds, sent = rounds + 1, sent + len(pairs)
    return rounds, sent / len(graph.ids)


@pytest.mark.parametrize(
    ("kind", "peers"), [("ring", 9), ("star", 7), ("complete", 6), ("expander", 30), ("base-k", 13), ("line", 2)]
)
def test_agreement_on_one_edge_is_that_of_the_rounds_one_by_one(kind, peers, monkeypatch):
    graph = make_graph(kind, peers, manifest=Manifest(edges="one"))
    rounds, models = one_edge(graph)
    assert agreement_on_one_edge(graph) == (rounds, pytest.approx(models))
    monkeypatch.setattr("coordinator_free_bootstrap.mixing.DENSE_PEERS_MAX", 3)
    assert agreement_on_one_edge(graph) == (rounds, pytest.approx(models))


@pytest.mark.parametrize("peers", [2, 8, 64, 512])
def test_a_hypercube_agrees_after_a_model_for_each_dimension(peers):
    dimensions = peers.bit_length() - 1
    assert agreement_on_one_edge(make_graph("hypercube", peers)) == (dimensions, dimensions)
    assert agreement_on_one_edge(make_graph("base-k", peers)) == (dimensions, dimensions)


@pytest.mark.parametrize("peers", [30, 100, 400])
def test_one_edge_takes_nearly_four_times_fewer_models_on_a_4_regular_expander(peers):
    graph = make_graph("expander", peers, degree=4)
    rounds, models = agreement_on_one_edge(graph)
    all_rounds = rounds_to_agree(spectral_gap(graph))
    assert 3.7 < 4 * all_rounds / models < 4.3 and 1.1 < rounds / all_rounds < 1.5


def test_agreement_on_one_edge_is_unknown_of_too_many_peers_and_never_of_parts(monkeypatch):
    ring = make_graph("ring", 5)
    monkeypatch.setattr("coordinator_free_bootstrap.mixing.PRODUCT_PEERS_MAX", 4)
    assert agreement_on_one_edge(ring) is None
    nodes = tuple(Node(i, f"127.0.0.1:{7400 + i}") for i in range(4))
    assert agreement_on_one_edge(Graph(nodes, ((0, 1), (2, 3)), Manifest(algorithm="local"))) is None


DOCUMENTED = re.findall(
    r"^\| `([\w:=-]+)`.* \| ([\d,]+) \| (\d+), (\d+) \| (\d+), (\d+) \|$",
    (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(),
    re.MULTILINE,
)


def test_the_documentation_has_a_table_of_agreement():
    assert len(DOCUMENTED) > 5


@pytest.mark.parametrize("row", DOCUMENTED, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_documented_rounds_and_models_are_those_of_the_graphs(row):
    kind, peers, *numbers = row
    graph = make_graph(**kind_named(kind), peers=int(peers.replace(",", "")))
    rounds, models = agreement_on_one_edge(graph)
    on_all = rounds_to_agree(spectral_gap(graph))
    found = [on_all, rounds, on_all * 2 * len(graph.edges) / len(graph.ids), models]
    assert [round(number) for number in found] == [*map(int, numbers)]

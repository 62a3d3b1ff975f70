"""The coloring of edges: proper, complete, with at most one class more than the largest degree, and by the graph alone."""

from random import Random

import networkx as nx
import pytest

from coordinator_free_bootstrap import Manifest, make_graph, neighbors_in_round
from coordinator_free_bootstrap.coloring import matchings
from tests.oracle.one_edge import classes


def random_edges(seed):
    """Return the edges of a random graph of up to 13 peers, sparse or dense."""
    random = Random(seed)
    return nx.gnp_random_graph(random.randint(2, 13), random.random(), seed=seed).edges or {(0, 1)}


GRAPHS = [[*random_edges(seed)] for seed in range(400)]


def pairs_of(each):
    return [(a, b) for a, b in each.items() if a < b]


def test_each_edge_has_one_class_and_each_peer_one_edge_of_a_class():
    spare = 0
    for edges in GRAPHS:
        found = matchings(edges)
        largest = max(degree for _, degree in nx.Graph(edges).degree)
        assert sorted(pair for each in found for pair in pairs_of(each)) == sorted(edges)
        for each in found:
            assert each and all(each[partner] == peer for peer, partner in each.items())
        assert len(found) <= 1 + largest
        spare += len(found) > largest
    assert 0 < spare < len(GRAPHS)


def test_the_classes_do_not_depend_on_the_order_of_edges():
    random = Random(0)
    for edges in GRAPHS:
        shuffled = [pair if random.random() < 0.5 else pair[::-1] for pair in edges]
        random.shuffle(shuffled)
        assert matchings(shuffled) == matchings(edges)


def test_where_the_greedy_coloring_of_networkx_suffices_both_are_the_same():
    suffices = 0
    for edges in GRAPHS:
        greedy = classes(tuple(sorted(edges)))
        if greedy is not None:
            suffices += 1
            assert [frozenset(pairs_of(each)) for each in matchings(edges)] == list(greedy)
    assert 0 < suffices < len(GRAPHS), "both ways occur"


@pytest.mark.parametrize("peers", [5, 9])
def test_a_complete_graph_of_an_odd_number_of_peers_needs_the_class_more(peers):
    edges = tuple(nx.complete_graph(peers).edges)
    assert classes(edges) is None, "the greedy coloring suffices: nothing was rotated"
    assert len(matchings(edges)) == peers


@pytest.mark.parametrize("dimensions", [1, 2, 3, 5])
def test_the_classes_of_a_hypercube_are_its_dimensions(dimensions):
    graph = make_graph("hypercube", 2**dimensions, manifest=Manifest(edges="one"))
    for t in range(2 * dimensions):
        for peer in graph.ids:
            assert neighbors_in_round(graph, t, peer) == (peer ^ 1 << t % dimensions,)


def test_a_graph_without_edges_has_no_class():
    assert matchings([]) == ()
    alone = make_graph("complete", 2, manifest=Manifest(algorithm="local", edges="one"))
    alone = type(alone)(alone.nodes, (), alone.manifest)
    assert neighbors_in_round(alone, 3, 0) == ()


def test_the_classes_never_change_between_releases():
    graph = make_graph("complete", 5, manifest=Manifest(edges="one"))
    assert [pairs_of(each) for each in graph.matchings] == EXPECTED
    assert [neighbors_in_round(graph, t, 0) for t in range(6)] == [(1,), (3,), (), (4,), (2,), (1,)]


EXPECTED = [
    [(0, 1), (2, 3)],
    [(0, 3), (2, 4)],
    [(1, 2), (3, 4)],
    [(0, 4), (1, 3)],
    [(0, 2), (1, 4)],
]

"""The coloring of edges: proper, complete, with at most one class more than the largest degree, and by the graph alone."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator_free_bootstrap import Manifest, make_graph, neighbors_in_round
from coordinator_free_bootstrap.coloring import matchings
from tests.oracle.one_edge import classes

PAIRS = st.sets(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda pair: pair[0] < pair[1]), min_size=1)


def pairs_of(each):
    return [(a, b) for a, b in each.items() if a < b]


@given(PAIRS)
def test_each_edge_has_one_class_and_each_peer_one_edge_of_a_class(edges):
    found, graph = matchings(edges), nx.Graph(edges)
    assert sorted(pair for each in found for pair in pairs_of(each)) == sorted(edges)
    for each in found:
        assert each and all(each[partner] == peer for peer, partner in each.items())
    assert len(found) <= 1 + max(degree for _, degree in graph.degree)


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_classes_do_not_depend_on_the_order_of_edges(edges, random):
    shuffled = [pair if random.random() < 0.5 else pair[::-1] for pair in edges]
    random.shuffle(shuffled)
    assert matchings(shuffled) == matchings(edges)


@given(PAIRS)
def test_where_the_greedy_coloring_of_networkx_suffices_both_are_the_same(edges):
    greedy = classes(tuple(sorted(edges)))
    if greedy is not None:
        assert [frozenset(pairs_of(each)) for each in matchings(edges)] == list(greedy)


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

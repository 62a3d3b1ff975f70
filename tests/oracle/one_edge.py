"""The edge of a round, a second opinion: colors by networkx in place of the product's own coloring."""

from __future__ import annotations

import functools

import networkx as nx

from coordinator_free_bootstrap.graph import Graph


def in_given_order(line_graph: nx.Graph, colors: object) -> list[tuple[int, int]]:
    """Return the edges in ascending order: the strategy of the greedy coloring."""
    return sorted(line_graph)


@functools.cache
def classes(edges: tuple[tuple[int, int], ...]) -> tuple[frozenset[tuple[int, int]], ...] | None:
    """Return the classes of a graph's edges if the greedy coloring needs no more than the largest degree and one, else None."""
    graph = nx.Graph(edges)
    line_graph = nx.relabel_nodes(nx.line_graph(graph), lambda edge: (min(edge), max(edge)))
    color = nx.coloring.greedy_color(line_graph, strategy=in_given_order)
    count = max(color.values(), default=-1) + 1
    if count > 1 + max(degree for _, degree in graph.degree):
        return None
    return tuple(frozenset(edge for edge in edges if color[edge] == c) for c in range(count))


def is_up(graph: Graph, t: int, i: int, n: int) -> bool:
    """Return whether the edge between two neighbors carries models in a round with ``run.edges`` "one".

    Where the greedy coloring needs too many colors, the product's own classes are taken, if they are proper.
    """
    found = classes(graph.edges)
    if found is None:
        found = tuple(frozenset((a, b) for a, b in each.items() if a < b) for each in graph.matchings)
        assert sorted(edge for each in found for edge in each) == list(graph.edges)
        assert all(len({*sum(each, ())}) == 2 * len(each) for each in found)
    return (min(i, n), max(i, n)) in found[t % len(found)]

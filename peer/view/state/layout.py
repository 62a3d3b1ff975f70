"""Positions of the peers in every picture of a graph: in the report and on the page."""

from __future__ import annotations

from functools import lru_cache

from coordinator_free_bootstrap.graph import Graph

SEED = 1
SPRING_ABOVE = 60  # peers; below, the slower Kamada-Kawai layout is clearer
SPRING_STEPS, SPRING_STEPS_OF_MANY, MANY = 50, 25, 300  # a step costs the square of the number of peers
Positions = dict[int, tuple[float, float]]


def positions(graph: Graph) -> Positions:
    """Return x and y of each peer, about -1 to 1; the same for the same graph."""
    return _positions(graph.ids, graph.edges)


@lru_cache(maxsize=8)
def _positions(ids: tuple[int, ...], edges: tuple[tuple[int, int], ...]) -> Positions:
    import networkx as nx

    drawn = nx.Graph()
    drawn.add_nodes_from(ids)
    drawn.add_edges_from(edges)
    steps = SPRING_STEPS if len(drawn) <= MANY else SPRING_STEPS_OF_MANY
    found = (
        nx.spring_layout(drawn, seed=SEED, iterations=steps)
        if len(drawn) > SPRING_ABOVE
        else nx.kamada_kawai_layout(drawn)
    )
    return {peer_id: (float(x), float(y)) for peer_id, (x, y) in found.items()}

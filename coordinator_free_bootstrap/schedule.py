"""Edges that are down and peers that do not train in a round, derived from graph, round and seed without a message. Pure.

Dynamic graphs in FedSPD (Lin, Yağın, Joe-Wong, Table 7) remove edges and also add edges between peers that are not
neighbors. Here two peers exchange messages only over an edge of the graph file, so a round only removes edges. For
added edges, put every candidate edge into the graph file.
"""

from __future__ import annotations

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.seeds import uniform


def edge_is_up(seed: int, round_index: int, i: int, j: int, removal_probability: float) -> bool:
    """Return whether the edge between peers i and j is up in a round; symmetric in i and j.

    Every edge is down with ``removal_probability`` in each round, independently. A round may be disconnected.
    """
    return uniform(seed, "edge", round_index, min(i, j), max(i, j)) >= removal_probability


def is_active(seed: int, round_index: int, peer_id: int, participation: float) -> bool:
    """Return whether a peer takes part in a round; true with probability ``participation``."""
    return uniform(seed, "participation", round_index, peer_id) < participation


def neighbors_in_round(graph: Graph, round_index: int, peer_id: int) -> tuple[int, ...]:
    """Return the neighbors whose edge to this peer is up in a round, ascending; active or not.

    With ``run.edges`` "one" it is up in the rounds of its class (`Graph.matchings`); the classes take turns, so a peer without an
    edge of a class is idle in its rounds.
    """
    m = graph.manifest
    around = graph.neighbors(peer_id)
    if m.edges == "one":
        partner = graph.matchings[round_index % len(graph.matchings)].get(peer_id) if graph.matchings else None
        around = () if partner is None else (partner,)
    return tuple(
        n for n in around if not m.dynamic_edges or edge_is_up(m.seed, round_index, peer_id, n, m.dynamic_edges)
    )

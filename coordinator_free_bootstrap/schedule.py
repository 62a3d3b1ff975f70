"""What changes from round to round without a message: edges that are down, peers that sit out. Pure.

Both ends of an edge, and every observer, derive the same answer from the shared seed.

The edges that may be up are those of the graph file. The paper's dynamic graphs also add edges between peers that are
not neighbors; here only an edge of the graph file lets two peers speak, so the graph file is the base graph and a round
can only take edges away. For the other reading, put every candidate edge into the graph file.
"""

from __future__ import annotations

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.seeds import uniform


def edge_is_up(seed: int, round_index: int, i: int, j: int, removal_probability: float) -> bool:
    """Return whether the edge between peers i and j carries models in a round; the same for (i, j) and (j, i).

    Every edge is removed with ``removal_probability`` in each round, independently. Disconnected rounds are allowed.
    Source: algorithms.md section 9, ``dynamic(p)``: H(seed, round, i, j).
    """
    return uniform(seed, "edge", round_index, min(i, j), max(i, j)) >= removal_probability


def is_active(seed: int, round_index: int, peer_id: int, participation: float) -> bool:
    """Return whether a peer takes part in a round, with probability ``participation``.

    Source: algorithms.md section 9: H(seed, round, i).
    """
    return uniform(seed, "participation", round_index, peer_id) < participation


def neighbors_in_round(graph: Graph, round_index: int, peer_id: int) -> tuple[int, ...]:
    """Return the neighbors whose edge to this peer is up in a round, ascending, whether or not they are active."""
    seed, removed = graph.manifest.seed, graph.manifest.dynamic_edges
    neighbors = graph.neighbors(peer_id)
    return tuple(other for other in neighbors if edge_is_up(seed, round_index, peer_id, other, removed))

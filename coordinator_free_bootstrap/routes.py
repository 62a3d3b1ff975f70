"""How the two ends of an edge reach each other: directly, through a tunnel that the other end opens, or over a relay.

A peer that only dials holds open an *offer* at each neighbor outside its network: a stream over which that neighbor can call
it. On an edge with ``via`` both ends hold their offers at the relay. So each edge has one tunnel in each direction that cannot
be dialed, and none where both ends can dial. Pure.
"""

from __future__ import annotations

from coordinator_free_bootstrap.graph import Graph


def relay_of(graph: Graph, a: int, b: int) -> int | None:
    """Return the relay of an edge; None where its ends reach each other without one."""
    return next((relay for low, high, relay in graph.via if (low, high) == (min(a, b), max(a, b))), None)


def offered_at(graph: Graph, caller: int, neighbor: int) -> int | None:
    """Return the peer that holds the neighbor's offer to a caller; None where the caller dials the neighbor's address."""
    relay = relay_of(graph, caller, neighbor)
    return caller if relay is None and not graph.node(caller).can_dial(graph.node(neighbor)) else relay


def kind_of(graph: Graph, a: int, b: int) -> str:
    """Return how the graph file says that the ends of an edge reach each other: ``direct``, ``tunnel`` or ``relay``."""
    if relay_of(graph, a, b) is not None:
        return "relay"
    one, other = graph.node(a), graph.node(b)
    return "direct" if one.can_dial(other) and other.can_dial(one) else "tunnel"


def dialed(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Return the (caller, neighbor) pairs in which the caller dials the neighbor's address."""
    ordered = (pair for a, b in graph.edges for pair in ((a, b), (b, a)))
    return tuple(pair for pair in ordered if offered_at(graph, *pair) is None)


def offers(graph: Graph, peer_id: int) -> tuple[tuple[int, int], ...]:
    """Return the offers that a peer holds open, as (the peer that holds it, the neighbor that may use it)."""
    offers = []
    for neighbor in graph.neighbors(peer_id):
        holder = offered_at(graph, neighbor, peer_id)
        if holder is not None:
            offers.append((holder, neighbor))
    return tuple(offers)


def relayed_by(graph: Graph, relay: int) -> frozenset[tuple[int, int]]:
    """Return the pairs that may call each other through a relay, in both orders."""
    pairs = {(a, b) for a, b, holder in graph.via if holder == relay}
    return frozenset(pairs | {(b, a) for a, b in pairs})

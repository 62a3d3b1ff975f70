"""Which edges need a tunnel or a relay, and which graphs are refused because neither end can dial the other."""

import json

import pytest

from coordinator_free_bootstrap import Graph, Node, Relay, dump_graph, parse_graph
from coordinator_free_bootstrap.errors import GraphError
from coordinator_free_bootstrap.routes import dialed, kind_of, offered_at, offers, relay_of, relayed_by

LIMITS = Relay(bytes_per_second=1_000_000, connections=4)
HUB, OTHER = Node(0, "hub:1", relay=LIMITS), Node(3, "other:1")
DIALERS = (Node(1, "", dials_only=True), Node(2, "", dials_only=True))
TRIANGLE = ((0, 1), (0, 2), (1, 2))
RELAYED = Graph((HUB, *DIALERS, OTHER), (*TRIANGLE, (0, 3), (1, 3)), via=((2, 1, 0),))


def test_an_edge_of_which_one_end_only_dials_is_called_over_its_offer_and_dialed_from_there():
    assert offered_at(RELAYED, 0, 1) == 0 and offered_at(RELAYED, 1, 0) is None
    assert offered_at(RELAYED, 3, 1) == 3 and offered_at(RELAYED, 1, 3) is None
    assert offered_at(RELAYED, 0, 3) is None and offered_at(RELAYED, 3, 0) is None


def test_both_ends_of_a_relayed_edge_are_called_over_offers_at_the_relay():
    assert offered_at(RELAYED, 1, 2) == offered_at(RELAYED, 2, 1) == 0 == relay_of(RELAYED, 2, 1)
    assert relayed_by(RELAYED, 0) == {(1, 2), (2, 1)} and relayed_by(RELAYED, 3) == frozenset()


def test_a_peer_holds_one_offer_for_each_neighbor_that_cannot_dial_it():
    assert offers(RELAYED, 1) == ((0, 0), (0, 2), (3, 3))
    assert offers(RELAYED, 2) == ((0, 0), (0, 1))
    assert offers(RELAYED, 0) == offers(RELAYED, 3) == ()


def test_the_end_that_dials_dials_and_nothing_is_dialed_on_a_relayed_edge():
    assert set(dialed(RELAYED)) == {(1, 0), (2, 0), (1, 3), (0, 3), (3, 0)}


def test_graph_file_keeps_routes_and_the_digest_does_not_depend_on_them():
    assert parse_graph(dump_graph(RELAYED)) == RELAYED
    addresses = tuple(Node(node.id, f"p{node.id}:1") for node in RELAYED.nodes)
    assert Graph(addresses, RELAYED.edges).digest == RELAYED.digest


def in_networks(*networks):
    """Peers of a complete graph that only dial, in these networks; peer 0 can be dialed."""
    nodes = (HUB, *(Node(i, f"n{i}:1", dials_only=True, network=name) for i, name in enumerate(networks, 1)))
    return nodes, tuple((a, b) for b in range(len(nodes)) for a in range(b))


def test_peers_of_one_network_dial_each_other_and_are_called_over_tunnels_from_outside():
    graph = Graph(*in_networks("b", "b"))
    assert offered_at(graph, 1, 2) is None and offered_at(graph, 2, 1) is None and kind_of(graph, 1, 2) == "direct"
    assert offered_at(graph, 0, 1) == 0 and kind_of(graph, 0, 1) == "tunnel"
    assert offers(graph, 1) == ((0, 0),)
    assert parse_graph(dump_graph(graph)) == graph


@pytest.mark.parametrize(
    ("networks", "words"),
    [
        (("b", "c"), 'edge 1-2: expected .*the same "network" at both.*, got two peers that only dial'),
        (("b", ""), "edge 1-2: expected .*, got two peers that only dial"),
        (("B!",), 'node 1: network: expected lower-case letters.*, got "B!"'),
    ],
)
def test_other_networks_cannot_be_dialed(networks, words):
    with pytest.raises(GraphError, match=words):
        Graph(*in_networks(*networks))


def test_a_peer_in_a_network_needs_an_address():
    with pytest.raises(GraphError, match=r'node 1: address: expected host:port.*, got ""'):
        Graph((HUB, Node(1, "", dials_only=True, network="b")), ((0, 1),))


@pytest.mark.parametrize(
    ("graph", "where", "got", "expected"),
    [
        (((HUB, *DIALERS), TRIANGLE, ()), "edge 1-2", "two peers that only dial", '"via" with 0'),
        (
            ((HUB, *DIALERS), ((0, 1), (1, 2)), ()),
            "edge 1-2",
            "two peers that only dial",
            "no peer that both can dial is their neighbor",
        ),
        (((HUB, *DIALERS, OTHER), (*TRIANGLE, (1, 3)), ((1, 2, 3),)), "edge 1-2: via", "3", "0"),
        (((HUB, *DIALERS), TRIANGLE, ((1, 2, 9),)), "edge 1-2: via", "9", "0"),
        (((HUB, *DIALERS), TRIANGLE, ((1, 2, 2),)), "edge 1-2: via", "2", "0"),
        (((HUB, *DIALERS), TRIANGLE, ((1, 2, 0), (2, 1, 0))), "edges", "two", "one via for each edge"),
        (((HUB, *DIALERS), ((0, 1), (0, 2)), ((1, 2, 0),)), "edge 1-2: via", "one of no edge", "a relay of an edge"),
        (
            ((HUB, Node(3, "c:1", relay=LIMITS), DIALERS[0]), ((0, 1), (0, 3), (1, 3)), ((0, 1, 3), (1, 3, 0))),
            "edge 0-1: via",
            "3",
            "none, since no peer that both can dial",
        ),
        (
            ((Node(0, "hub:1"), *DIALERS), TRIANGLE, ((1, 2, 0),)),
            "edge 1-2: via",
            "peer 0, which has not agreed to relay",
            '"relay"',
        ),
        (
            ((Node(0, "", dials_only=True, relay=LIMITS),), (), ()),
            "node 0: relay",
            "them at a peer that only dials",
            "others can dial",
        ),
        (((Node(0, "a:1", relay=Relay(0, 1)),), (), ()), "node 0: relay.bytes_per_second", "0", "1 or more"),
        (((Node(0, "a:1", relay=Relay(1, 0)),), (), ()), "node 0: relay.connections", "0", "1 or more"),
        (((Node(0, ""),), (), ()), "node 0: address", '""', "host:port"),
    ],
)
def test_a_graph_in_which_two_neighbors_cannot_reach_each_other_is_refused(graph, where, got, expected):
    nodes, edges, via = graph
    with pytest.raises(GraphError) as caught:
        Graph(nodes, edges, via=via)
    message = str(caught.value)
    assert message.startswith(f"{where}: expected ") and expected in message.partition(f", got {got}")[0]
    assert f", got {got}" in message


def test_a_node_needs_an_address_unless_it_only_dials():
    rows = [{"id": 0, "address": "a:1"}, {"id": 1, "dials_only": True}]
    graph = parse_graph(json.dumps({"nodes": rows, "edges": [{"source": 0, "target": 1}]}))
    assert graph.node(1) == DIALERS[0]
    with pytest.raises(GraphError, match="required"):
        parse_graph(json.dumps({"nodes": [{"id": 0, "dials_only": False}], "edges": []}))

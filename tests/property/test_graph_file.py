"""The graph loader: any bytes and any JSON give a valid Graph, a GraphError or a ConfigError, and nothing else."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from coordinator_free_bootstrap import Graph, Manifest, Node, Relay, dump_graph, parse_graph
from coordinator_free_bootstrap.errors import ConfigError

FINITE = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
SCALARS = FINITE | st.integers(-2, 9) | st.floats()
KEYS = st.sampled_from(
    [
        "id",
        "address",
        "run",
        "nodes",
        "edges",
        "source",
        "pins",
        "clusters",
        "timeouts",
        "options",
        "dials_only",
        "network",
        "relay",
        "via",
        "connections",
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
PINS = st.lists(st.text("0123456789abcdef", min_size=64, max_size=64).map("sha256:{}".format), max_size=2)


@st.composite
def graphs(draw):
    """Draw any valid graph: a random tree over random ids, and more edges."""
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12, unique=True))
    relays = st.none() | st.builds(Relay, st.integers(1, 2**40), st.integers(1, 99))
    nodes = [
        Node(peer_id, f"peer-{peer_id}:{7400 + i}", tuple(draw(PINS)), relay=draw(relays))
        for i, peer_id in enumerate(ids)
    ]
    dialer = draw(st.sampled_from([*range(len(ids)), None]))
    if dialer is not None:
        network = draw(st.sampled_from(["", "b"]))
        nodes[dialer] = Node(ids[dialer], network and "b:1", nodes[dialer].pins, dials_only=True, network=network)
    tree = {(ids[draw(st.integers(0, i - 1))], ids[i]) for i in range(1, len(ids))}
    pairs = {(a, b) for i, a in enumerate(ids) for b in ids[i + 1 :]}
    more = draw(st.sets(st.sampled_from(sorted(pairs)), max_size=10)) if pairs else set()
    run = {
        "clusters": draw(st.integers(1, 64)),
        "learning_rate": draw(st.floats(1e-6, 10)),
        "options": draw(st.dictionaries(st.text(max_size=5), FINITE)),
    }
    return Graph(tuple(nodes), tuple(tree | more), Manifest(**run), draw(st.text(max_size=10)))


def read(content):
    """Return a graph, or None if the content is refused with an allowed error; other errors fail the test."""
    try:
        graph = parse_graph(content, "g.json")
    except ConfigError as error:
        assert all(line.startswith("g.json: ") for line in str(error).splitlines())
        return None
    assert isinstance(graph, Graph)
    return graph


@given(st.binary(max_size=200))
def test_any_bytes(content):
    read(content)


@given(VALUES)
def test_any_json(value):
    read(json.dumps(value))


@given(graphs())
def test_a_dumped_graph_is_parsed_back(graph):
    text = dump_graph(graph)
    again = parse_graph(text.encode())
    assert again == graph
    assert again.digest == graph.digest
    assert dump_graph(again) == text


@given(graphs(), st.data())
def test_a_valid_file_with_one_value_replaced(graph, data):
    """A valid file with any one value replaced gives a graph or an error with a sentence."""
    value = json.loads(dump_graph(graph))
    places = list(_places(value))
    *path, last = data.draw(st.sampled_from(places))
    changed = copy.deepcopy(value)
    target = changed
    for part in path:
        target = target[part]
    target[last] = data.draw(VALUES)
    if (found := read(json.dumps(changed))) is not None:
        assert parse_graph(dump_graph(found)) == found


@given(graphs(), st.data())
def test_a_truncated_file_is_never_a_graph(graph, data):
    text = dump_graph(graph).rstrip()
    assert read(text[: data.draw(st.integers(0, len(text) - 1))]) is None


@given(graphs())
def test_neighbors_are_mutual_and_count_the_edges(graph):
    pairs = {(i, j) for i in graph.ids for j in graph.neighbors(i)}
    assert pairs == {pair for a, b in graph.edges for pair in ((a, b), (b, a))}
    assert sum(graph.degree(i) for i in graph.ids) == 2 * len(graph.edges)


def _places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))

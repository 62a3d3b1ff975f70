"""Rules of the graph file: each error names the file, the field, the found value and the allowed values."""

import json

import networkx as nx
import pytest

from coordinator_free_bootstrap import Graph, Manifest, Node, load_graph, parse_graph, save_graph
from coordinator_free_bootstrap.errors import ConfigError, GraphError
from coordinator_free_bootstrap.graph import split_address
from coordinator_free_bootstrap.graph_file import FILE_BYTES_MAX

PIN = "sha256:" + "0f" * 32


def file_of(**changes):
    """Return a valid path of three peers, with top-level keys replaced; None takes a key away."""
    data = {
        "directed": False,
        "multigraph": False,
        "graph": {"run": {}},
        "nodes": [{"id": i, "address": f"127.0.0.1:{7400 + i}"} for i in range(3)],
        "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}],
    }
    return {key: value for key, value in (data | changes).items() if value is not None}


def nodes_with(**changes):
    return [{"id": 0, "address": "a:1"}, {"id": 1, "address": "b:1"}, {"id": 2, "address": "c:1"} | changes]


def edges_with(*pairs):
    return [{"source": a, "target": b} for a, b in [(0, 1), (1, 2), *pairs]]


def test_one_ipv6_address_in_two_spellings_is_refused() -> None:
    with pytest.raises(GraphError, match="the address of node 0 too"):
        Graph((Node(0, "[::1]:7400"), Node(1, "[0:0::0:1]:7400")), ((0, 1),))


def test_a_file_without_run_has_the_default_manifest():
    graph = parse_graph(json.dumps({"nodes": [{"id": 7, "address": "a:1"}], "edges": []}))
    assert graph == Graph((Node(7, "a:1"),), (), Manifest())


def test_neighbors_and_degrees():
    graph = Graph(tuple(Node(i, f"p{i}:1") for i in (30, 4, 5)), ((30, 4), (5, 4)))
    assert graph.ids == (4, 5, 30)
    assert graph.edges == ((4, 5), (4, 30))
    assert graph.neighbors(4) == (5, 30)
    assert (graph.degree(4), graph.degree(30), graph.diameter_bound) == (2, 1, 2)
    with pytest.raises(GraphError, match="expected one of 4, 5, 30, got 3"):
        graph.neighbors(3)


def test_the_older_key_links_is_read():
    assert parse_graph(json.dumps(file_of(edges=None, links=edges_with()))) == parse_graph(json.dumps(file_of()))


@pytest.mark.parametrize(
    ("data", "field", "got", "expected"),
    [
        (file_of(directed=True), "directed", "true", "False"),
        (file_of(multigraph=True), "multigraph", "true", "False"),
        (file_of(nodes=None), "nodes", "nothing", "required"),
        (file_of(edges=None), "edges", "nothing", "required"),
        (file_of(links=[]), "links", "a list", "no such key"),
        (file_of(nodez=[]), "nodez", "a list", "did you mean nodes?"),
        (file_of(nodes=[], edges=[]), "nodes", "none", "at least one"),
        (file_of(graph={"runs": {}}), "graph.runs", "an object", "did you mean run?"),
        (file_of(graph=[]), "graph", "a list", "an object"),
        (
            file_of(nodes=nodes_with(color="red")),
            "nodes[2].color",
            '"red"',
            "known: id, dials_only, address, pins",
        ),
        (file_of(nodes=nodes_with(id="2")), "nodes[2].id", '"2"', "an integer"),
        (file_of(nodes=nodes_with(id=True)), "nodes[2].id", "true", "an integer"),
        (file_of(nodes=nodes_with(id=-2)), "nodes", "-2", "from 0 to 2147483647"),
        (file_of(nodes=nodes_with(id=2**31)), "nodes", "2147483648", "from 0 to 2147483647"),
        (file_of(nodes=nodes_with(id=1)), "nodes", "id 1 2 times", "each id once"),
        (
            file_of(nodes=nodes_with(address="A:1")),
            "node 2: address",
            '"A:1", the address of node 0 too',
            "each address once",
        ),
        (file_of(nodes=[{"id": 0}], edges=[]), "nodes[0].address", "nothing", "host:port"),
        (file_of(nodes=nodes_with(address="c")), "node 2: address", '"c"', "host:port"),
        (file_of(nodes=nodes_with(address="c:0")), "node 2: address", '"c:0"', "from 1 to 65535"),
        (file_of(nodes=nodes_with(address="c:65536")), "node 2: address", '"c:65536"', "from 1 to 65535"),
        (file_of(nodes=nodes_with(pins=["ab"])), "node 2: pins", '"ab"', "sha256:"),
        (file_of(nodes=nodes_with(pins=[PIN] * 5)), "node 2: pins", "5", "at most 4"),
        (file_of(edges=edges_with((1, 1))), "edge 1-1", "a self-loop", "between two peers"),
        (file_of(edges=edges_with((0, 9))), "edge 0-9", "9, which is not the id of a node", "0, 1, 2"),
        (file_of(edges=edges_with((1, 0))), "edge 0-1", "it 2 times", "each edge once"),
        (file_of(edges=[{"source": 0, "target": 1, "key": 0}]), "edges[0].key", "0", "known: source, target"),
        (file_of(edges=[{"source": 0}]), "edges[0].target", "nothing", "required"),
        (3, "the file", "3", "an object"),
    ],
)
def test_a_broken_rule_is_a_graph_error(data, field, got, expected):
    with pytest.raises(GraphError) as caught:
        parse_graph(json.dumps(data), "g.json")
    message = str(caught.value)
    assert message.startswith(f"g.json: {field}: expected ")
    before, _, after = message.partition(f", got {got}")
    assert expected in (after if expected.startswith(("known", "did you mean")) else before)
    assert caught.value.exit_code == 11


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "got no valid JSON"),
        (b"{", "got no valid JSON"),
        (b"\xff\xfe", "expected UTF-8, got other bytes"),
        (b'{"nodes": [], "nodes": []}', 'got "nodes" twice'),
        (b'{"nodes": NaN}', "got NaN"),
        (b"[" * 200_000, "nested too deeply"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b"9" * 5000, "Exceeds the limit"),
        (b" " * (FILE_BYTES_MAX + 1), f"expected at most {FILE_BYTES_MAX} bytes, got more"),
    ],
)
def test_content_that_is_not_strict_json_is_refused(content, found):
    with pytest.raises(GraphError) as caught:
        parse_graph(content, "g.json")
    assert str(caught.value).startswith("g.json: ")
    assert found in str(caught.value)


def test_a_wrong_manifest_is_a_config_error():
    with pytest.raises(ConfigError, match=r"g\.json: run\.rounds: expected at least 1, got 0") as caught:
        parse_graph(json.dumps(file_of(graph={"run": {"rounds": 0}})), "g.json")
    assert caught.value.exit_code == 10


def test_a_graph_of_two_parts_is_refused():
    with pytest.raises(GraphError) as caught:
        parse_graph(json.dumps(file_of(edges=[{"source": 0, "target": 1}])), "g.json")
    assert str(caught.value) == (
        "g.json: edges: expected a connected graph, got no path between 0, 1 and 2. Add an edge, or make a graph file of "
        "each part; only algorithm local needs no path."
    )


def test_peers_that_exchange_nothing_need_no_path_between_them():
    data = file_of(edges=[{"source": 0, "target": 1}], graph={"run": {"algorithm": "local"}})
    graph = parse_graph(json.dumps(data))
    assert graph.components == ((0, 1), (2,))
    assert graph.neighbors(2) == ()
    assert graph.diameter_bound == 1


def test_unreadable_and_unwritable_files_are_graph_errors(tmp_path):
    for path in (tmp_path / "none.json", tmp_path, "nul\0"):
        with pytest.raises(GraphError, match="expected a file, got"):
            load_graph(path)
    with pytest.raises(GraphError, match="cannot be written"):
        save_graph(parse_graph(json.dumps(file_of())), tmp_path)


def test_a_saved_graph_is_read_by_us_and_by_networkx(tmp_path):
    nodes = (Node(0, "a:1", (PIN,)), Node(1, "[::1]:2"), Node(5, "1.2.3.4:3"))
    graph = Graph(nodes, ((0, 1), (5, 1)), Manifest(clusters=4, options={"warmup_rounds": 8}), "three peers")
    save_graph(graph, tmp_path / "g.json")
    assert load_graph(tmp_path / "g.json") == graph
    read = nx.node_link_graph(json.loads((tmp_path / "g.json").read_text()), edges="edges")
    assert nx.utils.graphs_equal(nx.Graph(read.edges), nx.Graph(graph.edges))
    assert read.nodes[0] == {"address": "a:1", "pins": [PIN]}
    assert read.graph["run"]["clusters"] == 4
    for key in ("edges", "links"):
        assert parse_graph(json.dumps(nx.node_link_data(read, edges=key))) == graph


def test_the_digest_covers_ids_and_edges_without_addresses_and_pins():
    base = Graph((Node(0, "a:1"), Node(1, "b:1"), Node(2, "c:1")), ((0, 1), (1, 2)))
    same = Graph((Node(2, "z:9"), Node(1, "y:9"), Node(0, "x:9", (PIN,))), ((2, 1), (1, 0)), Manifest(rounds=5), "name")
    assert base.digest == same.digest
    others = [
        Graph(base.nodes, ((0, 1), (0, 2))),
        Graph((Node(0, "a:1"), Node(1, "b:1"), Node(3, "c:1")), ((0, 1), (1, 3))),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 3


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("localhost:1", ("localhost", 1)),
        ("peer-3.example.org:65535", ("peer-3.example.org", 65535)),
        ("peer_3:7400", ("peer_3", 7400)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
        ("[fe80::1%bat0]:80", ("fe80::1%bat0", 80)),
        ("[fe80::1%12]:80", ("fe80::1%12", 80)),
        ("[fe80::1%br-1.2+x@7]:80", ("fe80::1%br-1.2+x@7", 80)),
        ("dns:7400", ("dns", 7400)),
        ("UPPER.Example:7400", ("UPPER.Example", 7400)),
        ("a" * 253 + ":1", ("a" * 253, 1)),
    ],
)
def test_valid_addresses_are_split(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    (
        *("", ":1", "a", "a:", "a:x", "a:-1", "a:+1", "a:00080", "a:１", "::1:80", "[::1]", "[x]:1", "[]:1", "1.2.3:1"),
        *(
            "256.1.1.1:1",
            "-a:1",
            "a-:1",
            "a b:1",
            "a\n:1",
            "http://a:1",
            "é:1",
            "a" * 254 + ":1",
            "a:123456",
            "unix:/a",
            "unix:/tmp/a:1",
            "dns:///a:1",
            "ipv4:10.0.0.1:1",
            "ipv6:[::1]:1",
            "fe80::1%eth0:1",
            "[fe80::1%]:1",
            "[fe80::1%a b]:1",
            "[fe80::1%a%20]:1",
            "[fe80::1%a/b]:1",
            "[fe80::1%sixteen-letters-]:1",
            "a..b:1",
            "a.:1",
            "0x7f000001:1",
            "0x7f.1:1",
            "127.1:1",
            "2130706433:1",
            "010.0.0.1:1",
            "a:0",
            " a:1",
            "a: 1",
            "a:1 ",
        ),
    ),
)
def test_invalid_addresses_are_refused(address):
    with pytest.raises(ValueError):
        split_address(address)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("bücher.example:1", "write xn--bcher-kva.example, its form in ASCII"),
        ("a.example.:1", "write a.example, without the last dot"),
    ],
)
def test_an_address_that_is_nearly_right_is_told_what_to_write(address, words):
    with pytest.raises(ValueError, match=words):
        split_address(address)


@pytest.mark.parametrize("peers", [300, 301])
def test_the_diameter_bound_is_never_below_the_diameter(peers):
    line = Graph(tuple(Node(i, f"p{i}:1") for i in range(peers)), tuple((i, i + 1) for i in range(peers - 1)))
    assert peers - 1 <= line.diameter_bound <= peers
    drawn = nx.random_regular_graph(4, 300, seed=1)
    graph = Graph(tuple(Node(i, f"p{i}:1") for i in range(300)), tuple(drawn.edges))
    assert nx.diameter(drawn) <= graph.diameter_bound <= 2 * nx.diameter(drawn)

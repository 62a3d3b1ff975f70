"""Generated graphs have the structure of their kind, are connected, and are equal for equal seeds."""

import networkx as nx
import pytest

from coordinator_free_bootstrap import KINDS, Manifest, make_graph
from coordinator_free_bootstrap.errors import GraphError
from coordinator_free_bootstrap.generators import default_degree

PARAMETERS = {
    "regular": {"degree": 4},
    "expander": {"degree": 4},
    "small-world": {"degree": 4},
    "erdos-renyi": {"p": 0.3},
    "barabasi-albert": {"m": 2},
    "geometric": {"radius": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_connected_and_equal_for_equal_seeds(kind):
    peers = 32 if kind == "hypercube" else 24
    graph = make_graph(kind, peers, seed=3, **PARAMETERS.get(kind, {}))
    again = make_graph(kind, peers, seed=3, **PARAMETERS.get(kind, {}))
    assert graph == again
    assert graph.ids == tuple(range(peers))
    assert len(graph.components) == 1
    other = make_graph(kind, peers, seed=4, **PARAMETERS.get(kind, {}))
    assert (other.edges != graph.edges) == (kind in PARAMETERS)


@pytest.mark.parametrize(
    ("kind", "peers", "parameters", "degrees"),
    [
        ("ring", 5, {}, [2] * 5),
        ("ring", 2, {}, [1, 1]),
        ("line", 4, {}, [1, 1, 2, 2]),
        ("complete", 4, {}, [3] * 4),
        ("star", 5, {}, [1, 1, 1, 1, 4]),
        ("torus", 12, {}, [4] * 12),
        ("torus", 8, {}, [3] * 8),
        ("hypercube", 8, {}, [3] * 8),
        ("base-k", 8, {}, [3] * 8),
        ("base-k", 9, {"k": 2}, [4] * 9),
        ("base-k", 6, {}, [2, 2, 2, 2, 3, 3]),
        ("regular", 10, {"degree": 3}, [3] * 10),
        ("expander", 10, {"degree": 3}, [3] * 10),
    ],
)
def test_degrees(kind, peers, parameters, degrees):
    graph = make_graph(kind, peers, **parameters)
    assert sorted(graph.degree(i) for i in graph.ids) == degrees


def test_the_torus_is_numbered_row_by_row():
    assert make_graph("torus", 12).neighbors(0) == (1, 3, 4, 8)  # 3 rows of 4


@pytest.mark.parametrize(
    ("k", "peers", "cycle"),
    [
        (1, 5, [{(0, 1), (2, 3)}, {(0, 2), (1, 3)}, {(0, 4), (1, 2)}]),  # peers 1 and 2 are left and meet
        (1, 6, [{(0, 1), (2, 3), (4, 5)}, {(0, 2), (1, 3)}, {(0, 4), (1, 5), (2, 3)}]),
        (
            2,
            7,
            [
                {(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)},
                {(0, 3), (1, 4), (2, 5)},
                {(0, 6), (3, 6), (1, 2), (1, 4), (2, 4)},
            ],
        ),
    ],
)
def test_a_base_k_graph_has_the_edges_of_all_rounds_of_a_cycle(k, peers, cycle):
    edges = {*make_graph("base-k", peers, k=k).edges}
    assert set().union(*cycle) <= edges
    assert edges == set().union(*cycle)


def test_erdos_renyi_uses_the_first_connected_seed_of_networkx():
    seed = next(s for s in range(1, 1000) if nx.is_connected(nx.gnp_random_graph(12, 0.2, seed=s)))
    assert seed > 1  # otherwise nothing is redrawn here
    graph = make_graph("erdos-renyi", 12, seed=1, p=0.2)
    assert graph.edges == tuple(sorted(nx.gnp_random_graph(12, 0.2, seed=seed).edges))
    assert graph.name.endswith(f"seed {seed}")


@pytest.mark.parametrize("kind", ["erdos-renyi", "barabasi-albert", "geometric"])
def test_the_average_degree_is_reached(kind):
    means = []
    for seed in range(10):
        graph = make_graph(kind, 100, seed=100 * seed, degree=8)
        means.append(2 * len(graph.edges) / 100)
    assert sum(means) / 10 == pytest.approx(8, rel=0.05)


def test_a_geometric_graph_has_the_exact_number_of_edges():
    graph = make_graph("geometric", 50, seed=1, degree=10)
    assert 2 * len(graph.edges) == 500  # bisection meets the degree exactly where no two distances are equal


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("peers", [4, 5, 8, 60, 500])
def test_without_a_parameter_every_kind_is_connected_and_sparse(kind, peers):
    nearest = {("torus", 5): 9, ("hypercube", 5): 8, ("hypercube", 60): 64, ("hypercube", 500): 512}
    graph = make_graph(kind, nearest.get((kind, peers), peers))
    assert len(graph.components) == 1
    if kind not in ("complete", "star"):
        assert 2 * len(graph.edges) / len(graph.ids) <= 16


def test_the_default_degree_grows_only_where_it_must():
    assert [default_degree("erdos-renyi", peers) for peers in (3, 8, 20, 500)] == [2, 4, 4, 7.2]
    assert [default_degree("regular", peers) for peers in (3, 8, 500)] == [2, 4, 4]
    assert [default_degree("small-world", peers) for peers in (4, 5)] == [2, 4]


def test_no_connected_draw_is_an_error_with_a_remedy():
    with pytest.raises(
        GraphError, match=r"--p: expected a larger value.* with 6 peers.*, got 0. 1000 draws from seed 1 gave none"
    ):
        make_graph("erdos-renyi", 6, p=0.0)


def test_addresses_fill_the_template():
    assert [node.address for node in make_graph("line", 3, base_port=9000).nodes][-1] == "127.0.0.1:9002"
    assert make_graph("line", 3, address_template="peer-{id}:7400").node(2).address == "peer-2:7400"
    assert make_graph("line", 3, address_template="[::1]:{port}").node(1).address == "[::1]:7401"


def test_the_manifest_is_kept():
    assert make_graph("ring", 4, manifest=Manifest(rounds=3)).manifest.rounds == 3


@pytest.mark.parametrize(
    ("kind", "peers", "parameters", "message"),
    [
        ("cube", 8, {}, "--kind: expected one of ring, "),
        ("hypercube", 6, {}, "--peers: expected a power of two for a hypercube, got 6. Kind base-k takes any number."),
        ("base-k", 6, {"k": 0}, "--k: expected a number from 1 to 5 with 6 peers, got 0"),
        ("hypercube", 8, {"k": 2}, "--k: expected no value (no effect, because the kind is hypercube), got 2"),
        ("ring", 1, {}, "--peers: expected at least 2, got 1"),
        ("ring", 100_001, {}, "--peers: expected at most 100000, got 100001"),
        ("ring", 8, {"p": 0.5}, "--p: expected no value (no effect, because the kind is ring), got 0.5"),
        ("erdos-renyi", 8, {"p": 0.5, "degree": 3}, "--p: expected p or degree, not both, got p and degree"),
        ("erdos-renyi", 8, {"m": 2}, "--m: expected no value (no effect, because the kind is erdos-renyi), got 2"),
        ("erdos-renyi", 8, {"p": 1.5}, "p: expected a number from 0 to 1 with 8 peers, got 1.5"),
        ("erdos-renyi", 8, {"p": float("nan")}, ", got nan"),
        ("barabasi-albert", 8, {"m": 8}, "m: expected a number from 1 to 7 with 8 peers, got 8"),
        ("geometric", 8, {"radius": -1.0}, ", got -1"),
        ("regular", 8, {"degree": 8}, "degree: expected a number from 1 to 7 with 8 peers, got 8"),
        ("regular", 8, {"degree": 2.5}, "--degree: expected an integer, even with 8 peers, got 2.5"),
        ("regular", 7, {"degree": 3}, "--degree: expected an integer, even with 7 peers, got 3"),
        ("torus", 7, {}, "--peers: expected rows times columns of a torus, both at least 2, got 7"),
        (
            "ring",
            3,
            {"address_template": "peer:7400"},
            "--address-template: expected {id} or {port} in it, got 'peer:7400'",
        ),
        ("ring", 3, {"base_port": 65534}, "from 1 to 65535"),
    ],
)
def test_wrong_parameters_are_refused(kind, peers, parameters, message):
    with pytest.raises(GraphError) as caught:
        make_graph(kind, peers, **parameters)
    assert message in str(caught.value)

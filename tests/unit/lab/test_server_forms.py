"""Server forms: with peers of equal size the decentralized form on a complete graph; with unequal sizes the weighted means."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.core.encoding import payload_size
from peer.lab.algorithm_server import run_algorithm_server
from tests.oracle.cgpfl import best_partition
from tests.tools.simulated import Result, peers_of, run

BASE = dict(task="digits", model="mlp", model_options={"hidden": 8}, rounds=3, batch_size=20, learning_rate=0.2)
EQUAL = {"split": "rotated_hard", "split_options": {"samples_per_peer": 50, "test_per_peer": 20}}
UNEQUAL = {"split": "two_class", "split_options": {"samples_min": 20, "samples_max": 120}}
MEANS = [
    ("dfedavg", {}),
    ("ditto", {}),
    ("fedprox", {}),
    ("apfl", {}),
    ("fedrep", {}),
    ("fedper", {}),
    ("perfedavg", {}),
    ("pfedme", {"strength": 1.0}),
]


def graph_of(algorithm, options, data, peers=4, **manifest) -> Graph:
    made = make_graph("complete", peers, seed=3)
    run = BASE | {"algorithm": algorithm, "options": options} | data | manifest
    if algorithm == "fedper":
        run |= {"algorithm": "dfedavg", "private_parameters": ["3.*"]}
    return Graph(made.nodes, made.edges, Manifest(**run))


def served(graph) -> list[Result]:
    return [Result(client) for client in run_algorithm_server(graph, None).values()]


def trained_alone(graph) -> list[Result]:
    """Peers after the training of round 0, and before any average."""
    peers = peers_of(graph)
    for peer in peers:
        peer.algorithm.train(peer.workspace)
    return peers


def counts_of(peers) -> list[int]:
    counts = [peer.learner.count() for peer in peers]
    assert max(counts) > 1.5 * min(counts), "choose another split"
    return counts


@pytest.mark.parametrize(("algorithm", "options"), MEANS)
def test_with_equal_sizes_it_is_the_decentralized_form_on_a_complete_graph(algorithm, options):
    graph = graph_of(algorithm, options, EQUAL)
    for client, peer in zip(served(graph), run(graph), strict=True):
        for one, other in zip([*client.models, client.personalized], [*peer.models, peer.personalized], strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)
        assert client.history[-1]["metric_value"] == peer.history[-1]["metric_value"]


@pytest.mark.parametrize(("algorithm", "options"), MEANS)
def test_the_server_weighs_models_by_the_number_of_samples(algorithm, options):
    graph = graph_of(algorithm, options, UNEQUAL, rounds=1)
    alone = trained_alone(graph)
    mean = np.average([peer.models[0] for peer in alone], axis=0, weights=counts_of(alone))
    for client, peer in zip(served(graph), alone, strict=True):
        part = client.workspace.models.part
        np.testing.assert_allclose(part.of(client.models[0]), part.of(mean), atol=1e-6)
        if not part.is_whole:
            own = part.joined(peer.models[0], part.of(client.models[0]))
            assert client.models[0].tobytes() == own.tobytes(), "private tensors stay with their client"
        for mine, own in zip(client.models[1:], peer.models[1:], strict=True):
            assert mine.tobytes() == own.tobytes(), "a private model stays with its client"


def test_the_pfedme_server_keeps_a_share_of_the_old_model():
    kept, replaced = (graph_of("pfedme", {"strength": 1.0, "beta": beta}, EQUAL, rounds=1) for beta in (0.25, 1.0))
    start, mean = peers_of(kept)[0].models[0], served(replaced)[0].models[0]
    np.testing.assert_allclose(served(kept)[0].models[0], 0.75 * start + 0.25 * mean, atol=1e-6)


def test_a_client_of_fedrep_sends_the_bytes_of_the_body():
    for client in served(graph_of("fedrep", {}, EQUAL, rounds=1)):
        body = client.algorithm.travelling(client.workspace.manifest, client.learner.schema)
        assert client.history[0]["payload_bytes_sent"] == payload_size(body, "float32")
        assert body.size < len(client.personalized)


# ---- CGPFL -----------------------------------------------------------------------------------------------------------------


def best_count(models, weights, mu_scale, most) -> int:
    """K of the lowest sqrt(K / most) + mu_scale cost(K) / cost(1); the cost of a partition weighs models, its centers do not."""
    costs = []
    for count in range(1, most + 1):
        labels = np.array(best_partition(models, count))
        centers = [np.mean([m for m, label in zip(models, labels, strict=True) if label == k], axis=0) for k in labels]
        squared = [((model - center) ** 2).sum() for model, center in zip(models, centers, strict=True)]
        costs.append(np.average(squared, weights=weights))
    counts = np.arange(1, most + 1)
    return int(counts[np.argmin(np.sqrt(counts / most) + mu_scale * np.array(costs) / costs[0])])


def test_a_cgpfl_center_is_the_uniform_mean_of_its_members_whatever_their_sizes():
    graph = graph_of("cgpfl", {"strength": 1.0}, UNEQUAL, rounds=1, clusters=2)
    alone, clients = trained_alone(graph), served(graph)
    counts_of(alone)
    labels = [client.state.label for client in clients]
    assert sorted(np.bincount(labels)) == [1, 3]
    for k in (0, 1):
        mean = np.mean([peer.models[2] for peer, label in zip(alone, labels, strict=True) if label == k], axis=0)
        np.testing.assert_allclose(clients[0].models[k], mean, atol=1e-6)


def test_the_cgpfl_server_weighs_the_cost_of_each_number_of_clusters_by_samples():
    options = {"strength": 1.0, "clusters": "auto", "clusters_max": 3, "mu_scale": 0.86}
    graph = graph_of("cgpfl", options, UNEQUAL, peers=6, rounds=1, data_seed=11)
    alone = trained_alone(graph)
    models = [peer.models[peer.algorithm.own].astype(np.float64) for peer in alone]
    counts = counts_of(alone)
    wanted, alike, unscaled = (best_count(models, *how, 3) for how in ((counts, 0.86), ([1] * 6, 0.86), (counts, 1.0)))
    assert wanted not in (alike, unscaled), "choose another mu_scale"
    assert {client.state.clusters for client in served(graph)} == {wanted}

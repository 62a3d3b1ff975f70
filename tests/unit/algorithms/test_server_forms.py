"""Server forms: with peers of equal size the decentralized form on a complete graph; with unequal sizes the weighted means."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.core.encoding import payload_size
from peer.experiment.algorithm_server import run_algorithm_server
from tests.tools.simulated import Result, peers_of, run

BASE = dict(task="digits", model="mlp", model_options={"hidden": 8}, rounds=3, batch_size=20, learning_rate=0.2)
EQUAL = {"split": "rotated_hard", "split_options": {"samples_per_peer": 50, "test_per_peer": 20}}
UNEQUAL = {"split": "two_class", "split_options": {"samples_min": 20, "samples_max": 120}}
MEANS = [
    ("dfedavg", {}),
    ("ditto", {}),
    ("apfl", {}),
    ("fedrep", {}),
    ("fedrep", {"joint": True}),
    ("perfedavg", {}),
    ("pfedme", {"strength": 1.0}),
]


def graph_of(algorithm, options, data, **manifest) -> Graph:
    made = make_graph("complete", 4, seed=3)
    run = BASE | {"algorithm": algorithm, "options": options} | data | manifest
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
        assert client.history[-1]["accuracy"] == peer.history[-1]["accuracy"]


@pytest.mark.parametrize(("algorithm", "options"), MEANS)
def test_the_server_weighs_models_by_the_number_of_samples(algorithm, options):
    graph = graph_of(algorithm, options, UNEQUAL, rounds=1)
    alone = trained_alone(graph)
    mean = np.average([peer.models[0] for peer in alone], axis=0, weights=counts_of(alone))
    for client, peer in zip(served(graph), alone, strict=True):
        np.testing.assert_allclose(client.models[0], mean, atol=1e-6)
        for mine, own in zip(client.models[1:], peer.models[1:], strict=True):
            assert mine.tobytes() == own.tobytes(), "a private model stays with its client"


def test_the_pfedme_server_keeps_a_share_of_the_old_model():
    kept, replaced = (graph_of("pfedme", {"strength": 1.0, "beta": beta}, EQUAL, rounds=1) for beta in (0.25, 1.0))
    start, mean = peers_of(kept)[0].models[0], served(replaced)[0].models[0]
    np.testing.assert_allclose(served(kept)[0].models[0], 0.75 * start + 0.25 * mean, atol=1e-6)


def test_a_client_of_fedrep_sends_the_bytes_of_the_body():
    for client in served(graph_of("fedrep", {}, EQUAL, rounds=1)):
        body = client.algorithm.travelling(client.learner.schema)
        assert client.history[0]["payload_bytes_sent"] == payload_size(body, "float32")
        assert len(client.models[0]) == body.size < len(client.personalized)

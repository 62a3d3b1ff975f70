"""Decentralized FedEM: responsibilities, its special cases, and the mixture of predictions."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.view.report import soft_clusters
from peer.zoo.algorithms.fedem import responsibilities
from tests.oracle import fedem as oracle
from tests.oracle.fedspd import Data
from tests.tools.simulated import finish, peers_of, run

SOFT = {"samples_per_peer": 50, "test_per_peer": 20}
BASE = dict(task="digits", split="rotated_soft", split_options=SOFT, rounds=3, algorithm="fedem", model="mlr")


def graph_of(peers=5, kind="ring", **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**(BASE | manifest)))


def test_responsibilities_are_the_softmax_of_log_pi_minus_loss():
    draw = np.random.default_rng(0)
    losses, pi = draw.exponential(2, (3, 40)).astype(np.float32), [0.5, 0.3, 0.2]
    q = responsibilities(losses, pi)
    expected = np.array(pi)[:, None] * np.exp(-losses.astype(np.float64))
    np.testing.assert_allclose(q, expected / expected.sum(axis=0), rtol=1e-9)
    np.testing.assert_allclose(q.sum(axis=0), 1, rtol=1e-12)


@pytest.mark.parametrize("losses", [[1e30, 2.0], [float("inf"), float("inf")], [0.0, 800.0]])
def test_responsibilities_stay_finite(losses):
    q = responsibilities(np.array(losses, np.float32)[:, None], [0.5, 0.5])
    assert np.isfinite(q).all() and q.sum() == pytest.approx(1)


def test_large_losses_keep_their_differences():
    q = responsibilities(np.array([[120.0, 300.0], [121.0, 200.0]], np.float32), [0.5, 0.5])
    np.testing.assert_allclose(q[:, 0], [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))], rtol=1e-6)
    np.testing.assert_allclose(q[:, 1], [0, 1], atol=1e-12)


def test_pi_and_shares_sum_to_one():
    for peer in run(graph_of(clusters=3)):
        np.testing.assert_allclose(peer.workspace.scratch["shares"].sum(axis=0), 1, atol=1e-6)
        for row in peer.history:
            assert sum(row["state"]["mixture"]) == pytest.approx(1, abs=1e-9)


def test_one_learner_is_dfedavg():
    for one, other in zip(run(graph_of(clusters=1)), run(graph_of(algorithm="dfedavg")), strict=True):
        assert one.models[0].tobytes() == other.models[0].tobytes()
        assert one.final["metric_value"] == other.final["metric_value"]


def test_equal_learners_stay_equal():  # only different initial models make learners different
    peers = peers_of(graph_of(clusters=2, batch_size="all"))
    for peer in peers:
        peer.workspace.models.replace(1, peer.models[0].copy())
    finish(peers)
    for peer in peers:
        assert peer.models[0].tobytes() == peer.models[1].tobytes()
        assert peer.state.mixture == (0.5, 0.5)


@pytest.mark.parametrize(("kind", "clusters"), [("line", 2), ("star", 3)])
def test_a_run_equals_the_oracle(kind, clusters):
    """Models and pi after each round; pi must differ from its uniform start and be used in the next E-step."""
    graph = graph_of(4, kind, clusters=clusters, batch_size="all", local_epochs=5, learning_rate=0.5)
    peers, data = peers_of(graph), {}
    for i, peer in enumerate(peers):
        shard = peer.learner.shard
        data[i] = Data(shard.train_x.reshape(len(shard.train_x), -1).astype(np.float64), shard.train_y)
    neighbors = {i: list(graph.neighbors(i)) for i in graph.ids}
    expected = oracle.run(neighbors, data, peers[0].models, graph.manifest.rounds, 5, 0.5)

    compared = []

    def compare(t):
        theta, pi = expected[t]
        for i, peer in enumerate(peers):
            np.testing.assert_allclose(peer.state.mixture, pi[i], atol=1e-6)
            np.testing.assert_allclose(peer.models, theta[i], atol=2e-6)
        compared.append(t)

    finish(peers, compare)
    assert compared == [0, 1, 2]
    assert max(abs(share - 1 / clusters) for pi in expected[-1][1].values() for share in pi) > 0.05


def test_predictions_are_mixed_and_not_models():
    peer = run(graph_of(clusters=2))[1]
    pi, rows = peer.state.mixture, [peer.learner.predict_proba(model) for model in peer.models]
    expected = ((pi[0] * rows[0] + pi[1] * rows[1]).argmax(1) == peer.learner.shard.test_y).mean()
    assert peer.final["metric_value"] == pytest.approx(expected)
    assert peer.final["predictor"] == "mixture"  # not the one model in the file


def test_the_mixture_is_judged_by_pi_and_not_by_counts():
    peers = run(graph_of(clusters=2))
    states = [peer.history[-1]["state"] for peer in peers]
    assert [state["soft_mixture"] for state in states] == [list(peer.state.mixture) for peer in peers]
    for state in states:  # counts and pi differ
        state |= {"confusion": [[30, 0], [0, 20]], "soft_mixture": [0.5, 0.5]}
    assert soft_clusters.mixture_error_of(states) == pytest.approx(0.1)
    hard = [{"confusion": state["confusion"], "mixture": [0.5, 0.5]} for state in states]
    assert soft_clusters.mixture_error_of(hard) == 0
    assert soft_clusters.mixture_error_of([states[0], {"soft_mixture": [1.0, 0.0]}, hard[0]]) == pytest.approx(0.05)
    assert soft_clusters.mixture_error_of([{"soft_mixture": [1.0, 0.0]}]) is None


def test_every_neighbor_gets_every_learner():
    peers = run(graph_of(4, "complete", clusters=3, rounds=2))
    assert [peer.totals["models_sent"] for peer in peers] == [3 * 3 * 2] * 4

"""Decentralized FedEM: responsibilities, its special cases, and the mixture of predictions (invariant 35)."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.algorithms.fedem import responsibilities
from peer.experiment.in_process import InProcess

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


def test_pi_and_shares_sum_to_one():  # 35
    for peer in InProcess(graph_of(clusters=3)).run().values():
        np.testing.assert_allclose(peer.bench.scratch["shares"].sum(axis=0), 1, atol=1e-6)
        for row in peer.history:
            assert sum(row["facts"]["mixture"]) == pytest.approx(1, abs=1e-9)


def test_one_learner_is_dfedavg():  # 35
    ours = InProcess(graph_of(clusters=1)).run()
    plain = InProcess(graph_of(algorithm="dfedavg")).run()
    for i in ours:
        assert ours[i].bench.models.model(0).tobytes() == plain[i].bench.models.model(0).tobytes()
        assert ours[i].result["accuracy"] == plain[i].result["accuracy"]


def test_equal_learners_stay_equal():  # 35: symmetry is broken by different starts only
    run = InProcess(graph_of(clusters=2, local_unit="fullbatch_step"))
    for peer in run.peers.values():
        peer.bench.models.replace(1, peer.bench.models.model(0).copy())
    for peer in run.run().values():
        assert peer.bench.models.model(0).tobytes() == peer.bench.models.model(1).tobytes()
        assert peer.bench.facts["mixture"] == [0.5, 0.5]


def test_one_round_is_weighted_descent_and_metropolis_mixing():
    graph = graph_of(3, "line", rounds=1, local_unit="fullbatch_step", local_epochs=1, learning_rate=0.3)
    run = InProcess(graph)
    starts = [run.peers[0].bench.models.model(s).astype(np.float64) for s in range(2)]
    trained = {}
    for i, peer in run.peers.items():
        shard = peer.bench.learner.shard
        x, y = shard.train_x.reshape(50, -1).astype(np.float64), shard.train_y
        probabilities = []
        for theta in starts:
            logits = x @ theta[:640].reshape(10, 64).T + theta[640:]
            e = np.exp(logits - logits.max(1, keepdims=True))
            probabilities.append(e / e.sum(1, keepdims=True))
        likelihood = np.stack([p[np.arange(50), y] for p in probabilities])
        q = likelihood / likelihood.sum(0)
        trained[i] = []
        for m, theta in enumerate(starts):
            errors = (probabilities[m] - np.eye(10)[y]) * q[m][:, None] / 50  # by the batch's size, not by the sum of q
            trained[i].append(theta - 0.3 * np.concatenate([(errors.T @ x).ravel(), errors.sum(0)]))
    w = {(0, 1): 1 / 3, (1, 2): 1 / 3}
    run.run()
    for m in range(2):
        ends = [
            (1 - w[0, 1]) * trained[0][m] + w[0, 1] * trained[1][m],
            None,
            (1 - w[1, 2]) * trained[2][m] + w[1, 2] * trained[1][m],
        ]
        ends[1] = (trained[0][m] + trained[1][m] + trained[2][m]) / 3
        for i in range(3):
            np.testing.assert_allclose(run.peers[i].bench.models.model(m), ends[i], atol=1e-6)


def test_predictions_are_mixed_and_not_models():
    peer = InProcess(graph_of(clusters=2)).run()[1]
    learner, pi = peer.bench.learner, peer.bench.facts["mixture"]
    rows = [learner.predict_proba(peer.bench.models.model(m)) for m in range(2)]
    expected = ((pi[0] * rows[0] + pi[1] * rows[1]).argmax(1) == learner.shard.test_y).mean()
    assert peer.result["accuracy"] == pytest.approx(expected)


def test_every_neighbor_gets_every_learner():
    peers = InProcess(graph_of(4, "complete", clusters=3, rounds=2)).run().values()
    assert [peer.totals["models_sent"] for peer in peers] == [3 * 3 * 2] * 4

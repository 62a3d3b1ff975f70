"""Decentralized FedEM: responsibilities, its special cases, and the mixture of predictions (invariant 35)."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.algorithms.fedem import responsibilities
from peer.experiment.in_process import InProcess
from peer.observe import soft_clusters
from tests.oracle import fedem as oracle
from tests.oracle.fedspd import Data

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


@pytest.mark.parametrize(("kind", "clusters"), [("line", 2), ("star", 3)])
def test_a_run_equals_the_oracle(kind, clusters):
    """Models and pi after each round; pi must have left its uniform start, and enter the next E-step."""
    graph = graph_of(4, kind, clusters=clusters, local_unit="fullbatch_step", local_epochs=5, learning_rate=0.5)
    simulated = InProcess(graph)
    data = {}
    for i, peer in simulated.peers.items():
        shard = peer.bench.learner.shard
        data[i] = Data(shard.train_x.reshape(len(shard.train_x), -1).astype(np.float64), shard.train_y)
    starts = [simulated.peers[0].bench.models.model(m) for m in range(clusters)]
    neighbors = {i: list(graph.neighbors(i)) for i in graph.ids}
    expected = oracle.run(neighbors, data, starts, graph.manifest.rounds, 5, 0.5)

    def compare(t, simulated):
        theta, pi = expected[t]
        for i, peer in simulated.peers.items():
            np.testing.assert_allclose(peer.bench.facts["mixture"], pi[i], atol=1e-6)
            for m in range(clusters):
                np.testing.assert_allclose(peer.bench.models.model(m), theta[i][m], atol=2e-6)

    simulated.run(compare)
    assert max(abs(share - 1 / clusters) for pi in expected[-1][1].values() for share in pi) > 0.05


def test_predictions_are_mixed_and_not_models():
    peer = InProcess(graph_of(clusters=2)).run()[1]
    learner, pi = peer.bench.learner, peer.bench.facts["mixture"]
    rows = [learner.predict_proba(peer.bench.models.model(m)) for m in range(2)]
    expected = ((pi[0] * rows[0] + pi[1] * rows[1]).argmax(1) == learner.shard.test_y).mean()
    assert peer.result["accuracy"] == pytest.approx(expected)
    assert peer.result["predictor"] == "mixture"  # and not the one model that is kept


def test_the_mixture_is_judged_by_pi_and_not_by_counts():
    peers = InProcess(graph_of(clusters=2)).run().values()
    facts = [peer.history[-1]["facts"] for peer in peers]
    assert [told["soft_mixture"] for told in facts] == [peer.bench.facts["mixture"] for peer in peers]
    for told in facts:  # where counts and pi lead apart
        told |= {"confusion": [[30, 0], [0, 20]], "soft_mixture": [0.5, 0.5]}
    assert soft_clusters.mixture_error_of(facts) == pytest.approx(0.1)
    hard = [{"confusion": told["confusion"], "mixture": [0.5, 0.5]} for told in facts]
    assert soft_clusters.mixture_error_of(hard) == 0
    assert soft_clusters.mixture_error_of([facts[0], {"soft_mixture": [1.0, 0.0]}, hard[0]]) == pytest.approx(0.05)
    assert soft_clusters.mixture_error_of([{"soft_mixture": [1.0, 0.0]}]) is None


def test_every_neighbor_gets_every_learner():
    peers = InProcess(graph_of(4, "complete", clusters=3, rounds=2)).run().values()
    assert [peer.totals["models_sent"] for peer in peers] == [3 * 3 * 2] * 4

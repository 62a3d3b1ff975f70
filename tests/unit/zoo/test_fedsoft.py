"""FedSoft: importance, proximal training, centers, against a float64 oracle; the server form; what is refused."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import RefusalCode
from peer.algorithms.learner import TrainingPlan
from peer.core.effects import Target
from peer.core.messages import Numbers
from peer.lab.algorithm_server import AlgorithmServerOptions, FedSoftServer, run_algorithm_server
from peer.lab.simulated import SimulatedSettings
from peer.zoo.algorithms.fedsoft import FedSoft, FedSoftState, center_scores, importance, pull
from tests.oracle import fedsoft as oracle
from tests.oracle.fedspd import Data
from tests.tools.simulated import Result, finish, peers_of, run
from tests.unit.algorithms.messages import header

SOFT = {"samples_per_peer": 50, "test_per_peer": 20, "r": 4.0}
BASE = dict(task="digits", split="imbalance", split_options=SOFT, rounds=4, model="mlr", algorithm="fedsoft")
WHOLE = dict(batch_size="all", local_epochs=4, learning_rate=0.4)


def graph_of(peers=4, kind="line", **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**(BASE | manifest)))


def data_of(peers):
    shards = [peer.learner.shard for peer in peers]
    return {i: Data(s.train_x.reshape(len(s.train_x), -1).astype(np.float64), s.train_y) for i, s in enumerate(shards)}


def settings_of(graph, draws=0.0):
    m, options = graph.manifest, FedSoft(graph.manifest, 0, graph).options
    numbers = (m.local_epochs, m.learning_rate, options.strength, options.importance_every, options.sigma)
    return oracle.Settings(m.seed, m.rounds, *numbers, draws)


def compare(peers, wanted, atol=4e-6):
    w, centers, u = wanted
    for i, peer in enumerate(peers):
        np.testing.assert_allclose(peer.state.importance, u[i], atol=1e-9)
        np.testing.assert_allclose(peer.models[:-1], centers[i], atol=atol)
        np.testing.assert_allclose(peer.models[-1], w[i], atol=atol)


@pytest.mark.parametrize("kind", ["line", "star"])
@pytest.mark.parametrize("options", [{"strength": 0.7}, {"strength": 0.3, "variant": "select", "rate": 0.5}])
def test_a_run_equals_the_oracle(kind, options):
    graph = graph_of(4, kind, options=options, **WHOLE)
    peers = peers_of(graph)
    around = {i: sorted([i, *graph.neighbors(i)]) for i in graph.ids}
    expected = oracle.run(around, data_of(peers), peers[0].models[:-1], settings_of(graph, options.get("rate", 0.0)))
    done = []
    finish(peers, lambda t: done.append(compare(peers, expected[t])))
    assert len(done) == 4
    assert any(abs(share - 0.5) > 0.05 for u in expected[-1][2].values() for share in u)
    if "variant" in options:
        assert peers[1].totals["models_folded"] < peers[1].totals["models_sent"] * 2
        assert any(not np.array_equal(a, b) for a, b in zip(peers[0].models[:-1], peers[1].models[:-1], strict=True))


def test_server_form_equals_neighbors_on_the_complete_graph_and_the_oracle():
    graph = graph_of(4, "complete", options={"strength": 0.7}, **WHOLE)
    clients = [Result(client) for client in run_algorithm_server(graph, None).values()]
    between = run(graph)
    assert len({peer.learner.count() for peer in between}) > 2, "sizes weigh"
    everyone = {i: list(graph.ids) for i in graph.ids}
    expected = oracle.run(everyone, data_of(between), peers_of(graph)[0].models[:-1], settings_of(graph))
    for peers in (clients, between):
        compare(peers, expected[-1])
        assert all(peer.final["metric_value"] == peer.learner.evaluate(peer.models[-1]).metric for peer in peers)


def test_a_center_is_the_model_of_the_one_client_drawn_for_it():
    graph = graph_of(5, "complete", rounds=2, **WHOLE)
    clients = [Result(c) for c in run_algorithm_server(graph, None, AlgorithmServerOptions(selected=1)).values()]
    for t in (0, 1):
        active = [peer.history[t]["active"] for peer in clients]
        assert 1 <= sum(active) <= 2, "one client for each of two centers, perhaps the same"
    trained = {peer.models[-1].tobytes() for peer in clients if peer.history[-1]["active"]}
    assert {center.tobytes() for center in clients[0].models[:-1]} == trained


IMPORTANCE = np.array([[0.9, 0.2, 0.5, 0.1, 0.6], [0.1, 0.8, 0.5, 0.9, 0.4]])  # [S, clients]


def marked_server(selected) -> FedSoftServer:
    """A server whose clients do not train; the model of client k is 4 ** k everywhere."""
    server = FedSoftServer(graph_of(5, "complete"), AlgorithmServerOptions(selected=selected), SimulatedSettings())
    server.train = lambda place: {}
    for k, workspace in enumerate(server.workspaces):
        workspace.models.replace(2, np.full_like(workspace.models.model(2), 4**k))
        workspace.round_index, workspace.state = (
            1,
            replace(workspace.state, importance=tuple(IMPORTANCE[:, k].tolist())),
        )
    return server


def test_the_server_draws_clients_by_importance_and_samples():
    server, drawn = marked_server(1), np.zeros((2, 5))
    counts = [workspace.learner.count() for workspace in server.workspaces]
    for t in range(3000):
        server.train_and_average(t)
        for s in (0, 1):
            drawn[s, round(math.log(server.models[s][0], 4))] += 1
    v = IMPORTANCE * counts / (IMPORTANCE * counts).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(drawn / 3000, v, atol=0.03)
    for other in (np.full((2, 5), 0.2), IMPORTANCE / IMPORTANCE.sum(axis=1, keepdims=True), v[::-1]):
        assert np.abs(other - v).max() > 0.1, "choose another split"


def test_a_center_is_the_uniform_mean_of_the_clients_drawn_for_it():
    server = marked_server(3)
    trained = server.train_and_average(0)
    means = {sum(4**k for k in clients) / 3: set(clients) for clients in combinations(range(5), 3)}
    drawn = [means[min(means, key=lambda mean, c=center: abs(mean - c[0]))] for center in server.models[:2]]
    for center, clients in zip(server.models[:2], drawn, strict=True):
        np.testing.assert_allclose(center, sum(4**k for k in clients) / 3, rtol=1e-6)
    assert set(trained) == drawn[0] | drawn[1]


def test_importance_is_the_share_of_samples_or_sigma():
    assert importance([30, 10, 0], 1e-4) == (0.75, 0.25, 1e-4)


def test_one_center_pulls_as_the_explicit_sum_does():
    draw = np.random.default_rng(0)
    centers, w = [draw.normal(size=20).astype(np.float32) for _ in range(3)], draw.normal(size=20)
    for u in ([0.5, 0.3, 0.2], [1.0, 1e-4, 1e-4]):
        center, strength = pull(centers, u, 0.7)
        explicit = 0.7 * sum(share * (w - c) for share, c in zip(u, centers, strict=True))
        np.testing.assert_allclose(strength * (w - center), explicit, atol=1e-6)


def test_without_strength_a_peer_trains_alone_and_with_much_it_stays_at_its_centers():
    free = run(graph_of(3, options={"strength": 0.0}, **WHOLE))
    held = run(graph_of(3, options={"strength": 1000.0}, **(WHOLE | {"learning_rate": 1e-3})))
    for peer in free:
        theta = peers_of(graph_of(3, options={"strength": 0.0}, **WHOLE))[peer.peer_id]
        start, _ = pull(theta.models[:-1], peer_importance(theta), 1.0)
        for _ in range(4):
            start, _ = theta.learner.train(start, TrainingPlan(epochs=4, seed=0, learning_rate=0.4, batch_size="all"))
        np.testing.assert_allclose(peer.models[-1], start, atol=2e-5)
    for peer in held:
        center, _ = pull(peer.models[:-1], peer.state.importance, 1.0)
        assert np.abs(peer.models[-1] - center).max() < 5e-3


def peer_importance(peer):
    losses = np.stack([peer.learner.sample_losses(model) for model in peer.models[:-1]])
    return importance(list(np.bincount(losses.argmin(axis=0), minlength=len(losses))), 1e-4)


def test_weights_of_a_center_add_up_to_one_by_targets():
    graph = graph_of(3, "complete")
    algorithm = FedSoft(graph.manifest, 0, graph)
    arrival = header(slot=2, sample_count=40, numbers=Numbers.of(0.25, 0.75))
    assert algorithm.targets(FedSoftState(), arrival) == (Target(0, 10.0), Target(1, 30.0))
    state = FedSoftState(has_trained=True, shares=(0.5, 0.5), sample_count=20)
    assert [algorithm.own_share(state, s, 0.0) for s in (0, 1)] == [10.0, 10.0]
    assert algorithm.own_share(replace(state, has_trained=False), 0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("variant", "slot", "numbers", "code"),
    [
        ("weighted", 2, (0.25, 0.75), None),
        ("weighted", 2, (1.0, 1e-4), None),
        ("weighted", 0, (0.25, 0.75), RefusalCode.SLOT_OUT_OF_RANGE),
        ("weighted", 2, (), RefusalCode.WEIGHT_OUT_OF_RANGE),
        ("weighted", 2, (0.25, 0.76), RefusalCode.WEIGHT_OUT_OF_RANGE),
        ("weighted", 2, (1.0, 0.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
        ("weighted", 2, (1.5, -0.5), RefusalCode.WEIGHT_OUT_OF_RANGE),
        ("weighted", 2, (0.5, 0.25, 0.25), RefusalCode.WEIGHT_OUT_OF_RANGE),
        ("select", 2, (1.0, 0.0), None),
        ("select", 2, (0.0, 0.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
        ("select", 2, (0.5, 1.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
    ],
)
def test_headers_are_checked(variant, slot, numbers, code):
    graph = graph_of(3, options={"variant": variant})
    rejection = FedSoft(graph.manifest, 0, graph).rejects({}, header(slot=slot, numbers=Numbers.of(numbers)), None)
    assert (rejection and rejection.code) == code


def test_centers_are_scored_on_each_true_distribution():
    graph = graph_of(4, "complete", rounds=2)
    for peer in run(graph):
        truth = peer.learner.test_cluster
        scores = peer.history[-1]["state"]["center_scores"]
        assert scores == center_scores(peer.learner, peer.models[:-1], truth)
        for center, rows in zip(peer.models[:-1], scores, strict=True):
            assert [size for _, size in rows] == np.bincount(truth).tolist()
            assert sum(total for total, _ in rows) / len(truth) == pytest.approx(peer.learner.evaluate(center).metric)

"""Personalized algorithms between neighbors against a float64 oracle; what travels; special cases."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError, RefusalCode
from peer.algorithms.registry import algorithms
from peer.core.encoding import payload_size
from peer.core.messages import PullRequest
from tests.oracle import personal as oracle
from tests.oracle.fedspd import Data
from tests.tools.simulated import finish, peers_of, run

SMALL = {"samples_per_peer": 50, "test_per_peer": 20}
BASE = dict(task="digits", split="rotated_hard", split_options=SMALL, rounds=3, model="mlr", batch_size=1000)
RATE = 0.3
OPTIONS = {  # algorithm and variant: the options of both
    "pfedme": ({"strength": 2.0, "inner_steps": 3}, {"strength": 2.0, "steps": 3}),
    "ditto": ({"strength": 0.7}, {"strength": 0.7}),
    "ditto, epochs": ({"strength": 0.7, "personal_epochs": 2}, {"strength": 0.7, "personal": 2}),
    "fedprox": ({"strength": 0.9}, {"strength": 0.9}),
    "apfl": ({}, {}),
    "apfl, fixed": ({"alpha": 0.2, "adapt": False}, {"alpha": 0.2, "adapt": 0}),
    "perfedavg": ({"inner_learning_rate": 0.2}, {"inner": 0.2}),
    "perfedavg, steps": ({"adapt_steps": 3}, {"inner": RATE, "adapted": 3}),
    "dpsgd": ({}, {}),
    "fedrep": ({}, {"head": 10}),
    "fedrep, epochs": ({"head_epochs": 2}, {"head": 10, "head_epochs": 2}),
    "dfedavg, private": ({}, {"head": 10, "joint": 1}),
}
PRIVATE = {"pfedme", "ditto", "apfl"}  # with a private model
HEADS = {"fedrep", "dfedavg"}  # with private tensors


def graph_of(name, peers=4, kind="line", **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    algorithm, _, variant = name.partition(",")
    run = BASE | {"algorithm": algorithm, "options": OPTIONS.get(name, ({},))[0]}
    private = algorithm == "fedrep" or variant == " private"
    run |= ({"private_parameters": ["*bias"]} if private else {}) | manifest
    return Graph(made.nodes, made.edges, Manifest(**run))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["line", "star"])
def test_a_run_equals_the_oracle(name, kind):
    graph = graph_of(name, 4, kind, local_epochs=4, learning_rate=RATE)
    peers, data, method = peers_of(graph), {}, graph.manifest.algorithm
    for i, peer in enumerate(peers):
        shard = peer.learner.shard
        data[i] = Data(shard.train_x.reshape(len(shard.train_x), -1).astype(np.float64), shard.train_y)
    neighbors = {i: list(graph.neighbors(i)) for i in graph.ids}
    start = peers[0].learner.initial_model(0) * 0 + (peers[0].models[1] if method in PRIVATE else peers[0].models[0])
    of_oracle = "fedrep" if method in HEADS else method
    expected = oracle.run(of_oracle, neighbors, data, start, 3, 4, RATE, **OPTIONS[name][1])
    compared = []

    def compare(t):
        for i, peer in enumerate(peers):
            wanted = expected[t][i]
            np.testing.assert_allclose(peer.algorithm.evaluation_model(peer.workspace), wanted.personal, atol=3e-6)
            np.testing.assert_allclose(peer.models[0], wanted.w, atol=3e-6)
            if method in PRIVATE:
                np.testing.assert_allclose(peer.models[1], wanted.v, atol=3e-6)
            if method == "apfl":
                assert peer.state.alpha == pytest.approx(wanted.alpha, abs=1e-6)
        compared.append(t)

    finish(peers, compare)
    assert compared == [0, 1, 2]
    moved = [np.abs(wanted.w - start).max() for wanted in expected[-1].values()]
    assert min(moved) > 0.05
    if name == "apfl":
        assert max(abs(wanted.alpha - 0.5) for wanted in expected[-1].values()) > 1e-4


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_no_neighbor_can_pull_a_private_model(name):
    peers = run(graph_of(name))
    host = peers[1]._peer.host
    host.closed = False
    assert host.algorithm.held == 2 and len(host.workspace.models) == 2
    incarnation = host.state.neighbors[0].incarnation
    header, payload = host.answer_pull(PullRequest(0, incarnation, 0))
    assert header.slot == 0 and bytes(payload()) == peers[1].models[0].tobytes()
    assert host.answer_pull(PullRequest(0, incarnation, 1)).code is RefusalCode.SLOT_OUT_OF_RANGE
    assert not np.array_equal(peers[1].models[0], peers[1].models[1])


@pytest.mark.parametrize("name", ["pfedme", "ditto", "apfl", "perfedavg"])
def test_both_models_are_evaluated(name):
    for peer in run(graph_of(name, learning_rate=0.3)):
        row = peer.history[-1]
        assert row["metric_shared"] == peer.learner.evaluate(peer.models[0]).metric
        personal = peer.algorithm.evaluation_model(peer.workspace)
        assert row["metric_value"] == peer.learner.evaluate(personal).metric
        assert not np.array_equal(personal, peer.models[0])
        assert peer.final["metric_value"] == peer.learner.evaluate(peer.personalized).metric


def test_pfedme_without_strength_pull_and_with_rho_one():
    one = run(graph_of("pfedme", options={"strength": 1.0, "rho": 1.0}, kind="line", peers=2, rounds=1))
    other = run(graph_of("pfedme", options={"strength": 1.0, "rho": 0.0}, kind="line", peers=2, rounds=1))
    initial = peers_of(graph_of("pfedme"))[0].models[0]
    for peer in other:
        assert np.abs(peer.models[0] - initial).max() < 1e-6, "rho = 0 leaves w"
    mean = np.mean([peer.models[1] for peer in one], axis=0)
    for peer in one:
        np.testing.assert_allclose(peer.models[0], mean, atol=1e-6)  # rho = 1: w is theta, then averaged


def test_pfedme_keeps_a_share_of_the_own_w():
    all_, half = (
        run(graph_of("pfedme", peers=2, rounds=1, options={"beta": beta, "strength": 1.0})) for beta in (1.0, 0.5)
    )
    mean = all_[0].models[0]
    apart = [peer.models[0] - mean for peer in half]
    np.testing.assert_allclose(apart[0], -apart[1], atol=1e-6)
    assert np.abs(apart[0]).max() > 1e-4


def test_ditto_without_strength_trains_the_personal_model_as_local_does():
    mine = run(graph_of("ditto", options={"strength": 0.0}, model="mlp", batch_size=20))
    shared = run(graph_of("dfedavg", model="mlp", batch_size=20))
    for one, two in zip(mine, shared, strict=True):
        assert one.models[0].tobytes() == two.models[0].tobytes(), "the shared model is that of dfedavg"
    assert len({peer.models[1].tobytes() for peer in mine}) == len(mine)


def test_fedprox_without_strength_is_dfedavg_and_a_strong_pull_holds_the_model():
    free, plain, held = (
        run(graph_of(name, options=options, model="mlp", batch_size=20, rounds=1))
        for name, options in (("fedprox", {"strength": 0.0}), ("dfedavg", {}), ("fedprox", {"strength": 5.0}))
    )
    start = peers_of(graph_of("dfedavg", model="mlp", batch_size=20))[0].models[0]
    for one, two, three in zip(free, plain, held, strict=True):
        assert one.models[0].tobytes() == two.models[0].tobytes()
        moved = [float(np.linalg.norm(peer.models[0] - start)) for peer in (one, three)]
        assert 0 < moved[1] < 0.8 * moved[0]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_apfl_with_fixed_alpha_is_shared_or_private(alpha):
    for peer in run(graph_of("apfl", options={"alpha": alpha, "adapt": False})):
        assert peer.state.alpha == alpha
        assert peer.personalized.tobytes() == peer.models[1 if alpha else 0].tobytes()


@pytest.mark.parametrize(("name", "private"), [("fedrep", []), ("fedrep", ["3.*"]), ("dfedavg", ["3.*"])])
def test_a_private_head_sends_the_bytes_of_the_body_alone(name, private):
    settings = {"model": "mlp", "model_options": {"hidden": 16}, "batch_size": 20, "private_parameters": private}
    peers = run(graph_of(name, **settings))
    whole = peers[0].learner.schema
    body = peers[0].algorithm.travelling(peers[0].workspace.manifest, whole)
    assert [t.name.rpartition(".")[2] for t in body.tensors] == ["weight", "bias"] and len(whole.tensors) == 4
    size = payload_size(body, "float32")
    assert size == 4 * body.size < payload_size(whole, "float32")
    assert {p.totals["payload_bytes_sent"] for p in peers} == {size * 3, size * 6}
    heads = {peer.personalized[body.size :].tobytes() for peer in peers}
    assert len(heads) == len(peers) and {len(peer.models[0]) for peer in peers} == {whole.size}
    assert [len(peer._peer.host.format.schema.tensors) for peer in peers] == [2] * len(peers)


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("head", ["*bias"], "run.private_parameters"),
        ("joint", True, "run.algorithm = dfedavg .* run.private_parameters"),
    ],
)
def test_a_removed_option_is_refused_with_what_replaces_it(option, value, found):
    with pytest.raises(ConfigError, match=rf"run\.options\.{option}: expected no such option, got .*\. .*{found}"):
        peers_of(graph_of("fedrep", options={option: value}))


@pytest.mark.parametrize("name", ["pfedme", "apfl", "perfedavg"])
@pytest.mark.parametrize("changes", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_single_steps_refuse_other_optimizers(name, changes):
    graph = graph_of(name)
    with pytest.raises(ConfigError, match=next(iter(changes))):
        algorithms()[name](graph.manifest.model_copy(update=changes), 0, graph)


def test_pfedme_refuses_a_step_that_overshoots():
    with pytest.raises(ConfigError, match="at most 1"):
        peers_of(graph_of("pfedme", options={"strength": 15.0}, learning_rate=0.1))

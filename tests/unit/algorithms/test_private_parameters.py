"""Tensors that stay at home (run.private_parameters), with every algorithm: what a neighbor gets, and what they are good for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from torch import nn

import peer
from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError, PeerError
from peer.algorithms.registry import algorithms
from peer.core.encoding import decode
from peer.core.messages import PullRequest
from peer.host.receiving import Receiving
from tests.tools.simulated import finish, peers_of, run

SENDING = sorted(set(algorithms()) - {"local"})
OPTIONS: dict[str, dict[str, Any]] = {"pfedme": {"strength": 1.0}, "cgpfl": {"strength": 1.0, "align_every": 1}}
BASE: dict[str, Any] = {
    **{"task": "digits", "split": "rotated_hard", "split_options": {"samples_per_peer": 50, "test_per_peer": 20}},
    **{"rounds": 3, "model": "mlp", "model_options": {"hidden": 8}, "batch_size": 20, "learning_rate": 0.05},
}
NAMES = ["1.weight", "1.bias", "3.weight", "3.bias"]


def graph_of(name: str, peers: int = 4, kind: str = "complete", **changes: Any) -> Graph:
    settings = BASE | {"algorithm": name, "options": OPTIONS.get(name, {}), "private_parameters": ["3.*"]} | changes
    made = make_graph(kind, peers, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**settings))


def tensors(result: Any, model: np.ndarray) -> dict[str, np.ndarray]:
    return {spec.name: model[place] for spec, place in result.learner.schema.slices()}


# ---- what a neighbor gets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["float32", "int8", "delta_top10"])
@pytest.mark.parametrize("name", SENDING)
def test_a_neighbor_reads_the_tensors_that_travel_and_no_other(name, encoding, monkeypatch):
    peers, read = peers_of(graph_of(name, encoding=encoding)), Counter[str]()
    fold = Receiving.fold

    def reading(self, effect):
        header, payload = effect.arrival.header, effect.arrival.buffer
        sender = peers[header.sender]
        schema = sender._peer.host.format.schema
        assert [spec.name for spec in schema.tensors] == NAMES[:2]
        assert decode(payload, schema, header.encoding).size == schema.size, "the payload has these tensors and no more"
        assert header.size_bytes == len(payload.tobytes())
        for model in sender.models:
            parts = tensors(sender, model)
            assert parts["3.weight"].tobytes() not in payload.tobytes()
            read["body" if parts["1.weight"].tobytes() in payload.tobytes() else "another"] += 1
        fold(self, effect)

    monkeypatch.setattr(Receiving, "fold", reading)
    finish(peers)
    assert read["another"] or read["body"]
    assert read["body"] or encoding != "float32", "the comparison of bytes would find a tensor that travels"


@pytest.mark.parametrize("name", SENDING)
def test_a_neighbor_that_pulls_gets_the_same_tensors(name):
    one = run(graph_of(name))[1]
    host = one._peer.host
    host.closed = False
    for slot in range(host.algorithm.slots):
        header, payload = host.answer_pull(PullRequest(0, host.state.neighbors[0].incarnation, slot))
        parts, sent = tensors(one, one.models[slot]), bytes(payload())
        assert header.size_bytes == len(sent) == 4 * sum(parts[name].size for name in NAMES[:2])
        assert sent == b"".join(parts[name].tobytes() for name in NAMES[:2])


def test_the_sketches_of_fedspd_are_of_what_travels():
    (one, *_) = peers_of(graph_of("fedspd", options={"align_every": 1, "sketch_size": 8}))
    one.workspace.round_index = 1
    before = one.algorithm.assign(one.workspace).sketches
    schema = one.learner.schema
    head, body = ([place for spec, place in schema.slices() if spec.name[0] == which] for which in "31")
    for places, same in ((head, True), (body, False)):
        for slot in range(2):
            model = one.models[slot].copy()
            for place in places:
                model[place] += 1 + slot
            one.workspace.models.replace(slot, model)
        assert np.array_equal(before, one.algorithm.assign(one.workspace).sketches) == same


# ---- private parts of slots --------------------------------------------------------------------------------------------------


def test_each_slot_has_a_private_part_that_only_own_training_changes():
    """A cluster that a peer never trains keeps its first private part under the neighbors' body."""
    peers = peers_of(graph_of("dfca", rounds=4))
    first = [model.copy() for model in peers[0].models]
    trained: dict[int, set[int]] = {each.peer_id: set() for each in peers}

    def note(round_index: int) -> None:
        for each in peers:
            trained[each.peer_id] |= set(each.state.trained)

    finish(peers, note)
    seen = Counter[str]()
    for each in peers:
        for slot, model in enumerate(each.models):
            own, start = tensors(each, model), tensors(each, first[slot])
            idle = slot not in trained[each.peer_id]
            seen["idle" if idle else "trained"] += 1
            assert (own["3.weight"].tobytes() == start["3.weight"].tobytes()) == idle
            assert own["1.weight"].tobytes() != start["1.weight"].tobytes()
    assert seen["idle"] and seen["trained"], "choose another seed"


@pytest.mark.parametrize("name", ["dfedavg", "dpsgd", "pfedme", "ditto", "perfedavg"])
def test_what_travels_agrees_and_what_is_private_differs(name):
    """On a complete graph with Metropolis weights, one exchange makes the bodies equal."""
    peers = run(graph_of(name, rounds=1))
    bodies, heads = zip(
        *((tensors(p, p.models[0])["1.weight"], tensors(p, p.models[0])["3.weight"]) for p in peers), strict=True
    )
    apart = np.abs(np.stack(bodies) - bodies[0]).max()
    assert apart < 1e-2 if name == "dpsgd" else apart < 1e-6  # dpsgd adds a step of its own
    assert len({head.tobytes() for head in heads}) == len(peers)


def test_dfedavg_goes_on_with_the_private_tensors_exactly_as_trained():
    peers = peers_of(graph_of("dfedavg", rounds=2))
    trained: dict[tuple[int, int], bytes] = {}
    for each in peers:
        train = each.algorithm.train

        def noting(workspace, each=each, train=train):
            fields = train(workspace)
            model = tensors(each, workspace.models.model(0))
            trained[each.peer_id, workspace.round_index] = model["3.weight"].tobytes()
            return fields

        each.algorithm.train = noting
    compared = []

    def compare(round_index: int) -> None:
        for each in peers:
            assert tensors(each, each.models[0])["3.weight"].tobytes() == trained[each.peer_id, round_index]
            compared.append(round_index)

    finish(peers, compare)
    assert compared == [0] * 4 + [1] * 4


@pytest.mark.parametrize("options", [{}, {"variant": "select", "rate": 0.3}])  # select: not in all centers
def test_the_centers_of_fedsoft_have_the_private_part_of_the_own_model(options):
    for each in run(graph_of("fedsoft", options=options)):
        own = tensors(each, each.models[-1])["3.weight"].tobytes()
        assert [tensors(each, model)["3.weight"].tobytes() for model in each.models[:-1]] == [own] * 2


# ---- normalization: arXiv 2102.07623 -------------------------------------------------------------------------------------------


class Shifted(peer.Task):
    """The same classes everywhere, measured by instruments of other offsets: a shift of features."""

    classes = 3
    preprocessing = peer.Preprocessing(divisor=1)

    def make_model(self):
        return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))

    def load_shard(self, peer_id):
        draw = np.random.default_rng(peer_id)
        x = draw.normal(size=(160, 6)).astype(np.float32)
        y = x[:, :3].argmax(1)
        x = x + np.random.default_rng(100 + peer_id).normal(0, 4, 6).astype(np.float32)
        return peer.Shard(train_x=x[:80], train_y=y[:80], test_x=x[80:], test_y=y[80:])


STATISTICS, NORM = ["*.running_*"], ["1.*"]


@pytest.fixture(scope="module")
def shifted() -> dict[str, Any]:
    def result(private: list[str], **run: Any) -> Any:
        keys = {"rounds": 12, "learning_rate": 0.1, "batch_size": 20, "private_parameters": private, **run}
        graph = peer.Graph.make("complete", peers=4, run={"algorithm": "dfedavg", **keys})
        return peer.simulate(graph, Shifted(), progress=False)

    found = {"plain": result([]), "statistics": result(STATISTICS), "norm": result(NORM)}
    return found | {"one round": result(STATISTICS, rounds=1), "one round, norm": result(NORM, rounds=1)}


def test_private_normalization_is_better_where_features_are_shifted(shifted):
    plain, statistics, norm = (shifted[name].metrics["metric_mean"] for name in ("plain", "statistics", "norm"))
    assert min(statistics, norm) > plain + 0.3, (plain, statistics, norm)


@pytest.mark.parametrize(("name", "private"), [("statistics", {"1.running_mean", "1.running_var"}), ("norm", {*()})])
def test_normalization_differs_between_peers_and_the_rest_agrees(shifted, name, private):
    private = private or {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    models = [models["personalized"] for models in shifted["one round" + ", norm" * (name == "norm")].models.values()]
    differs = {key for key in models[0] if any(np.abs(m[key] - models[0][key]).max() > 1e-5 for m in models)}
    assert differs == private


def test_the_cluster_files_have_no_private_tensor_and_the_personalized_ones_all(shifted):
    for models in shifted["norm"].models.values():
        assert set(models["cluster-0"]) == {"0.weight", "0.bias", "3.weight", "3.bias"}
        assert set(models["personalized"]) >= {"1.weight", "1.bias", "1.running_mean", "1.running_var"}


def test_differential_privacy_allows_batch_norm_whose_statistics_stay():
    options = {"dp_epsilon": 5.0, "dp_clip": 1.0, "min_cluster_samples": 10}
    keys = {"algorithm": "fedspd", "options": options, "rounds": 1}
    with pytest.raises(PeerError, match=r"run\.private_parameters"):
        peer.simulate(peer.Graph.make("ring", peers=3, run=keys), Shifted(), progress=False)
    graph = peer.Graph.make("ring", peers=3, run=keys | {"private_parameters": STATISTICS})
    assert peer.simulate(graph, Shifted(), progress=False).metrics["rounds"] == 1


# ---- refusals ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SENDING)
@pytest.mark.parametrize(("patterns", "words"), [(["3.*", "head*"], "'head\\*'"), (["*"], "which leaves none")])
def test_patterns_that_do_not_fit_are_refused_with_the_names(name, patterns, words):
    with pytest.raises(ConfigError, match=rf"run\.private_parameters: .*{words}.*: {', '.join(NAMES)}\."):
        peers_of(graph_of(name, private_parameters=patterns))


def test_fedrep_refuses_private_tensors_without_a_head():
    graph = peer.Graph.make("ring", peers=3, run={"algorithm": "fedrep", "private_parameters": STATISTICS, "rounds": 1})
    with pytest.raises(ConfigError, match=r"run\.private_parameters: .* fedrep trains a head, got \['\*.running_\*'\]"):
        peer.simulate(graph, Shifted(), progress=False)


def test_peers_with_other_private_parameters_refuse_each_other():
    hosts = [
        peers_of(graph_of("dfedavg", private_parameters=private))[0]._peer.host for private in (["3.*"], ["3.bias"])
    ]
    mine, theirs = (dataclasses.asdict(host.compared) for host in hosts)
    assert {key for key in mine if mine[key] != theirs[key]} >= {"manifest_digest", "schema_digest"}

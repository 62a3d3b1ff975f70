"""Whole runs with secure sums in one process: the bits of each sum against whole numbers, and the run against one without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import peer
from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError, DivergedError, GraphError, UsageError
from peer.algorithms.registry import algorithm_named, algorithms
from peer.core.messages import PullRequest
from peer.host.receiving import Receiving
from tests.tools import simulated
from tests.tools.sums import oracle

RUN: dict[str, Any] = {
    "task": "digits",
    "rounds": 3,
    "split_options": {"samples_per_peer": 80, "test_per_peer": 40},
    "batch_size": 20,
}
SUMMED = ("apfl", "blend", "dfedavg", "ditto", "dpsgd", "fedrep", "perfedavg", "pfedme")
MODEL = {"fedrep": {"model": "mlp"}}


def graph_of(
    algorithm: str = "dfedavg", peers: int = 5, links: list[tuple[int, int]] | None = None, **run: Any
) -> Graph:
    made = make_graph("complete", peers, seed=3)
    settings = Manifest.model_validate(RUN | MODEL.get(algorithm, {}) | {"algorithm": algorithm, **run})
    return Graph(made.nodes, tuple(links) if links else made.edges, settings)


UNEVEN = [
    (0, 1),
    (0, 2),
    (0, 3),
    (0, 4),
    (1, 2),
    (1, 3),
    (2, 3),
    (2, 4),
    (3, 4),
    (4, 5),
    (5, 0),
    (5, 1),
]  # degrees 3 to 5


def test_the_algorithms_that_are_summed():
    assert {name for name, kind in algorithms().items() if kind.sums} == {*SUMMED}


@pytest.mark.parametrize("name", sorted({*SUMMED} - {"blend"}))  # which has clusters without sums
def test_a_run_is_that_without_sums_up_to_rounding(name):
    plain, summed = simulated.run(graph_of(name)), simulated.run(graph_of(name, secure_sum=8.0))
    for with_models, with_sums in zip(plain, summed, strict=True):
        others = [n for n in range(5) if n != with_sums.peer_id]
        assert [row["summed"] for row in with_sums.history] == [others] * 3
        assert with_sums.totals["sums_lost"] == 0 and not with_sums.refusals
        for one, other in zip(with_models.models, with_sums.models, strict=True):
            assert np.allclose(one, other, rtol=1e-3, atol=3e-5)
        assert "summed" not in with_models.history[0]


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"mix": "uniform"},
        {"aggregation": "batch"},
        {"private_parameters": ["*.bias"]},
        {"algorithm": "blend", "options": {"tune_epochs": 1}},
    ],
)
def test_each_sum_has_the_bits_of_whole_numbers(run, monkeypatch):
    peers = simulated.peers_of(graph_of(peers=6, links=UNEVEN, secure_sum=8.0, **run))
    by_receiving = {id(peer._peer.host.receiving): peer for peer in peers}
    opens, checked = Receiving.open_sum, []

    def checked_sum(receiving):
        found = opens(receiving)
        peer = by_receiving[id(receiving)]
        round_index = peer._peer.host.state.round.index
        weights = peer.algorithm.weights_at(peer.peer_id)
        offered = {n: peers[n].workspace.models.snapshots(round_index, 0)[0] for n in weights}
        expected = oracle([(offered[n], weights[n]) for n in weights], weights, 8.0)
        assert found is not None and found.tobytes() == expected.tobytes()
        checked.append(peer.peer_id)
        return found

    monkeypatch.setattr(Receiving, "open_sum", checked_sum)
    simulated.finish(peers)
    assert sorted(checked) == sorted([*range(6)] * 3)


def test_two_runs_have_the_same_bits_though_their_masks_differ():
    one, other = (simulated.run(graph_of(secure_sum=8.0)) for _ in range(2))
    assert [peer.models[0].tobytes() for peer in one] == [peer.models[0].tobytes() for peer in other]


def test_a_private_run_sums():
    peers = simulated.run(graph_of(secure_sum=8.0, privacy={"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}))
    assert all(row["summed"] and row["epsilon"] > 0 for peer in peers for row in peer.history)


def test_a_private_peer_without_budget_is_summed_by_nobody_and_still_sums():
    run = graph_of(
        secure_sum=8.0, privacy={"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, "epsilon_max": 100.0}
    )
    peers = simulated.peers_of(run)
    budget = peers[2]._peer.host.state.budget
    budget.affords = lambda charge: peers[2]._peer.host.state.round.index < 2
    simulated.finish(peers)
    last = {peer.peer_id: peer.history[-1] for peer in peers}
    assert [last[n]["active"] for n in range(5)] == [True, True, False, True, True]
    assert last[0]["summed"] == [1, 3, 4] and last[2]["summed"] == [0, 1, 3, 4]
    assert not any(peer.totals["sums_lost"] for peer in peers)


@pytest.mark.parametrize("privacy", [{}, {"privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}}])
def test_blend_weighs_its_summed_model_without_clusters(privacy):
    peers = simulated.run(graph_of("blend", secure_sum=8.0, options={"tune_epochs": 1}, **privacy))
    for peer_ in peers:
        offers = peer_.algorithm.offers(peer_.workspace.state, 2, 0, 0, None)
        assert [(offer.slot, len(offer.numbers)) for offer in offers] == [(0, 0)], "no weight leaves a peer"
        assert all(row["summed"] for row in peer_.history) and len(peer_.models) == 3
        assert [*peer_.history[-1]["state"]["blend"]] == ["shared", "own", "shared, tuned"]
        assert peer_.final["predictor"] == "mixture" or privacy


@pytest.mark.parametrize("option", [{"initialization": "seeds"}, {"initialization": "local"}, {"warmup_rounds": 2}])
def test_blend_finds_no_clusters_from_sums(option):
    with pytest.raises(
        ConfigError, match=r"run\.options\.(initialization|warmup_rounds): expected nothing that finds clusters"
    ):
        simulated.run(graph_of("blend", secure_sum=8.0, options=option))


def test_clusters_of_blend_have_no_effect_with_sums():
    with pytest.raises(UsageError, match=r"run\.clusters.*no cluster has a model"):
        peer.Graph.make("complete", peers=5, run={"algorithm": "blend", "secure_sum": 8.0, "clusters": 3})


def test_an_outer_step_steps_from_a_sum():
    peers = simulated.run(graph_of(secure_sum=8.0, outer={"optimizer": "nesterov"}))
    assert all(row["summed"] for peer in peers for row in peer.history)


# ---- what leaves a peer -------------------------------------------------------------------------------------------------


def test_a_pull_gives_the_mean_of_the_last_sum_and_never_a_trained_model():
    peers = simulated.peers_of(graph_of(secure_sum=8.0))
    host = peers[1]._peer.host
    seen = []
    works = host.work

    def look(effect):
        done = works(effect)
        if host.engine.state.neighbors[0].connected:
            seen.append((effect.kind, host.state.round.index, host.answer_pull(PullRequest(0, 1, 0))))
        return done

    host.work = look
    simulated.finish(peers)
    own = [peers[1].workspace.models.snapshots(2, 0)[0].tobytes()]
    answers = [(kind, at, reply) for kind, at, reply in seen if isinstance(reply, tuple)]
    first = next(i for i, (_, _, reply) in enumerate(seen) if isinstance(reply, tuple))
    assert seen[first][0] == "close" and all("no sum was opened" in str(reply) for _, _, reply in seen[:first])
    for kind, at, (header, encoded) in answers:
        assert header.round_index == at + (kind == "close") or kind == "final"
        assert bytes(encoded()) not in own
    others = [peers[n].workspace.models.snapshots(2, 0)[0] for n in (0, 2, 3, 4)]
    assert np.allclose(np.frombuffer(answers[-1][2][1](), np.float32), np.mean(others, axis=0), atol=1e-6)


def test_no_model_of_the_last_round_is_tested_by_a_neighbor():
    peers = simulated.run(graph_of(secure_sum=8.0))
    tests = {entry["model_of"]: entry.get("missing") for entry in peers[0].final["model_tests"]}
    assert tests == {0: None, 1: "summed", 2: "summed", 3: "summed", 4: "summed"}


def test_a_value_beyond_the_bound_ends_the_peer_with_the_key_to_raise():
    with pytest.raises(DivergedError, match=r"expected values of at most 0\.01, run\.secure_sum, .* Raise the key"):
        simulated.run(graph_of(secure_sum=0.01))


# ---- what it cannot be combined with ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"pace": "async"}, "pace: expected lockstep, as a sum is of one round, with secure_sum, got async"),
        ({"edges": "one"}, 'edges: expected "all", as a sum of one model is the model'),
        ({"participation": 0.5}, "participation: expected 1, as a peer that sits out is the difference of two sums"),
        ({"dynamic_edges": 0.5}, "dynamic_edges: expected 0"),
        ({"encoding": "int8"}, "encoding: expected float32, as masked values are 4 bytes, with secure_sum, got int8"),
        ({"encoding": "delta_int8"}, "encoding: expected float32"),
        ({"stale_weight": 0.5}, "stale_weight: expected 0"),
        ({"checkpoint_rounds": 2}, "checkpoint_rounds: expected 1, as a restarted peer"),
        ({"checkpoint_rounds": 0}, "checkpoint_rounds: expected 1"),
        ({"screening": {"norm_bound": 2.0}}, "screening.norm_bound: expected null, as no norm is known"),
        ({"screening": {"clip": 2.0}}, "screening.clip: expected null"),
        ({"screening": {"trimmed_mean": 0.2}}, "screening.trimmed_mean: expected null"),
    ],
)
def test_settings_that_need_single_models_are_refused(run, words):
    with pytest.raises(ValueError, match="secure_sum") as refused:
        graph_of(secure_sum=8.0, **run)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", sorted({*algorithms()} - {*SUMMED, "local"}))
def test_algorithms_that_need_single_models_are_refused(name):
    graph = graph_of(name, secure_sum=8.0)
    with pytest.raises(ConfigError, match=r"expected one to which the sum of its neighbors' models is enough"):
        algorithm_named(name)(graph.manifest, 0, graph)


def test_making_a_graph_refuses_an_algorithm_that_is_not_summed():
    with pytest.raises(ConfigError, match=r"Change it, or set run\.secure_sum to null"):
        peer.Graph.make("complete", peers=5, run={"algorithm": "dfca", "secure_sum": 8.0})


def test_partners_are_refused():
    with pytest.raises(ConfigError, match=r"run\.options\.partners: expected 0 with run\.secure_sum"):
        simulated.run(graph_of(secure_sum=8.0, options={"partners": 2}))


def test_a_peer_with_two_neighbors_is_refused_by_every_reader_of_the_graph():
    made = make_graph("ring", 5, seed=1)
    with pytest.raises(
        GraphError, match=r"expected 3 to 500 neighbors of each peer with run\.secure_sum, got 2 of peer 0"
    ):
        Graph(made.nodes, made.edges, Manifest(algorithm="dfedavg", secure_sum=8.0))

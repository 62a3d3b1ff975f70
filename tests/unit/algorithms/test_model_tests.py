"""The tests of the last round's models: which models they are, and that each is tested as it was delivered."""

from __future__ import annotations

import pytest

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.algorithms.learner import measured
from tests.tools.simulated import peers_of, run

SMALL = {
    "rounds": 2,
    "model_options": {"hidden": 8},
    "split_options": {"samples_per_peer": 60, "test_per_peer": 30},
    "learning_rate": 0.1,
}


def graph_of(peers=4, kind="ring", **manifest):
    return make_graph(kind, peers, seed=1, manifest=parse_manifest({**SMALL, **manifest}, "test"))


def results_of(peer):
    return peer.final["model_tests"]


@pytest.mark.parametrize("screening", [{}, {"clip": 1e-3}])
def test_each_number_is_that_of_the_trained_model_before_any_average_or_clipping(screening):
    graph = graph_of(algorithm="dfedavg", rounds=1, screening=screening)
    found = run(graph)
    again = peers_of(graph)
    trained = {p.peer_id: p.workspace.fit(p.models[0], p.workspace.slot_plan(0))[0] for p in again}
    for peer, same in zip(found, again, strict=True):
        expected = [
            {"model_of": i, "slot": 0, "round_index": 0, **measured(same.learner.evaluate(trained[i]))}
            for i in sorted({peer.peer_id, *graph.neighbors(peer.peer_id)})
        ]
        assert results_of(peer) == expected
        assert any(test["metric_value"] != peer.final["metric_value"] for test in expected)


def test_the_slot_is_the_cluster_that_the_neighbor_trained():
    peers = run(graph_of(algorithm="dfca", clusters=2))
    slots = {p.peer_id: {t["model_of"]: t["slot"] for t in results_of(p)} for p in peers}
    for p in peers:
        (own,) = p.state.trained
        assert all(of[p.peer_id] == own for of in slots.values() if p.peer_id in of)


def test_of_an_algorithm_that_sends_all_its_models_each_is_tested():
    for peer in run(graph_of(algorithm="fedem", clusters=2)):
        assert [(t["model_of"], t["slot"]) for t in results_of(peer)] == [
            (i, slot) for i in sorted({peer.peer_id, (peer.peer_id + 1) % 4, (peer.peer_id - 1) % 4}) for slot in (0, 1)
        ]


def test_a_body_is_tested_under_the_own_head():
    graph = graph_of(algorithm="fedrep", rounds=1)
    peers = run(graph)
    for peer in peers:
        assert all(test["metric_value"] is not None for test in results_of(peer))
        assert peer.workspace.models.part.size < peer.learner.schema.size


def test_a_run_without_an_exchange_has_no_tests():
    assert all("model_tests" not in peer.final for peer in run(graph_of(algorithm="local")))


def test_who_sits_the_last_round_out_is_named_with_the_reason():
    peers = run(graph_of(algorithm="dfedavg", peers=6, kind="complete", participation=0.5))
    sat_out = [peer.peer_id for peer in peers if not peer.history[-1]["active"]]
    assert 0 < len(sat_out) < 6, "choose another seed"
    for peer in peers:
        missing = {test["model_of"]: test["missing"] for test in results_of(peer) if "missing" in test}
        assert missing == dict.fromkeys(sat_out, "sat_out")
        assert len(results_of(peer)) == 6


def test_the_tests_change_no_model_and_are_kept_by_nothing_afterwards(monkeypatch):
    with_tests = run(graph_of(algorithm="dfca"))
    monkeypatch.setattr("peer.core.rounds.absent", lambda state: ())
    monkeypatch.setattr("peer.core.rounds.all_skipped", lambda state: ())
    for one, other in zip(with_tests, run(graph_of(algorithm="dfca")), strict=True):
        assert "model_tests" not in other.final and "model_tests" in one.final
        assert all((a == b).all() for a, b in zip(one.models, other.models, strict=True))
        assert [*one.workspace.delivered.take()] == []

"""The final phase: every algorithm with one model has it, the guard follows held-out samples."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.algorithms.final_phase import SHARES, moved
from peer.algorithms.registry import algorithms
from tests.tools.simulated import run

SIZES = {"samples_per_peer": 40, "test_per_peer": 40}
BASE = dict(task="digits", split="rotated_hard", split_options=SIZES, rounds=2, model="mlr", local_epochs=1)
ONE_MODEL = sorted(name for name, kind in algorithms().items() if kind.result_is_model)


def graph_of(name="dfedavg", peers=4, **manifest) -> Graph:
    made = make_graph("ring", peers, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**(BASE | {"algorithm": name} | manifest)))


def plan_of(peer, path, **changes):
    return replace(peer.workspace.plan(peer.workspace.seed(*path)), **changes)


@pytest.mark.parametrize("name", ONE_MODEL)
def test_every_algorithm_with_one_model_trains_it_after_the_last_round(name):
    without, phase = (run(graph_of(name, model="mlp", final={"epochs": epochs})) for epochs in (0, 20))
    for before, after in zip(without, phase, strict=True):
        assert after.final["metric_before_final"] == before.final["metric_value"]
        assert after.final["metric_value"] == after.learner.evaluate(after.personalized).metric
        assert after.final["metric_after_final"] == after.final["metric_value"]
        assert not np.array_equal(before.personalized, after.personalized)
        assert all(np.array_equal(a, b) for a, b in zip(before.models, after.models, strict=True)), (
            "nothing else changes"
        )
        assert "metric_before_final" not in before.final


def test_an_algorithm_that_predicts_with_several_models_has_none():
    peer = run(graph_of("fedem", final={"epochs": 3}))[0]
    assert "metric_before_final" not in peer.final


def test_the_rate_decays():
    """Two epochs at eta and eta / 2 are a phase of two epochs with decay; without decay it is one training of two epochs."""
    peer = run(graph_of(final={"epochs": 2, "learning_rate": 0.4, "learning_rate_schedule": "step:factor=0.5"}))[0]
    first, _ = peer.workspace.fit(peer.models[0], plan_of(peer, ("final",), epochs=1, learning_rate=0.4))
    second, _ = peer.workspace.fit(first, plan_of(peer, ("final", 1), epochs=1, learning_rate=0.2))
    assert np.array_equal(second, peer.personalized)
    steady = run(graph_of(final={"epochs": 2, "learning_rate": 0.4}))[0]
    whole, _ = steady.workspace.fit(steady.models[0], plan_of(steady, ("final",), epochs=2, learning_rate=0.4))
    assert np.array_equal(whole, steady.personalized)


def test_the_schedule_is_over_the_epochs_of_the_phase():
    """A cosine over three epochs: each has its rate, and a fresh optimizer."""
    final = {"epochs": 3, "learning_rate": 0.4, "learning_rate_schedule": "cosine:end=0.5"}
    peer = run(graph_of(final=final, momentum=0.5))[0]
    model = peer.models[0]
    for epoch, rate in enumerate((0.4, 0.4 * 0.875, 0.4 * 0.625)):
        path = ("final", epoch) if epoch else ("final",)
        model, _ = peer.workspace.fit(model, plan_of(peer, path, epochs=1, learning_rate=rate))
    np.testing.assert_allclose(model, peer.personalized, atol=1e-6)


def test_the_guard_keeps_the_model_that_the_phase_would_spoil():
    """With an absurd rate every tuned model is worse on held-out samples: no peer moves."""
    spoiled = run(graph_of(final={"epochs": 3, "learning_rate": 1000.0}))
    guarded = run(graph_of(final={"epochs": 3, "learning_rate": 1000.0, "guard": True}))
    for bad, peer in zip(spoiled, guarded, strict=True):
        assert peer.final["final_share"] == 0.0
        assert peer.personalized.tobytes() == peer.models[0].tobytes()
        assert bad.final["loss"] > peer.final["loss"]


def test_the_guard_lets_a_model_go_that_the_phase_helps():
    """Two rounds of one epoch are far from enough: every peer gains by more training."""
    phase, guarded = run(graph_of(final={"epochs": 20})), run(graph_of(final={"epochs": 20, "guard": True}))
    for tuned, peer in zip(phase, guarded, strict=True):
        share = peer.final["final_share"]
        assert share > 0
        assert np.array_equal(peer.personalized, moved(peer.models[0], tuned.personalized, share))


def test_the_guard_asks_validation_data_where_a_peer_has_them():
    """DPFL holds some out for the whole run: the share of the lowest loss on them."""
    peer = run(graph_of("dpfl", final={"epochs": 20, "guard": True}))[0]
    tuned = run(graph_of("dpfl", final={"epochs": 20}))[0]
    before = run(graph_of("dpfl"))[0]
    losses = [
        peer.learner.mean_loss(moved(before.personalized, tuned.personalized, share), "validation") for share in SHARES
    ]
    assert peer.learner.count("validation") > 0
    assert peer.final["final_share"] == SHARES[int(np.argmin(losses))]


def test_a_share_of_nothing_or_all_is_one_of_the_two_models():
    start, end = np.float32([1, -0.0, 1e-44]), np.float32([3, 0.5, 7])
    assert moved(start, end, 0.0).tobytes() == start.tobytes()
    assert moved(start, end, 1.0).tobytes() == end.tobytes()
    np.testing.assert_array_equal(moved(start, end, 0.5), np.float32([2, 0.25, 3.5]))

"""Blend: what it trains and sends, what it holds out, how it weighs, and that it is near the best of its parts."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.algorithms.ensemble import PICKS, clearly_above, selected_weights
from peer.algorithms.personalize import mixed
from peer.algorithms.seeding import UNREACHED, Seeding
from peer.algorithms.workspace import Workspace
from peer.core.messages import ModelHeader
from peer.tasks.effect import keys_without_effect
from peer.zoo.algorithms.blend import Blend
from tests.tools.simulated import finish, peers_of, run

SIZES = {"samples_per_peer": 60, "test_per_peer": 40}
BASE = dict(
    task="digits", split="rotated_hard", split_options=SIZES, rounds=6, model="mlr", local_epochs=1, algorithm="blend"
)
PLAIN = {"options": {"initialization": "global", "warmup_rounds": 0}}


def graph_of(peers=6, kind="complete", **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**(BASE | manifest)))


def squared(truth):
    return lambda mixed: float(np.square(mixed - truth).mean())


# ---- weights ------------------------------------------------------------------------------------------------------------


def test_the_best_model_gets_every_pick_and_the_others_their_one():
    truth = np.linspace(0, 1, 9, dtype=np.float32)
    weights = selected_weights([truth, truth + 1, truth + 3], squared(truth))
    assert weights == pytest.approx(np.array([PICKS + 1, 1, 1]) / (PICKS + 3))


def test_errors_that_cancel_are_mixed():
    truth = np.zeros(8, np.float32)
    weights = selected_weights([truth + 1, truth - 1, truth + 9], squared(truth))
    mixed = weights[0] - weights[1] + 9 * weights[2]
    assert abs(mixed) < 0.1 and min(weights[:2]) > 0.2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_is_not_finite_has_no_weight(bad):
    truth = np.zeros(4, np.float32)
    weights = selected_weights([truth + np.float32(bad), truth + 1], squared(truth))
    assert weights == [0.0, 1.0]
    with pytest.raises(ValueError, match="expected a model with finite predictions, got none"):
        selected_weights([truth + np.float32(bad)], squared(truth))


def test_mixing_leaves_out_what_has_no_weight():
    rows = [np.full((2, 3), 4, np.float32), np.full((2, 3), np.nan, np.float32), np.ones((2, 3), np.float32)]
    np.testing.assert_array_equal(mixed(rows, [0.25, 0.0, 0.75]), np.full((2, 3), 1.75, np.float32))


def test_a_difference_is_clear_above_two_standard_errors():
    reference = np.zeros(4, np.float32)
    above = np.array([1, 1, 1, 1.1], np.float32)
    assert clearly_above(above, reference) and not clearly_above(-above, reference)
    assert not clearly_above(np.array([3, -1, 3, -1], np.float32), reference)  # mean 1, standard error 1.15
    assert not clearly_above(np.array([5], np.float32), reference[:1])
    assert not clearly_above(reference, reference)
    assert clearly_above(np.array([0, 0, 0, np.inf], np.float32), reference)


# ---- training and messages ----------------------------------------------------------------------------------------------


def test_the_shared_model_is_that_of_dfedavg_when_all_samples_train():
    """With validation data nothing is held out; without warm-up, slot k is DFedAvg with uniform weights from the same start."""
    split = {"split_options": SIZES | {"validation": 0.2}}
    blends = peers_of(graph_of(clusters=1, batch_size="all", **PLAIN, **split))
    plain = peers_of(graph_of(algorithm="dfedavg", mix="uniform", batch_size="all", **split))
    for one, other in zip(blends, plain, strict=True):
        one.workspace.models.replace(1, other.models[0].copy())
    finish(blends)
    finish(plain)
    for one, other in zip(blends, plain, strict=True):
        np.testing.assert_array_equal(one.models[1], other.models[0])


def test_two_models_a_round_travel_and_three_never_do():
    graph = graph_of(clusters=2, rounds=4, **PLAIN)
    for peer in run(graph):
        assert len(peer.models) == 6 and peer.algorithm.slots == 3
        assert peer.totals["models_sent"] == 4 * 2 * 5


@pytest.mark.parametrize(
    ("run", "start"),
    [
        ({}, ("seeds", 0, False)),
        ({"options": {"seed_epochs": 2}}, ("seeds", 0, False)),
        ({"options": {"warmup_rounds": 2}}, ("global", 2, True)),
        ({"options": {"initialization": "global"}}, ("global", 3, True)),
        ({"options": {"initialization": "local", "split_empty": False}}, ("local", 3, False)),
        ({"pace": "async"}, ("global", 3, True)),
        ({"dynamic_edges": 0.2}, ("global", 3, True)),
        ({"rounds": 2}, ("global", 3, True)),
    ],
)
def test_clusters_start_with_seeds_where_a_run_allows_them(run, start):
    options = Blend(graph_of(clusters=2, **run).manifest, 0, graph_of()).options
    assert (options.initialization, options.warmup_rounds, options.split_empty) == start


def test_while_clusters_are_seeded_the_shared_model_is_averaged_as_in_any_round(monkeypatch):
    """On a line of four, three rounds of which two seed: the shared model is DFedAvg's, and each seed's model is everywhere."""
    held, close = {}, Seeding.close

    def noting(seeding, workspace):
        found = close(seeding, workspace)
        held.setdefault(workspace.round_index, []).append(workspace.models.model(workspace.round_index).copy())
        return found

    monkeypatch.setattr(Seeding, "close", noting)
    split = {"split_options": SIZES | {"validation": 0.2}}
    steps = {"batch_size": "all", "local_epochs": 5}
    common = dict(peers=4, kind="line", clusters=2, rounds=3, learning_rate=1.0, **steps, **split)
    blends = peers_of(graph_of(**common))
    plain = peers_of(graph_of(**(common | {"algorithm": "dfedavg", "mix": "uniform"})))
    for one, other in zip(blends, plain, strict=True):
        one.workspace.models.replace(2, other.models[0].copy())
    finish(blends)
    finish(plain)
    for one, other in zip(blends, plain, strict=True):
        np.testing.assert_array_equal(one.models[2], other.models[0])
        assert one.totals["models_sent"] <= 2 * other.totals["models_sent"]
    assert {r: len(models) for r, models in held.items()} == {0: 4, 1: 4}
    assert all(np.array_equal(models[0], model) for models in held.values() for model in models)
    (seeds,) = {tuple(peer.final["state"]["seeds"]) for peer in blends}
    assert UNREACHED not in seeds


@pytest.mark.parametrize(
    ("step", "slot", "refused"), [(3, 2, False), (2, 2, True), (0, 2, True), (2, 1, True), (2, 0, False)]
)
def test_only_the_model_of_a_seed_comes_before_the_last_step(step, slot, refused):
    graph = graph_of(kind="ring", peers=4, clusters=2)
    header = ModelHeader(
        sender=1,
        incarnation=1,
        round_index=0,
        step=step,
        slot=slot,
        index=0,
        total=1,
        sample_count=4,
        mass=1.0,
        size_bytes=24,
        encoding="float32",
    )
    assert bool(Blend(graph.manifest, 0, graph).rejects({}, header, None)) == refused


def test_held_out_samples_train_nothing_before_the_choice(monkeypatch):
    seen = {}
    fit = Workspace.fit

    def noting(workspace, theta, plan, memory=""):
        chosen = workspace.state.pooling is not None
        seen.setdefault((workspace.peer_id, workspace.round_index, chosen), []).append(plan.indices)
        return fit(workspace, theta, plan, memory)

    monkeypatch.setattr(Workspace, "fit", noting)
    for peer in run(graph_of(rounds=6)):
        fold = peer.algorithm.fold(peer.workspace)
        assert fold.part == "train" and len(fold.held_out) == peer.learner.count() // 4
        before = [ix for (i, t, chosen), uses in seen.items() if i == peer.peer_id and not chosen for ix in uses]
        after = [ix for (i, t, chosen), uses in seen.items() if i == peer.peer_id and chosen for ix in uses]
        assert len(before) == 3 * 4 + 2  # three models in four rounds, and the tuned ones
        guard = [indices for indices in after if indices is not None]
        assert len(after) == 3 * 2 + 2 + len(guard)  # in two rounds, and the tuned ones
        assert all(not np.intersect1d(indices, fold.held_out).size and len(indices) for indices in before)
        assert [len(indices) for indices in guard] == [2 * peer.learner.count() // 3] * 2 * 3  # two models, three folds


def test_validation_data_are_held_out_instead():
    for peer in run(graph_of(rounds=2, split_options=SIZES | {"validation": 0.2})):
        fold = peer.algorithm.fold(peer.workspace)
        assert fold.part == "validation" and len(fold.held_out) == peer.learner.count("validation")
        assert peer.algorithm._training(peer.workspace) is None


def test_without_a_sample_to_hold_out_the_shared_model_counts_alone():
    split = {"samples_per_peer": 3, "test_per_peer": 20}
    for peer in run(graph_of(peers=4, kind="ring", rounds=2, split="iid", split_options=split)):
        assert peer.state.mixture == (0, 0, 1, 0, 0, 0)
        assert peer.final["metric_value"] == peer.final["metric_shared"]


def test_weights_are_pooled_over_the_cluster_and_half_the_own():
    split = dict(split="label_flip", split_options=SIZES | {"base": "iid", "q": 0.5})
    peers = run(graph_of(rounds=10, clusters=2, local_epochs=3, learning_rate=0.1, **split))
    for peer in peers:
        mates = [other for other in peers if other.state.cluster_index == peer.state.cluster_index]
        assert len(mates) < len(peers)
        # On a complete graph one round gives every peer of a cluster its mean, which further rounds keep.
        mean = np.mean([other.state.chosen for other in mates], axis=0)
        np.testing.assert_allclose(peer.state.pooled, mean, atol=1e-9)
        half = (np.array(peer.state.chosen) + mean) / 2
        expected = half if peer.state.pooling else peer.state.chosen
        np.testing.assert_allclose(peer.state.mixture, expected, atol=1e-9)
        assert sum(peer.state.mixture) == pytest.approx(1)
    assert any(peer.state.pooling for peer in peers)


# ---- results ------------------------------------------------------------------------------------------------------------


def test_the_result_is_the_mixture_of_all_models():
    for peer in run(graph_of()):
        weights, learner = peer.state.mixture, peer.learner
        rows = sum(np.float32(w) * learner.predict_proba(m) for w, m in zip(weights, peer.models, strict=True))
        assert peer.final["metric_value"] == pytest.approx(learner.evaluate_predictions(rows).metric, abs=0.03)
        assert peer.final["predictor"] == "mixture"
        assert list(peer.final["state"]["blend"].values()) == list(weights)
        assert np.array_equal(peer.personalized, peer.models[int(np.argmax(weights))])


@pytest.mark.parametrize(
    ("split", "options", "best"),
    [
        ("rotated_hard", {}, "dfca"),
        pytest.param("iid", {}, "dfedavg", marks=pytest.mark.slow),
        # one odd peer: the worst peer is its own best teacher
        pytest.param("label_flip", {"base": "iid", "q": 0.17}, "local", marks=pytest.mark.slow),
    ],
)
def test_it_is_near_the_best_or_better_whatever_the_data(split, options, best):
    """In any setting it is as good as the method made for it, up to 2 of 40 test samples in the mean and 4 at the worst peer."""
    training = dict(clusters=2, rounds=12, local_epochs=3, learning_rate=0.3, batch_size=10)
    setting = dict(split=split, split_options=SIZES | options, **training)
    blend, other = run(graph_of(**setting)), run(graph_of(**(setting | {"algorithm": best})))
    for score, slack in ((np.mean, 0.05), (np.min, 0.1)):
        assert (
            score([p.final["metric_value"] for p in blend]) >= score([p.final["metric_value"] for p in other]) - slack
        )


def test_models_are_tuned_at_the_end_as_far_as_samples_held_out_of_the_tuning_gain(monkeypatch):
    """The rate is so absurd at the end that no fold gains: the tuned models are the models themselves."""
    monkeypatch.setattr(Blend, "final", spoiled(Blend.final))
    for peer in run(graph_of(rounds=4)):
        shared, cluster = peer.models[2], peer.models[peer.state.cluster_index]
        assert np.array_equal(peer.models[4], shared) and np.array_equal(peer.models[5], cluster)


def spoiled(final):
    def at_an_absurd_rate(algorithm, workspace):
        workspace.manifest = workspace.manifest.model_copy(update={"learning_rate": 1000.0})
        return final(algorithm, workspace)

    return at_an_absurd_rate


def test_a_final_phase_has_no_effect_and_its_rate_is_that_of_the_tuning():
    final = {"epochs": 3, "guard": True, "learning_rate_schedule": "step:factor=0.5"}
    assert list(keys_without_effect(graph_of(final=final).manifest)) == ["run.final.epochs", "run.final.guard"]
    assert Blend(graph_of(final=final).manifest, 0, graph_of()).final_epochs == 0

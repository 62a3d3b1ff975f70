"""FedSPD: its decisions, its rounds against the float64 oracle, and its invariants.

Method: whole small runs on the simulated backend (which real processes equal bit for bit, see
tests/process/test_fedspd_processes.py), and the algorithm's methods by themselves where one rule is meant.
"""

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError, RefusalCode
from coordinator_free_bootstrap.schedule import neighbors_in_round
from peer.algorithms.fedspd import FedSpd
from peer.algorithms.fedspd_decisions import NOTHING, FedSpdState
from peer.algorithms.personalize import weighted_sum
from peer.algorithms.registry import algorithms
from peer.core.messages import Numbers
from tests.oracle.fedspd import Data, Oracle, Settings
from tests.tools.simulated import finish, peers_of, run
from tests.unit.algorithms.messages import header, selection

SOFT = {"samples_per_peer": 50, "test_per_peer": 20}
BASE = dict(task="digits", split="rotated_soft", split_options=SOFT, rounds=5, algorithm="fedspd", model="mlr")
PLAIN = {"align_every": 0, "label_check": False}


def graph_of(peers=6, kind="ring", **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**(BASE | manifest)))


def fedspd(graph: Graph, peer_id=0) -> FedSpd:
    return FedSpd(graph.manifest, peer_id, graph)


# ---- the oracle ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", ["uniform", "metropolis"])
@pytest.mark.parametrize("first_round", ["all_clusters", "paper"])
@pytest.mark.parametrize(("kind", "clusters"), [("ring", 2), ("star", 3), ("complete", 2)])
def test_a_run_equals_the_oracle(kind, clusters, first_round, mix):
    options = PLAIN | {"first_round": first_round}
    graph = graph_of(
        5,
        kind,
        clusters=clusters,
        mix=mix,
        options=options,
        final={"epochs": 3},
        batch_size="all",
        local_epochs=4,
        learning_rate=0.5,
        learning_rate_schedule="step:factor=0.7,every=2",
    )
    peers, data = peers_of(graph), {}
    for i, peer in enumerate(peers):
        shard = peer.learner.shard
        data[i] = Data(shard.train_x.reshape(len(shard.train_x), -1).astype(np.float64), shard.train_y)
    settings = Settings(1, clusters, 5, 4, 0.5, 0.7, 2, 3, first_round == "all_clusters", mix == "metropolis")
    neighbors = {i: list(graph.neighbors(i)) for i in graph.ids}
    oracle = Oracle(neighbors, data, peers[0].models, {p.peer_id: p.state.z for p in peers}, settings)
    personal = oracle.run()
    finish(peers)
    for i, peer in enumerate(peers):
        np.testing.assert_array_equal(peer.state.z, oracle.z[i])
        np.testing.assert_allclose(peer.models, oracle.c[i], atol=2e-6)
        np.testing.assert_allclose(peer.personalized, personal[i], atol=2e-6)


# ---- invariants ------------------------------------------------------------------------------------------------------


def test_mixtures_sum_to_one_and_clusters_hold_every_sample():
    for peer in run(graph_of(clusters=3, options={"min_cluster_samples": 5})):
        assert len(peer.history) == 5
        for row in peer.history:
            assert sum(row["state"]["mixture"]) == pytest.approx(1, abs=1e-12)
            assert min(row["state"]["mixture"]) >= 5 / 50
        assert len(peer.state.z) == peer.learner.count() == 50


def test_only_the_selected_center_moves():
    graph = graph_of(clusters=3, options=PLAIN | {"first_round": "paper"})
    peers, moved = peers_of(graph), 0
    before = [[model.tobytes() for model in peer.models] for peer in peers]

    def check(t):
        nonlocal moved
        for peer, old in zip(peers, before, strict=True):
            for slot, model in enumerate(peer.models):
                same = model.tobytes() == old[slot]
                assert same or slot == peer.state.selected
                moved += not same
                old[slot] = model.tobytes()

    finish(peers, check)
    assert moved >= 6 * 4  # nearly every peer and round trains something


@pytest.mark.parametrize("clusters", [1, 2, 4])
def test_bytes_of_broadcast_are_those_of_fedem_over_s(clusters):
    def sent(**manifest):
        peers = run(graph_of(6, "complete", clusters=clusters, rounds=3, local_epochs=1, **manifest))
        return sum(peer.totals["payload_bytes_sent"] for peer in peers)

    paper = PLAIN | {"first_round": "paper"}
    fedem = sent(algorithm="fedem")
    broadcast = sent(options=paper | {"exchange": "broadcast"})
    same = sent(options=paper)
    assert broadcast * clusters == fedem
    assert same == broadcast if clusters == 1 else same < broadcast


def test_one_cluster_is_dfedavg():
    options = {"first_round_factor": 1, "first_round": "paper"}
    ours = run(graph_of(clusters=1, options=options))
    plain = run(graph_of(algorithm="dfedavg", mix="uniform"))
    doubled = run(graph_of(clusters=1, options=options | {"first_round_factor": 2}))
    for one, other, twice in zip(ours, plain, doubled, strict=True):
        assert one.models[0].tobytes() == other.models[0].tobytes()
        assert twice.models[0].tobytes() != other.models[0].tobytes()


# ---- selection and exchange --------------------------------------------------------------------------------------------


def test_models_go_to_co_selectors_only():
    graph = graph_of(6, "complete", options=PLAIN | {"first_round": "paper"})
    peers, expected = peers_of(graph), 0

    def count(t):
        nonlocal expected
        chosen = [peer.state.selected for peer in peers]
        expected += sum(a == b for i, a in enumerate(chosen) for j, b in enumerate(chosen) if i != j)

    finish(peers, count)
    assert sum(peer.totals["models_sent"] for peer in peers) == expected
    assert sum(peer.totals["payload_bytes_sent"] for peer in peers) == expected * 4 * len(peers[0].models[0])
    assert sum(peer.totals["selections_sent"] for peer in peers) == 6 * 5 * 5


def test_a_partition_divides_all_peers_whatever_their_mixtures():
    """As the authors' code: N / S peers for each cluster in each round; an empty cluster is exchanged too."""
    graph = graph_of(6, "complete", clusters=3, options=PLAIN | {"selection": "partition"})
    peers, mixtures = peers_of(graph), []

    def check(t):
        chosen = [peer.state.selected for peer in peers]
        assert sorted(chosen) == [0, 0, 1, 1, 2, 2] if t else chosen == [NOTHING] * 6
        mixtures.append([peer.state.mixture for peer in peers])

    finish(peers, check)
    assert len(mixtures) == 5 and np.std(mixtures) > 0.05, "the mixtures are not what the parts follow"
    assert [peer.totals["models_sent"] for peer in peers] == [5 * 3 + 4] * 6  # round 0 sends all centers to all


def test_a_least_weight_is_refused_with_a_partition():
    with pytest.raises(
        ConfigError, match=r"^run\.options\.u_min: expected no value .*selection is partition.*, got 0\.1"
    ):
        fedspd(graph_of(options={"selection": "partition", "u_min": 0.1}))


def test_the_first_round_is_doubled():
    graph = graph_of(batch_size="all", rounds=1, options=PLAIN | {"first_round": "paper"})
    for factor, steps in ((1, 2), (2, 4), (5, 10)):
        g = replace(
            graph, manifest=graph.manifest.model_copy(update={"options": PLAIN | {"first_round_factor": factor}})
        )
        peer = peers_of(g)[0]
        taken, fit = [], peer.learner.train
        peer.learner.train = lambda theta, plan, fit=fit, taken=taken: (taken.append(plan.epochs), fit(theta, plan))[1]
        peer.workspace.state = peer.algorithm.assign(peer.workspace)
        peer.algorithm.train(peer.workspace)
        assert set(taken) == {steps}


def test_an_empty_cluster_is_sent_untouched_and_not_trained():
    graph = graph_of(options=PLAIN | {"u_min": 0.4, "first_round": "paper"})
    peer = peers_of(graph)[0]
    peer.workspace.state = peer.algorithm._set_labels(peer.workspace.state, np.zeros(50, np.int64))
    found = set()
    for t in range(40):
        peer.workspace.round_index = t
        peer.workspace.state = peer.algorithm.assign(peer.workspace)
        found.add(peer.workspace.state.selected)
        before = peer.workspace.models.model(1).tobytes()
        peer.algorithm.train(peer.workspace)
        assert peer.workspace.models.model(1).tobytes() == before
    assert found == {0, 1}
    offer = peer.algorithm.offers(replace(peer.workspace.state, selected=1), 5, 0, 1, selection(selected=1))
    assert [o.slot for o in offer] == [1]


def test_learning_rate_decays_by_period():
    graph = graph_of(learning_rate=0.1, learning_rate_schedule="step:factor=0.5,every=3")
    workspace = peers_of(graph)[0].workspace
    rates = []
    for workspace.round_index in range(7):
        rates.append(workspace.learning_rate)
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025])


def test_batch_norm_sets_the_least_cluster_size():
    plain, normalized = (
        peers_of(graph_of(2, "line", task="digits", model=model, split_options={"samples_per_peer": 60}))[0]
        for model in ("mlr", "dfca_cnn")
    )
    assert plain.algorithm._samples_min(plain.workspace.learner) == 0
    assert normalized.algorithm._samples_min(normalized.workspace.learner) == 10


# ---- refusals: nothing changes, the right code -------------------------------------------------------------------------


def test_a_model_without_a_matching_selection_is_refused():
    subject = fedspd(graph_of(options=PLAIN))
    assert subject.rejects({}, header(), None).code is RefusalCode.NOT_SELECTED
    assert subject.rejects({}, header(), selection(selected=NOTHING)).code is RefusalCode.NOT_SELECTED
    assert subject.rejects({}, header(slot=1), selection(selected=0)).code is RefusalCode.CONTRADICTS_SELECTION
    assert subject.rejects({}, header(total=2), selection(selected=0)).code is RefusalCode.CONTRADICTS_SELECTION
    assert subject.rejects({}, header(slot=0), selection(selected=0)) is None
    assert subject.rejects({}, header(slot=1, round_index=0), None) is None  # the round of all clusters


def test_a_claimed_degree_is_checked():
    subject = fedspd(graph_of(mix="metropolis"))
    for numbers in ((), (0.0,), (3.0,), (1.5,), (float("nan"),), (1.0, 1.0)):
        assert (
            subject.rejects({}, header(numbers=Numbers.of(numbers)), selection()).code
            is RefusalCode.WEIGHT_OUT_OF_RANGE
        ), numbers
    assert subject.rejects({}, header(numbers=Numbers.of(2.0)), selection()) is None


def test_a_selection_has_a_cluster_and_complete_sketches_or_none():
    subject = fedspd(graph_of(options={"sketch_size": 4}))
    rows = [0.5] * 4 * 2

    def aligning(*numbers, round_index=1, selected=0):
        return selection(round_index=round_index, selected=selected, numbers=Numbers.of(*numbers))

    good = [selection(), aligning(2, 1, rows), aligning(2, 1, np.float32([3.4e38] * 8))]
    assert [subject.rejects_select({}, a) for a in good] == [None] * 3
    bad = {
        RefusalCode.MALFORMED: [
            selection(selected=-1),
            aligning(2, 1, rows, selected=-1),
            selection(round_index=0, selected=1),  # the round of all clusters has no selection
            aligning(99, 0, rows),  # no such peer
            aligning(2, 6, rows),  # more hops than the graph has
        ],
        RefusalCode.WRONG_SIZE: [
            aligning(2, 1, rows[1:]),
            aligning(2, rows),
            aligning(2, 1, rows, round_index=2),  # not a round of alignment
            aligning(2, 1),
            aligning(2),
        ],
        RefusalCode.NON_FINITE: [aligning(2, 1, rows[1:], 1e39)],  # beyond float32
    }
    for code, announcements in bad.items():
        assert [subject.rejects_select({}, a).code for a in announcements] == [code] * len(announcements)


def test_sketches_that_are_passed_on_name_each_peer_once():
    subject = fedspd(graph_of(options={"sketch_size": 4, "warm_rounds": 5, "hard_rounds": 1, "split": "updates"}))
    row = [0.5] * 4

    def relaying(*numbers):
        return selection(round_index=1, numbers=Numbers.of(*numbers))

    assert subject.rejects_select({}, relaying(2, row, 5, row)) is None
    assert subject.rejects_select({}, selection(round_index=1)) is None
    bad = {
        RefusalCode.WRONG_SIZE: [
            relaying(2, row, 5, row[1:]),
            relaying(2, row[1:]),
            relaying(2),
        ],
        RefusalCode.NON_FINITE: [relaying(2, row, 5, row[1:], -1e39)],
        RefusalCode.MALFORMED: [
            relaying(2, row, 2, row),
            relaying(2.5, row),
            relaying(9, row),
            selection(round_index=0),  # no sketches are known yet, and no peer selects
        ],
    }
    for code, announcements in bad.items():
        assert [subject.rejects_select({}, a).code for a in announcements] == [code] * len(announcements)


# ---- personalization ---------------------------------------------------------------------------------------------------


def test_eq_2_with_one_whole_weight_is_that_center_bit_for_bit():
    draw = np.random.default_rng(0)
    models = [draw.normal(size=1000).astype(np.float32) for _ in range(3)]
    models[1][:3] = [-0.0, 0.0, 1e-44]
    assert weighted_sum(models, [0.0, 1.0, 0.0]).tobytes() == models[1].tobytes()
    mixed = weighted_sum(models, [0.5, 0.25, 0.25])
    np.testing.assert_allclose(mixed, 0.5 * models[0] + 0.25 * models[1] + 0.25 * models[2], atol=1e-6)


def test_accuracy_is_reported_before_and_after_the_final_phase():
    peers = run(graph_of(final={"epochs": 20}))
    for peer in peers:
        assert peer.final["metric_before_final"] == peer.history[-1]["metric_value"]
        assert peer.final["metric_after_final"] == peer.final["metric_value"]
        assert peer.final["metric_value"] == peer.learner.evaluate(peer.personalized).metric
        assert peer.final["predictor"] == "personalized_model"
    gain = [p.final["metric_after_final"] - p.final["metric_before_final"] for p in peers]
    assert np.mean(gain) > 0.1


@pytest.mark.parametrize("how", ["confident", "mixture"])
def test_predictions_can_be_mixed_instead_of_centers(how):
    peer = run(graph_of(options={"personalize": how}, final={"epochs": 0}))[0]
    rows = [peer.learner.predict_proba(model) for model in peer.models]
    if how == "mixture":
        u = peer.state.mixture
        predicted = (u[0] * rows[0] + u[1] * rows[1]).argmax(1)
    else:
        predicted = np.where(rows[0].max(1) >= rows[1].max(1), rows[0].argmax(1), rows[1].argmax(1))
    assert peer.final["metric_value"] == pytest.approx((predicted == peer.learner.shard.test_y).mean())
    assert peer.final["predictor"] == how


def test_a_run_without_a_split_is_measured_as_one_model():
    options = {"personalize": "confident", "warm_rounds": 9}
    peer = run(graph_of(rounds=2, options=options, final={"epochs": 2}))[0]
    assert peer.final["predictor"] == "personalized_model"
    assert peer.final["metric_value"] == peer.learner.evaluate(peer.personalized).metric


def test_a_warm_start_is_dfedavg_until_it_splits():
    warm = run(graph_of(rounds=3, mix="uniform", options={"warm_rounds": 3, "first_round_factor": 1}))
    plain = run(graph_of(rounds=3, mix="uniform", algorithm="dfedavg"))
    pushes = []
    for peer, other in zip(warm, plain, strict=True):
        (first, second), common = peer.models, other.models[0]
        assert 0 < np.linalg.norm(first - second) < 0.05 * np.linalg.norm(common)
        np.testing.assert_allclose(first, common, atol=0.05 * np.abs(common).max())
        pushes.append((first - common) / np.linalg.norm(first - common))
    assert all(push @ pushes[0] > 0.999 for push in pushes)  # the same direction at every peer


def test_all_peers_find_the_same_partition_from_their_data():
    """Peers with mostly upright and peers with mostly rotated images, on a line: each peer has at most two neighbors."""
    options = {"warm_rounds": 7, "hard_rounds": 1, "split": "updates", "align_every": 0}
    graph = graph_of(6, "line", rounds=8, options=options, split_options={"rotation": 180}, local_epochs=5)
    peers, sizes = peers_of(graph), []
    finish(peers, lambda t: sizes.append([len(peer.state.update_ids) for peer in peers]))
    assert sizes[:3] == [[1] * 6, [2, 3, 3, 3, 3, 2], [3, 4, 5, 5, 4, 3]] and sizes[5] == [6] * 6
    known = {peer.state.updates.tobytes() for peer in peers}
    assert len(known) == 1
    side = [peer.state.hard_cluster for peer in peers]
    upright = [(peer.workspace.true_cluster == 0).mean() for peer in peers]
    parts = [np.mean([f for f, s in zip(upright, side, strict=True) if s == part]) for part in (0, 1)]
    assert abs(parts[0] - parts[1]) > 0.3
    assert [peer.state.selected for peer in peers] == side  # in the hard round


# ---- dynamic graphs, usable by every algorithm ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(algorithms()) - {"local"}))
def test_models_are_sent_only_over_edges_that_are_up(name):
    model = {"model": "mlp", "model_options": {"hidden": 8}}  # fedrep shares all but the last layer
    graph = graph_of(6, "complete", algorithm=name, dynamic_edges=0.5, options={}, rounds=4, local_epochs=1, **model)
    peers, seen, down = peers_of(graph), [], 0

    def note_arrivals(peer):
        rejects = peer.algorithm.rejects

        def noting(state, header, *rest):
            seen.append((header.round_index, header.sender, peer.peer_id))
            return rejects(state, header, *rest)

        peer.algorithm.rejects = noting

    for peer in peers:
        note_arrivals(peer)
    finish(peers)
    assert len(seen) >= sum(peer.totals["models_sent"] for peer in peers) > 0
    for t, sender, receiver in seen:
        assert receiver in neighbors_in_round(graph, t, sender) and sender in neighbors_in_round(graph, t, receiver)
    for t in range(4):
        down += sum(5 - len(neighbors_in_round(graph, t, i)) for i in graph.ids)
    assert down > 20


def test_impossible_options_are_refused():
    updates = {"split": "updates", "warm_rounds": 3, "hard_rounds": 1}
    with pytest.raises(ConfigError, match="does not cover sketches"):
        fedspd(graph_of(options=updates | {"dp_epsilon": 1.0, "min_cluster_samples": 5}))
    with pytest.raises(
        ConfigError, match=r"run\.options\.split: expected no value .*hard_rounds is 0\), got 'updates'"
    ):
        fedspd(graph_of(options=updates | {"hard_rounds": 0}))
    with pytest.raises(ConfigError, match=r"run\.options\.u_min"):
        fedspd(graph_of(options={"u_min": 2.0}))


def test_the_most_confident_center_needs_classes():
    """In a regression, the largest prediction says nothing about confidence."""
    workspace = peers_of(graph_of())[0].workspace
    workspace.learner.labels = lambda part="train": None
    with pytest.raises(
        ConfigError, match=r"run\.options\.personalize: expected .* for a task without one class .*, got 'confident'"
    ):
        fedspd(graph_of(options={"personalize": "confident"})).begin(workspace)
    fedspd(graph_of(options={"personalize": "mixture"})).begin(workspace)


def test_a_late_model_folds_only_into_a_center_that_was_selected_recently():
    """In round 5: cluster 0 was last selected in round 4, cluster 1 in round 3."""
    subject = fedspd(graph_of(clusters=3, pace="async"))
    state = FedSpdState(selected=2, trained=(2,), selected_at=(4, 3, 5), round_index=5)
    assert [t.slot for t in subject.targets(state, header(slot=0, round_index=4))] == [0]
    assert subject.targets(state, header(slot=1, round_index=4)) is None
    assert [t.slot for t in subject.targets(state, header(slot=2, round_index=4))] == [2]
    dropping = fedspd(graph_of(clusters=3, pace="async", stale_weight=0.0))
    assert dropping.targets(state, header(slot=0, round_index=4)) is None

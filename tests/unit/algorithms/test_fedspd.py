"""FedSPD: its decisions, its rounds against the float64 oracle, and invariants 12 to 18 of the specification.

Method: whole small runs through `peer.experiment.in_process` (which real processes equal bit for bit, see
tests/process/test_fedspd_processes.py), and the algorithm's methods by themselves where one rule is meant.
"""

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError, Refusal
from coordinator_free_bootstrap.schedule import neighbors_in_round
from peer.algorithms.fedspd import FedSpd
from peer.algorithms.fedspd_decisions import NOTHING
from peer.algorithms.personalize import weighted_sum
from peer.algorithms.registry import algorithms
from peer.experiment.in_process import InProcess
from tests.oracle.fedspd import Data, Oracle, Settings
from tests.unit.algorithms.engines import header, said

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
    options = PLAIN | {"first_round": first_round, "final_epochs": 3}
    graph = graph_of(
        5,
        kind,
        clusters=clusters,
        mix=mix,
        options=options,
        local_unit="fullbatch_step",
        local_epochs=4,
        learning_rate=0.5,
        learning_rate_decay=0.7,
        learning_rate_decay_rounds=2,
    )
    run = InProcess(graph)
    data = {}
    for i, peer in run.peers.items():
        shard = peer.bench.learner.shard
        data[i] = Data(shard.train_x.reshape(len(shard.train_x), -1).astype(np.float64), shard.train_y)
    settings = Settings(1, clusters, 5, 4, 0.5, 0.7, 2, 3, first_round == "all_clusters", mix == "metropolis")
    neighbors = {i: list(graph.neighbors(i)) for i in graph.ids}
    starts = [run.peers[0].bench.models.model(s) for s in range(clusters)]
    oracle = Oracle(neighbors, data, starts, {i: p.bench.arrays["z"] for i, p in run.peers.items()}, settings)
    personal = oracle.run()
    for i, peer in run.run().items():
        np.testing.assert_array_equal(peer.bench.arrays["z"], oracle.z[i])
        for slot in range(clusters):
            np.testing.assert_allclose(peer.bench.models.model(slot), oracle.c[i][slot], atol=2e-6)
        np.testing.assert_allclose(peer.bench.personalized, personal[i], atol=2e-6)


# ---- invariants 12 to 15 ---------------------------------------------------------------------------------------------


def test_mixtures_sum_to_one_and_clusters_hold_every_sample():  # 12
    run = InProcess(graph_of(clusters=3, options={"min_cluster_samples": 5}))
    for peer in run.run().values():
        for row in peer.history:
            assert sum(row["facts"]["mixture"]) == pytest.approx(1, abs=1e-12)
            assert min(row["facts"]["mixture"]) >= 5 / 50
        assert len(peer.bench.arrays["z"]) == peer.bench.learner.count() == 50


def test_only_the_selected_center_moves():  # 13
    graph = graph_of(clusters=3, options=PLAIN | {"first_round": "paper"})
    run, before, moved = InProcess(graph), {}, 0

    def check(t, run):
        nonlocal moved
        for i, peer in run.peers.items():
            selected = peer.bench.facts["selected"]
            for slot in range(3):
                now = peer.bench.models.model(slot).tobytes()
                same = now == before[i][slot]
                assert same or slot == selected
                moved += not same
                before[i][slot] = now

    for i, peer in run.peers.items():
        before[i] = [peer.bench.models.model(slot).tobytes() for slot in range(3)]
    run.run(check)
    assert moved >= 6 * 4  # nearly every peer and round trains something


@pytest.mark.parametrize("clusters", [1, 2, 4])
def test_bytes_of_broadcast_are_those_of_fedem_over_s(clusters):  # 14
    def sent(**manifest):
        run = InProcess(graph_of(6, "complete", clusters=clusters, rounds=3, local_epochs=1, **manifest))
        return sum(peer.totals["payload_bytes_sent"] for peer in run.run().values())

    paper = PLAIN | {"first_round": "paper"}
    fedem = sent(algorithm="fedem")
    broadcast = sent(options=paper | {"exchange": "broadcast"})
    same = sent(options=paper)
    assert broadcast * clusters == fedem
    assert same == broadcast if clusters == 1 else same < broadcast


def test_one_cluster_is_dfedavg():  # 15
    options = {"first_round_factor": 1, "first_round": "paper", "final_epochs": 0}
    ours = InProcess(graph_of(clusters=1, options=options)).run()
    plain = InProcess(graph_of(algorithm="dfedavg", mix="uniform")).run()
    doubled = InProcess(graph_of(clusters=1, options=options | {"first_round_factor": 2})).run()
    for i in ours:
        assert ours[i].bench.models.model(0).tobytes() == plain[i].bench.models.model(0).tobytes()
        assert doubled[i].bench.models.model(0).tobytes() != plain[i].bench.models.model(0).tobytes()


# ---- selection and exchange --------------------------------------------------------------------------------------------


def test_models_go_to_co_selectors_only():
    graph = graph_of(6, "complete", options=PLAIN | {"first_round": "paper"})
    run, expected = InProcess(graph), 0

    def count(t, run):
        nonlocal expected
        chosen = [peer.announced.selected for peer in run.peers.values()]
        expected += sum(a == b for i, a in enumerate(chosen) for j, b in enumerate(chosen) if i != j)

    peers = run.run(count).values()
    assert sum(peer.totals["models_sent"] for peer in peers) == expected
    assert sum(peer.totals["announcements_sent"] for peer in peers) == 6 * 5 * 5


def test_the_first_round_is_doubled():
    graph = graph_of(local_unit="fullbatch_step", rounds=1, options=PLAIN | {"first_round": "paper"})
    for factor, steps in ((1, 2), (2, 4), (5, 10)):
        g = replace(
            graph, manifest=graph.manifest.model_copy(update={"options": PLAIN | {"first_round_factor": factor}})
        )
        peer = InProcess(g).peers[0]
        taken = []
        fit = peer.bench.learner.train
        peer.bench.learner.train = lambda *a, fit=fit, taken=taken, **k: (taken.append(k["epochs"]), fit(*a, **k))[1]
        peer.bench.facts = peer.algorithm.assign(peer.bench)
        peer.algorithm.train(peer.bench)
        assert set(taken) == {steps}


def test_an_empty_cluster_is_sent_untouched_and_not_trained():
    graph = graph_of(options=PLAIN | {"u_min": 0.4, "first_round": "paper"})
    peer = InProcess(graph).peers[0]
    facts = peer.algorithm._relabeled(peer.bench, np.zeros(50, np.int64))
    peer.bench.facts |= facts
    found = set()
    for t in range(40):
        peer.bench.round_index = t
        peer.bench.facts = peer.algorithm.assign(peer.bench)
        found.add(peer.bench.facts["selected"])
        before = peer.bench.models.model(1).tobytes()
        peer.algorithm.train(peer.bench)
        assert peer.bench.models.model(1).tobytes() == before
    assert found == {0, 1}
    offer = peer.algorithm.offers(peer.bench.facts | {"selected": 1}, 5, 0, 1, said(selected=1))
    assert [o.slot for o in offer] == [1]


def test_learning_rate_decays_by_period():
    bench = InProcess(graph_of(learning_rate=0.1, learning_rate_decay=0.5, learning_rate_decay_rounds=3)).peers[0].bench
    rates = []
    for bench.round_index in range(7):
        rates.append(bench.learning_rate)
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025])


def test_batch_norm_sets_the_least_cluster_size():
    plain, normalized = (
        InProcess(graph_of(2, "line", task="digits", model=model, split_options={"samples_per_peer": 60})).peers[0]
        for model in ("mlr", "dfca_cnn")
    )
    assert plain.algorithm._samples_min(plain.bench.learner) == 0
    assert normalized.algorithm._samples_min(normalized.bench.learner) == 10


# ---- refusals: nothing changes, the right code -------------------------------------------------------------------------


def test_a_model_that_was_not_announced_is_refused():
    subject = fedspd(graph_of(options=PLAIN))
    assert subject.rejects({}, header(), None).code is Refusal.NOT_ANNOUNCED
    assert subject.rejects({}, header(), said(selected=NOTHING, total=0)).code is Refusal.NOT_ANNOUNCED
    assert subject.rejects({}, header(slot=1), said(selected=0)).code is Refusal.CONTRADICTS_ANNOUNCEMENT
    assert subject.rejects({}, header(total=2), said(selected=0)).code is Refusal.CONTRADICTS_ANNOUNCEMENT
    assert subject.rejects({}, header(slot=0), said(selected=0)) is None
    assert subject.rejects({}, header(slot=1, round_index=0), None) is None  # the round of all clusters


def test_a_claimed_degree_is_checked():
    subject = fedspd(graph_of(mix="metropolis"))
    for scalars in ((), (0.0,), (3.0,), (1.5,), (float("nan"),), (1.0, 1.0)):
        assert subject.rejects({}, header(scalars=scalars), said()).code is Refusal.WEIGHT_OUT_OF_RANGE, scalars
    assert subject.rejects({}, header(scalars=(2.0,)), said()) is None


def test_an_announcement_is_a_selection_with_whole_sketches_or_a_bare_pass():
    subject = fedspd(graph_of(options={"sketch_size": 4}))
    sketch = bytes(4 * 4 * 2)
    good = [said(), said(selected=-1, total=0), said(round_index=1, scalars=(2.0, 1.0), sketch=sketch)]
    assert [subject.rejects_announce({}, a) for a in good] == [None] * 3
    bad = {
        Refusal.MALFORMED: [
            said(selected=-1),
            said(selected=1, total=0),
            said(selected=-1, total=0, sketch=sketch),
            said(round_index=0, selected=1),  # the round of all clusters has no selection
            said(round_index=1, scalars=(99.0, 0.0), sketch=sketch),  # no such peer
            said(round_index=1, scalars=(2.0, 6.0), sketch=sketch),  # farther than the graph is large
            said(round_index=1, scalars=(2.0,), sketch=sketch),
        ],
        Refusal.WRONG_SIZE: [
            said(round_index=1, scalars=(2.0, 1.0), sketch=sketch[4:]),
            said(round_index=2, scalars=(2.0, 1.0), sketch=sketch),  # not a round of alignment
            said(round_index=1, scalars=(2.0, 1.0)),
        ],
    }
    for code, announcements in bad.items():
        assert [subject.rejects_announce({}, a).code for a in announcements] == [code] * len(announcements)


def test_sketches_that_are_passed_on_name_each_peer_once():
    subject = fedspd(graph_of(options={"sketch_size": 4, "warm_rounds": 5, "hard_rounds": 1, "split": "updates"}))
    row = bytes(16)
    assert subject.rejects_announce({}, said(round_index=1, scalars=(2.0, 5.0), sketch=row * 2)) is None
    assert subject.rejects_announce({}, said(round_index=1)) is None
    bad = {
        Refusal.WRONG_SIZE: [
            said(round_index=1, scalars=(2.0,), sketch=row * 2),
            said(round_index=1, scalars=(2.0, 5.0), sketch=row + b"1234"),
        ],
        Refusal.MALFORMED: [
            said(round_index=1, scalars=(2.0, 2.0), sketch=row * 2),
            said(round_index=1, scalars=(2.5,), sketch=row),
            said(round_index=1, scalars=(9.0,), sketch=row),
            said(round_index=0),  # nothing is known yet, and nobody selects
        ],
    }
    for code, announcements in bad.items():
        assert [subject.rejects_announce({}, a).code for a in announcements] == [code] * len(announcements)


# ---- personalization ---------------------------------------------------------------------------------------------------


def test_eq_2_with_one_whole_weight_is_that_center_bit_for_bit():  # 17
    draw = np.random.default_rng(0)
    models = [draw.normal(size=1000).astype(np.float32) for _ in range(3)]
    models[1][:3] = [-0.0, 0.0, 1e-44]
    assert weighted_sum(models, [0.0, 1.0, 0.0]).tobytes() == models[1].tobytes()
    mixed = weighted_sum(models, [0.5, 0.25, 0.25])
    np.testing.assert_allclose(mixed, 0.5 * models[0] + 0.25 * models[1] + 0.25 * models[2], atol=1e-6)


def test_accuracy_is_reported_before_and_after_the_final_phase():
    peers = InProcess(graph_of(options={"final_epochs": 20})).run()
    for peer in peers.values():
        assert peer.result["accuracy_before_final"] == peer.history[-1]["accuracy"]
        assert peer.result["accuracy_after_final"] == peer.result["accuracy"]
        assert peer.result["accuracy"] == peer.bench.learner.evaluate(peer.bench.personalized).metric
        assert peer.result["predictor"] == "personalized_model"
    gain = [p.result["accuracy_after_final"] - p.result["accuracy_before_final"] for p in peers.values()]
    assert np.mean(gain) > 0.1


@pytest.mark.parametrize("how", ["confident", "mixture"])
def test_predictions_can_be_mixed_instead_of_centers(how):
    peer = InProcess(graph_of(options={"personalize": how, "final_epochs": 0})).run()[0]
    learner, models = peer.bench.learner, [peer.bench.models.model(s) for s in range(2)]
    rows = [learner.predict_proba(model) for model in models]
    if how == "mixture":
        u = peer.bench.facts["mixture"]
        predicted = (u[0] * rows[0] + u[1] * rows[1]).argmax(1)
    else:
        predicted = np.where(rows[0].max(1) >= rows[1].max(1), rows[0].argmax(1), rows[1].argmax(1))
    assert peer.result["accuracy"] == pytest.approx((predicted == learner.shard.test_y).mean())
    assert peer.result["predictor"] == how


def test_what_was_never_split_is_measured_as_one_model():
    options = {"personalize": "confident", "warm_rounds": 9, "final_epochs": 2}
    peer = InProcess(graph_of(rounds=2, options=options)).run()[0]
    assert peer.result["predictor"] == "personalized_model"
    assert peer.result["accuracy"] == peer.bench.learner.evaluate(peer.bench.personalized).metric


def test_a_warm_start_is_dfedavg_until_it_splits():
    warm = InProcess(graph_of(rounds=3, mix="uniform", options={"warm_rounds": 3, "first_round_factor": 1})).run()
    plain = InProcess(graph_of(rounds=3, mix="uniform", algorithm="dfedavg")).run()
    for i, peer in warm.items():
        first, second = (peer.bench.models.model(s) for s in range(2))
        common = plain[i].bench.models.model(0)
        assert 0 < np.linalg.norm(first - second) < 0.05 * np.linalg.norm(common)
        np.testing.assert_allclose(first, common, atol=0.05 * np.abs(common).max())
    pushes = [peer.bench.models.model(0) - plain[i].bench.models.model(0) for i, peer in warm.items()]
    pushes = [push / np.linalg.norm(push) for push in pushes]
    assert all(push @ pushes[0] > 0.999 for push in pushes)  # the same way at every peer


def test_all_peers_come_to_the_same_division_by_their_data():
    """Peers with mostly upright and peers with mostly rotated images, on a line: nobody sees more than two neighbors."""
    options = {"warm_rounds": 7, "hard_rounds": 1, "split": "updates", "align_every": 0}
    graph = graph_of(6, "line", rounds=8, options=options, split_options={"rotation": 180}, local_epochs=5)
    run, sizes = InProcess(graph), []
    peers = run.run(lambda t, run: sizes.append([len(p.bench.arrays["sketch_ids"]) for p in run.peers.values()]))
    assert sizes[:3] == [[1] * 6, [2, 3, 3, 3, 3, 2], [3, 4, 5, 5, 4, 3]] and sizes[5] == [6] * 6
    known = {peer.bench.arrays["sketches"].tobytes() for peer in peers.values()}
    assert len(known) == 1
    side = [peer.bench.facts["side"] for peer in peers.values()]
    upright = [(peer.bench.true_cluster == 0).mean() for peer in peers.values()]
    parts = [np.mean([f for f, s in zip(upright, side, strict=True) if s == part]) for part in (0, 1)]
    assert abs(parts[0] - parts[1]) > 0.3
    chosen = [peer.announced.selected for peer in peers.values()]  # of the hard round
    assert chosen == side


# ---- dynamic graphs, usable by every algorithm ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(algorithms()) - {"local"}))
def test_models_travel_only_over_edges_that_are_up(name):
    graph = graph_of(6, "complete", algorithm=name, dynamic_edges=0.5, options={}, rounds=4, local_epochs=1)
    run, seen, down = InProcess(graph), [], 0
    receive = run._receive
    run._receive = lambda peer, one, facts: (
        seen.append((one.header.round_index, one.header.sender, peer.peer_id)),
        receive(peer, one, facts),
    )
    run.run()
    assert seen
    for t, sender, receiver in seen:
        assert receiver in neighbors_in_round(graph, t, sender) and sender in neighbors_in_round(graph, t, receiver)
    for t in range(4):
        down += sum(5 - len(neighbors_in_round(graph, t, i)) for i in graph.ids)
    assert down > 20


def test_impossible_options_are_sentences():
    updates = {"split": "updates", "warm_rounds": 3, "hard_rounds": 1}
    with pytest.raises(ConfigError, match="does not cover"):
        fedspd(graph_of(options=updates | {"dp_epsilon": 1.0, "min_cluster_samples": 5}))
    with pytest.raises(ConfigError, match=r"run\.options\.hard_rounds 0"):
        fedspd(graph_of(options=updates | {"hard_rounds": 0}))
    with pytest.raises(ConfigError, match=r"run\.options\.u_min"):
        fedspd(graph_of(options={"u_min": 2.0}))


def test_the_most_confident_center_needs_classes():
    """In a regression the largest prediction would win, whatever it is worth."""
    bench = InProcess(graph_of()).peers[0].bench
    bench.learner.labels = lambda part="train": None
    with pytest.raises(ConfigError, match=r"run\.options\.personalize: found 'confident' for a regression"):
        fedspd(graph_of(options={"personalize": "confident"})).begin(bench)
    fedspd(graph_of(options={"personalize": "mixture"})).begin(bench)


def test_a_late_model_folds_only_into_a_center_that_was_selected_recently():
    """In round 5, with models up to two rounds old: cluster 0 was left after round 3, cluster 1 after round 2."""
    subject = fedspd(graph_of(clusters=3, pace="async", stale="fold", stale_rounds_max=2))
    facts = {"selected": 2, "trained": [2], "selected_at": [3, 2, 5], "round_index": 5}
    assert [t.slot for t in subject.targets(facts, header(slot=0, round_index=4))] == [0]
    assert subject.targets(facts, header(slot=1, round_index=4)) is None
    assert [t.slot for t in subject.targets(facts, header(slot=2, round_index=4))] == [2]

"""CGPFL against a float64 oracle, pFedMe (K = 1) and its server form; what is sent; what is refused; K by gossip."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError, Refusal
from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.algorithms import cluster_count, clustering, labels
from peer.algorithms.cgpfl import Cgpfl
from peer.algorithms.pfedme import successive_batches
from peer.core.messages import Pass, PullRequest
from peer.experiment.algorithm_server import run_algorithm_server
from tests.oracle import cgpfl as oracle
from tests.oracle.fedspd import Data, share
from tests.tools.simulated import finish, peers_of, run
from tests.unit.algorithms.messages import header

SMALL = {"samples_per_peer": 50, "test_per_peer": 20}
BASE = dict(task="digits", split="rotated_hard", split_options=SMALL, rounds=3, model="mlr", batch_size=1000)
LOCAL = {"strength": 2.0, "inner_steps": 3}


def graph_of(peers=4, kind="line", algorithm="cgpfl", options=None, **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    settings = BASE | {"algorithm": algorithm, "options": LOCAL | (options or {}), "learning_rate": 0.3} | manifest
    return Graph(made.nodes, made.edges, Manifest(**settings))


def centers_of(peer):
    return peer.models[: peer.algorithm.clusters]


# ---- the equations ---------------------------------------------------------------------------------------------------------


def expected_of(graph, peers, clusters):
    """Return what the oracle finds for a run; it draws batches and participation by the same seeds."""
    m, data = graph.manifest, {}
    for i, peer in enumerate(peers):
        shard = peer.learner.shard
        data[i] = Data(shard.train_x.reshape(len(shard.train_x), -1).astype(np.float64), shard.train_y)
    count = m.options.get("local_rounds") or m.local_epochs * -(-SMALL["samples_per_peer"] // m.batch_size)

    def batches(i, t):
        draw, samples = generator(derive_seed(m.seed, "batches", i, t), "shuffle"), len(data[i].y)
        passes, starts = [draw.permutation(samples) for _ in range(count)], range(0, samples, m.batch_size)
        return [order[start : start + m.batch_size] for order in passes for start in starts][:count]

    return oracle.run(
        {i: list(graph.neighbors(i)) for i in graph.ids},
        data,
        peers[0].models[0].copy(),
        m.rounds,
        0.3,
        batches,
        clusters=clusters,
        alpha=m.options.get("alpha", 1.0),
        mix=m.mix or "uniform",
        resting=[
            {i for i in graph.ids if share(m.seed, "participation", t, i) >= m.participation} for t in range(m.rounds)
        ],
        strength=2.0,
        steps=3,
    )


@pytest.mark.parametrize(
    ("kind", "options", "settings"),
    [
        ("line", {}, {}),
        ("star", {}, {}),
        ("complete", {}, {}),
        ("line", {"alpha": 0.6}, {}),
        ("barabasi-albert", {}, {"mix": "metropolis"}),
        ("line", {}, {"batch_size": 20, "local_epochs": 2}),
        ("star", {"local_rounds": 5}, {"batch_size": 20}),
        ("complete", {"alpha": 0.6}, {"participation": 0.6, "seed": 4}),
        ("barabasi-albert", {}, {"participation": 0.6, "seed": 4, "mix": "metropolis"}),
    ],
)
def test_a_run_equals_the_oracle(kind, options, settings):
    graph = graph_of(5, kind, options=options, **{"clusters": 2, "local_epochs": 4} | settings)
    peers = peers_of(graph)
    expected, compared = expected_of(graph, peers, 2), []

    def compare(t):
        swapped = peers[0].state["label"] != expected[t][0][2]  # the oracle's own numbering
        for i, peer in enumerate(peers):
            theta, centers, label = expected[t][i]
            order = [1, 0] if swapped else [0, 1]
            assert peer.state["label"] == order[label], (t, i)
            np.testing.assert_allclose(peer.models[peer.algorithm.personal], theta, atol=5e-6)
            for found, wanted in zip(centers_of(peer), [centers[k] for k in order], strict=True):
                np.testing.assert_allclose(found, wanted, atol=5e-6)
        compared.append(t)

    finish(peers, compare)
    assert compared == [0, 1, 2]
    assert {peer.state["anchor"][0] for peer in peers} == {0}
    apart = [np.abs(centers[0] - centers[1]).max() for _, centers, _ in expected[-1].values()]
    assert min(apart) > 0.05
    rests = [sum(not peer.history[t]["active"] for peer in peers) for t in range(3)]
    assert rests[0] == 0 and all((n > 0) == ("participation" in settings) for n in rests[1:]), "choose another seed"


@pytest.mark.parametrize("mix", ["uniform", "metropolis"])
@pytest.mark.parametrize("options", [{}, {"local_rounds": 5}])
def test_pfedme_on_mini_batches_equals_the_oracle_of_one_cluster(mix, options):
    graph = graph_of(4, "star", "pfedme", options, batch_size=20, local_epochs=2, mix=mix)
    peers = peers_of(graph)
    expected = expected_of(graph, peers, 1)
    finish(peers)
    for peer, (theta, centers, _) in zip(peers, expected[-1].values(), strict=True):
        np.testing.assert_allclose(peer.models[0], centers[0], atol=5e-6)
        np.testing.assert_allclose(peer.models[1], theta, atol=5e-6)


def test_successive_batches_cover_the_shuffled_samples_pass_after_pass():
    workspace = peers_of(graph_of(2, batch_size=20))[0].workspace
    batches = successive_batches(workspace, 8)
    assert [len(batch) for batch in batches] == [20, 20, 10, 20, 20, 10, 20, 20]
    first, second = (np.concatenate(batches[start : start + 3]).tolist() for start in (0, 3))
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({*np.concatenate(batches[6:]).tolist()}) == 40
    workspace.round_index = 1
    third = np.concatenate(successive_batches(workspace, 3)).tolist()
    assert list(range(50)) not in (first, second, third) and first != second and third not in (first, second)


@pytest.mark.parametrize("mix", ["uniform", "metropolis"])
@pytest.mark.parametrize("kind", ["line", "complete", "star"])
@pytest.mark.parametrize("aggregation", ["sequential", "batch"])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_one_cluster_is_pfedme_bit_for_bit(kind, mix, aggregation, participation):
    settings = dict(clusters=1, mix=mix, aggregation=aggregation, batch_size=20, model="mlp", rounds=4)
    settings |= {"model_options": {"hidden": 8}, "participation": participation}
    mine, theirs = run(graph_of(5, kind, **settings)), run(graph_of(5, kind, "pfedme", **settings))
    rests = [[not row["active"] for row in peer.history] for peer in mine]
    assert participation == 1 or (any(of[0] for of in rests) and any(any(of[1:]) for of in rests)), "another seed"
    for one, other in zip(mine, theirs, strict=True):
        assert one.models[0].tobytes() == other.models[0].tobytes()
        assert one.models[2].tobytes() == other.models[1].tobytes(), "theta"
        assert one.totals["payload_bytes_sent"] == other.totals["payload_bytes_sent"]
        assert one.final["accuracy"] == other.final["accuracy"]


def test_pfedme_keeps_a_share_of_the_own_w_in_a_round_that_it_sits_out():
    options = {"beta": 0.5, "strength": 1.0}
    graph = graph_of(2, "line", "pfedme", options, mix="uniform", participation=0.5, seed=3, rounds=1)
    peers = peers_of(graph)
    start = peers[0].models[0].copy()
    finish(peers)
    assert [peer.history[0]["active"] for peer in peers] == [False, True], "choose another seed"
    moved = [peer.models[0] - start for peer in peers]
    np.testing.assert_allclose(moved[0], 0.25 * moved[1], atol=1e-6)
    assert np.abs(moved[0]).max() > 1e-3


@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_one_cluster_with_a_server_is_pfedme_with_a_server_bit_for_bit(alpha):
    settings = dict(clusters=1, batch_size=20, rounds=3)
    mine = run_algorithm_server(graph_of(4, options={"alpha": alpha}, **settings), None)
    theirs = run_algorithm_server(graph_of(4, algorithm="pfedme", options={"beta": alpha}, **settings), None)
    for i in mine:
        one, other = mine[i].host.workspace.models, theirs[i].host.workspace.models
        assert one.model(0).tobytes() == other.model(0).tobytes()
        assert one.model(2).tobytes() == other.model(1).tobytes(), "theta"


@pytest.mark.parametrize(("alpha", "auto"), [(1.0, False), (0.6, False), (1.0, True)])
def test_on_the_complete_graph_it_is_the_server_form(alpha, auto):
    options = {"alpha": alpha} | ({"clusters": "auto", "clusters_max": 3} if auto else {})
    graph = graph_of(8, "complete", options=options, clusters=2, local_epochs=4, rounds=4)
    peers, clients = run(graph), run_algorithm_server(graph, None)
    for i, peer in enumerate(peers):
        client = clients[i].host.workspace
        assert peer.state["label"] == client.state["label"]
        assert peer.state["clusters"] == client.state["clusters"]
        for k in range(peer.state["clusters"]):
            np.testing.assert_allclose(peer.models[k], client.models.model(k), atol=2e-6)
        personal = peer.algorithm.personal
        np.testing.assert_allclose(peer.models[personal], client.models.model(personal), atol=2e-6)
    found = [peer.state["label"] for peer in peers]
    truth = [int(peer.workspace.true_cluster[0]) for peer in peers]
    assert len({(a, b) for a, b in zip(found, truth, strict=True)}) == 2, "labels are the true clusters"


def test_a_peer_that_sits_round_0_out_has_labels_all_the_same():
    graph = graph_of(6, "complete", participation=0.5, clusters=2, rounds=4, local_epochs=3)
    peers, unlabeled = peers_of(graph), []
    finish(peers, lambda t: unlabeled.extend(p for p in peers if t == 0 and p.state["label"] is None))
    sat_out = [peer for peer in peers if not peer.history[0]["active"]]
    assert sat_out, "choose another seed"
    assert unlabeled == sat_out
    for peer in sat_out:
        assert peer.state["anchor"][0] == 0 and peer.state["label"] in (0, 1, None)
        assert not np.array_equal(*centers_of(peer))
    assert all(peer.refusals == {} for peer in peers)


# ---- what travels ----------------------------------------------------------------------------------------------------------


def test_one_model_goes_to_each_neighbor_and_theta_to_none():
    peers = run(graph_of(5, "line", options={"align_every": 2}, clusters=2))
    for peer in peers:
        assert peer.totals["models_sent"] == 3 * len(peer.algorithm.graph.neighbors(peer.peer_id))
        assert all({key[4] for key in row["folded"]} <= {peer.algorithm.own} for row in peer.history)
    host = peers[1]._peer.host
    host.closed = False
    incarnation = host.state.neighbors[0].incarnation
    assert host.answer_pull(PullRequest(0, incarnation, host.algorithm.personal)) is Refusal.SLOT_OUT_OF_RANGE
    assert host.answer_pull(PullRequest(0, incarnation, host.algorithm.own))[0].slot == host.algorithm.own


@pytest.mark.parametrize(
    ("round_index", "slot", "scalars", "code"),
    [
        (0, 2, (), None),
        (0, 2, (0.0, 2.0), Refusal.WEIGHT_OUT_OF_RANGE),
        (0, 0, (), Refusal.SLOT_OUT_OF_RANGE),
        (1, 2, (1.0, 2.0), None),
        (1, 1, (1.0, 2.0), Refusal.SLOT_OUT_OF_RANGE),
        (1, 2, (), Refusal.WEIGHT_OUT_OF_RANGE),
        (1, 2, (2.0, 2.0), Refusal.WEIGHT_OUT_OF_RANGE),
        (1, 2, (0.5, 2.0), Refusal.WEIGHT_OUT_OF_RANGE),
        (1, 2, (-1.0, 2.0), Refusal.WEIGHT_OUT_OF_RANGE),
        (1, 2, (0.0, 1.0), Refusal.WEIGHT_OUT_OF_RANGE),
        (1, 2, (0.0, 2.0, 0.0), Refusal.WEIGHT_OUT_OF_RANGE),
    ],
)
def test_wrong_headers_are_refused(round_index, slot, scalars, code):
    algorithm = Cgpfl(graph_of(clusters=2).manifest, 0, graph_of(clusters=2))
    rejection = algorithm.rejects({}, header(round_index=round_index, slot=slot, scalars=scalars), None)
    assert (rejection and rejection.code) == code


Q = 4
GOOD = (1.0, 1.0, 2.0, *([0.5] * 2 * Q))


@pytest.mark.parametrize(
    ("step", "numbers", "code"),
    [
        (0, (), None),
        (0, (1.0,), Refusal.MALFORMED),
        (1, (), None),
        (1, (0.5, 0.2, 1.0, 1.0), None),
        (1, (0.5, 0.2, 1.0), Refusal.MALFORMED),
        (1, (1.5, 0.2, 1.0, 1.0), Refusal.MALFORMED),
        (1, (0.5, 0.2, 0.4, 1.0), Refusal.MALFORMED),
        (1, (-0.5, 0.2, 1.0, 1.0), Refusal.MALFORMED),
        (7, GOOD, None),
        (7, (9.0, *GOOD[1:]), Refusal.MALFORMED),
        (7, (1.0, 4.0, *GOOD[2:]), Refusal.MALFORMED),
        (7, (1.0, 0.5, *GOOD[2:]), Refusal.MALFORMED),
        (7, (1.0,), Refusal.MALFORMED),
        (7, (1.0, 1.0, 3.0, *([0.5] * 3 * Q)), Refusal.WRONG_SIZE),
        (7, (1.0, 1.0, 1.5, *([0.5] * 2 * Q)), Refusal.WRONG_SIZE),
        (7, GOOD[:-1], Refusal.WRONG_SIZE),
    ],
)
def test_wrong_numbers_are_refused(step, numbers, code):
    graph = graph_of(4, "star", options={"clusters": "auto", "clusters_max": 2, "sketch_size": Q})
    algorithm = Cgpfl(graph.manifest, 0, graph)
    assert [algorithm.kind(0, s) for s in (0, 1, 6, 7)] == ["models", "costs", "costs", "align"]
    assert algorithm.count_max == 2
    rejection = algorithm.rejects_pass({}, Pass(1, 1, 0, step, numbers))
    assert (rejection and rejection.code) == code


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pace": "async"}, "run.pace"),
        ({"momentum": 0.9}, "momentum"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"options": {"strength": 15.0}}, "at most 1"),
        ({"options": LOCAL | {"sketch_size": 4096}}, "sketch_size"),
        ({"options": LOCAL | {"clusters": 3}}, "run.options.clusters"),
    ],
)
def test_settings_without_sense_are_refused(changes, found):
    graph = graph_of(clusters=2)
    with pytest.raises(ConfigError, match=found):
        Cgpfl(graph.manifest.model_copy(update=changes), 0, graph)


# ---- labels ----------------------------------------------------------------------------------------------------------------


def test_labels_of_all_peers_descend_from_one():
    graph = graph_of(8, "ring", clusters=2, local_epochs=4, rounds=2)
    peers = run(graph)
    assert {peer.state["anchor"][0] for peer in peers} == {0}
    assert max(peer.state["anchor"][1] for peer in peers) == 4
    first = [np.stack(centers_of(peer)) for peer in peers]
    for a, b in graph.edges:
        straight = ((first[a] - first[b]) ** 2).sum()
        assert straight < ((first[a] - first[b][::-1]) ** 2).sum(), (a, b)


def test_permuted_labels_are_restored_at_the_next_alignment():
    graph = graph_of(4, "line", options={"align_every": 2}, clusters=2, local_epochs=4, rounds=4)
    straight, permuted = run(graph), peers_of(graph)

    def permute(t):
        if t == 1:
            models, state = permuted[3].workspace.models, permuted[3].workspace.state
            first, second = models.model(0).copy(), models.model(1).copy()
            models.replace(0, second)
            models.replace(1, first)
            permuted[3].workspace.state = {**state, "label": 1 - state["label"]}
            permuted[3]._peer.host.state.algorithm_state = dict(permuted[3].workspace.state)

    seen = []

    def watch(t):
        permute(t)
        seen.append([peer.state["label"] for peer in permuted])

    finish(permuted, watch)
    assert seen[1][3] != straight[3].state["label"]
    assert [peer.state["label"] for peer in permuted] == [peer.state["label"] for peer in straight]


def test_nearest_matching_finds_every_permutation_and_keeps_equal_centers():
    draw = np.random.default_rng(1)
    parent = draw.normal(size=(4, 32)).astype(np.float32)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]):
        own = np.empty_like(parent)
        own[order] = parent + 0.05 * draw.normal(size=parent.shape)
        assert labels.nearest_matching(own, parent) == order
    same = np.ones((3, 8), np.float32)
    assert labels.nearest_matching(same, same) == [0, 1, 2]


# ---- k-means ---------------------------------------------------------------------------------------------------------------


def blobs(counts=(5, 4, 6), d=3000, apart=6.0):
    draw = np.random.default_rng(2)
    reference = draw.normal(size=d).astype(np.float32) * 5
    centers = [apart * draw.normal(size=d) / np.sqrt(d) for _ in counts]
    models = [
        (reference + center + draw.normal(size=d) / np.sqrt(d)).astype(np.float32)
        for center, count in zip(centers, counts, strict=True)
        for _ in range(count)
    ]
    return models, reference, np.repeat(range(len(counts)), counts)


def test_coordinates_keep_all_distances():
    models, reference, _ = blobs()
    points = clustering.coordinates(models, reference)
    for i, one in enumerate(models):
        for j, other in enumerate(models):
            exact = ((one.astype(np.float64) - other) ** 2).sum()
            assert ((points[i] - points[j]) ** 2).sum() == pytest.approx(exact, rel=1e-6, abs=1e-6)


def test_k_means_finds_groups_and_labels_persist_from_known_centers():
    models, reference, truth = blobs()
    points = clustering.coordinates(models, reference)
    found = clustering.k_means(points, 3, np.random.default_rng(0))
    assert len({(a, b) for a, b in zip(found, truth, strict=True)}) == 3
    known = np.stack([points[truth == k].mean(axis=0) for k in (2, 0, 1)])
    assert clustering.lloyd(points, known).tolist() == [[1, 2, 0][k] for k in truth]
    assert clustering.k_means(points[:2], 5, np.random.default_rng(0)).tolist() == [0, 1]


def test_an_emptied_cluster_gets_the_farthest_point():
    points = np.array([[0.0], [0.1], [0.2], [9.0]])
    found = clustering.lloyd(points, np.array([[0.0], [500.0]]))
    assert found.tolist() == [0, 0, 0, 1]
    same = np.zeros((4, 2))
    assert set(clustering.k_means(same, 2, np.random.default_rng(0)).tolist()) == {0}


def test_the_nearest_center_is_that_of_float64():
    models, _, truth = blobs()
    assert [clustering.nearest(model, [models[0], models[5], models[9]]) for model in models] == truth.tolist()
    assert clustering.nearest(models[0], [models[1], models[1]]) == 0


# ---- K by gossip -------------------------------------------------------------------------------------------------------------


def test_the_curve_of_three_groups_has_its_best_count_at_three():
    models, reference, _ = blobs()
    points = clustering.coordinates(models, reference)
    ratios = cluster_count.relative_costs(points, 7, np.random.default_rng(0), np.ones(len(models)))
    assert ratios[0] == 1.0 and all(b <= a + 1e-9 for a, b in pairwise(ratios))
    assert cluster_count.best_count(cluster_count.curve_of(ratios, 7), 7, 1.0) == 3
    assert cluster_count.best_count(cluster_count.curve_of(ratios, 7), 7, 0.0) == 1
    assert cluster_count.best_count(cluster_count.curve_of(ratios, 7), 7, 100.0) == 7
    equal = cluster_count.relative_costs(np.zeros((4, 2)), 2, np.random.default_rng(0), np.ones(4))
    assert cluster_count.best_count(cluster_count.curve_of(equal, 3), 3, 1.0) == 1
    assert cluster_count.best_count([0.0] * 6, 3, 1.0) == 1, "nothing is known"


def test_a_count_is_judged_by_those_peers_that_have_it():
    one, two = cluster_count.curve_of([1.0, 0.5], 3), cluster_count.curve_of([1.0], 3)
    mean = cluster_count.mixed(one, [(two, 0.5)])
    assert mean == [1.0, 0.25, 0.0, 1.0, 0.5, 0.0]
    assert cluster_count.best_count(mean, 3, 1.0) == cluster_count.best_count(one, 3, 1.0)


@pytest.mark.parametrize("kind", ["complete", "ring", "star"])
def test_all_peers_agree_on_the_number_of_clusters(kind):
    peers = run(graph_of(8, kind, options={"clusters": "auto", "clusters_max": 4}, clusters=2, local_epochs=4))
    assert len({peer.state["clusters"] for peer in peers}) == 1
    assert 1 <= peers[0].state["clusters"] <= peers[0].algorithm.count_max
    assert all(peer.state["label"] < peer.state["clusters"] for peer in peers)
    assert all(peer.refusals == {} for peer in peers)
    if kind == "complete":
        assert peers[0].state["clusters"] == 2


def test_gossip_finds_the_mean_of_the_cost_curves_of_all_peers(monkeypatch):
    """Shards of 70 to 283 samples; the network takes a K that peer 0, with the smallest id, cannot judge alone."""
    auto, split = {"clusters": "auto", "clusters_max": 4}, {"base": "rotated_soft", "r": 4.0, "test_per_peer": 20}
    ring = graph_of(8, "ring", options=auto, split="imbalance", split_options=split, rounds=1, local_epochs=4)
    chords = [(i, i + 2) for i in range(6)] + [(0, 6), (1, 7), (2, 6)]
    graph, curves, end_step = replace(ring, edges=tuple(sorted([*ring.edges, *chords]))), {}, Cgpfl.end_step

    def recorded(self, workspace):
        state = end_step(self, workspace)
        curves[self.peer_id, workspace.step] = state["costs"]
        return state

    monkeypatch.setattr(Cgpfl, "end_step", recorded)
    peers = run(graph)
    models = [peer.models[peer.algorithm.own].astype(np.float64) for peer in peers]
    counts, groups = [peer.learner.count() for peer in peers], [sorted([i, *graph.neighbors(i)]) for i in graph.ids]
    own = [oracle.curve([models[j] for j in group], [counts[j] for j in group], 3) for group in groups]
    for i in graph.ids:
        np.testing.assert_allclose(curves[i, 0], own[i], atol=1e-5)
        np.testing.assert_allclose(curves[i, 6], np.mean(own, axis=0), atol=2e-3)  # after six steps of gossip
    assert np.abs(own - np.mean(own, axis=0)).max(axis=1).min() > 0.1
    assert cluster_count.best_count(own[0], 3, 1.0) == 2
    assert [peer.state["clusters"] for peer in peers] == [3] * 8


@pytest.mark.parametrize(("mu_scale", "count"), [(0.0, 1), (1.0, 2), (100.0, 4)])
def test_the_weight_of_the_cost_decides_how_many_clusters_there_are(mu_scale, count):
    options = {"clusters": "auto", "clusters_max": 4, "mu_scale": mu_scale}
    graph = graph_of(8, "complete", options=options, local_epochs=4, rounds=1)
    assert [peer.state["clusters"] for peer in run(graph)] == [count] * 8
    clients = run_algorithm_server(graph, None).values()
    assert [client.host.workspace.state["clusters"] for client in clients] == [count] * 8


def test_a_peer_that_missed_round_0_learns_the_count_from_its_neighbors():
    graph = graph_of(4, "complete", options={"clusters": "auto", "clusters_max": 4}, clusters=2, rounds=5)
    peers = peers_of(graph)

    def forget(t):
        if t == 1:
            state = {
                k: v for k, v in peers[3].workspace.state.items() if k not in ("clusters", "anchor", "cluster_index")
            }
            peers[3].workspace.state = state | {"label": None}
            peers[3]._peer.host.state.algorithm_state = dict(peers[3].workspace.state)

    finish(peers, forget)
    assert peers[3].state["clusters"] == peers[0].state["clusters"]
    assert peers[3].state["label"] in range(peers[0].state["clusters"])
    assert all(peer.refusals == {} for peer in peers)

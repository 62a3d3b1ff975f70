"""CGPFL against a float64 oracle, pFedMe (K = 1) and its server form; what is sent; what is refused; labels."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import ConfigError, RefusalCode
from coordinator_free_bootstrap.seeds import derive_seed, generator
from peer.core.messages import Numbers, Pass, PullRequest
from peer.lab.algorithm_server import run_algorithm_server
from peer.zoo.algorithms.cgpfl import Cgpfl
from peer.zoo.algorithms.local_rounds import successive_batches
from peer.zoo.algorithms.personal import batches_in_epochs
from tests.oracle import cgpfl as oracle
from tests.oracle.fedspd import Data, share
from tests.tools.simulated import finish, peers_of, run
from tests.unit.algorithms.messages import header
from tests.unit.zoo.cgpfl_runs import LOCAL, SMALL, graph_of


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
        swapped = peers[0].state.label != expected[t][0][2]  # the oracle's own numbering
        for i, peer in enumerate(peers):
            theta, centers, label = expected[t][i]
            order = [1, 0] if swapped else [0, 1]
            assert peer.state.label == order[label], (t, i)
            np.testing.assert_allclose(peer.models[peer.algorithm.personal], theta, atol=5e-6)
            for found, wanted in zip(centers_of(peer), [centers[k] for k in order], strict=True):
                np.testing.assert_allclose(found, wanted, atol=5e-6)
        compared.append(t)

    finish(peers, compare)
    assert compared == [0, 1, 2]
    assert {peer.state.anchor[0] for peer in peers} == {0}
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


@pytest.mark.parametrize(("batch_size", "sizes"), [(20, [20, 20, 10] * 3), (50, [50] * 3), ("all", [50] * 3)])
def test_three_epochs_of_50_samples_have_so_many_batches(batch_size, sizes):
    workspace = peers_of(graph_of(2, batch_size=batch_size, local_epochs=3))[0].workspace
    batches = successive_batches(workspace, batches_in_epochs(workspace))
    assert [len(batch) for batch in batches] == sizes


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
        assert one.final["metric_value"] == other.final["metric_value"]


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
        assert peer.state.label == client.state.label
        assert peer.state.clusters == client.state.clusters
        for k in range(peer.state.clusters):
            np.testing.assert_allclose(peer.models[k], client.models.model(k), atol=2e-6)
        personal = peer.algorithm.personal
        np.testing.assert_allclose(peer.models[personal], client.models.model(personal), atol=2e-6)
    found = [peer.state.label for peer in peers]
    truth = [int(peer.workspace.true_cluster[0]) for peer in peers]
    assert len({(a, b) for a, b in zip(found, truth, strict=True)}) == 2, "labels are the true clusters"


def test_a_peer_that_sits_round_0_out_has_labels_all_the_same():
    graph = graph_of(6, "complete", participation=0.5, clusters=2, rounds=4, local_epochs=3)
    peers, unlabeled = peers_of(graph), []
    finish(peers, lambda t: unlabeled.extend(p for p in peers if t == 0 and p.state.label is None))
    sat_out = [peer for peer in peers if not peer.history[0]["active"]]
    assert sat_out, "choose another seed"
    assert unlabeled == sat_out
    for peer in sat_out:
        assert peer.state.anchor[0] == 0 and peer.state.label in (0, 1, None)
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
    assert host.answer_pull(PullRequest(0, incarnation, host.algorithm.personal)).code is RefusalCode.SLOT_OUT_OF_RANGE
    assert host.answer_pull(PullRequest(0, incarnation, host.algorithm.own))[0].slot == host.algorithm.own


@pytest.mark.parametrize(
    ("round_index", "slot", "numbers", "code"),
    [
        (0, 2, (), None),
        (0, 2, (0.0, 2.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
        (0, 0, (), RefusalCode.SLOT_OUT_OF_RANGE),
        (1, 2, (1.0, 2.0), None),
        (1, 1, (1.0, 2.0), RefusalCode.SLOT_OUT_OF_RANGE),
        (1, 2, (), RefusalCode.WEIGHT_OUT_OF_RANGE),
        (1, 2, (2.0, 2.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
        (1, 2, (0.5, 2.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
        (1, 2, (-1.0, 2.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
        (1, 2, (0.0, 1.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
        (1, 2, (0.0, 2.0, 0.0), RefusalCode.WEIGHT_OUT_OF_RANGE),
    ],
)
def test_wrong_headers_are_refused(round_index, slot, numbers, code):
    algorithm = Cgpfl(graph_of(clusters=2).manifest, 0, graph_of(clusters=2))
    rejection = algorithm.rejects({}, header(round_index=round_index, slot=slot, numbers=Numbers.of(numbers)), None)
    assert (rejection and rejection.code) == code


Q = 4
GOOD = (1.0, 1.0, 2.0, *([0.5] * 2 * Q))


@pytest.mark.parametrize(
    ("step", "numbers", "code"),
    [
        (0, (), None),
        (0, (1.0,), RefusalCode.MALFORMED),
        (1, (), None),
        (1, (0.5, 0.2, 1.0, 1.0), None),
        (1, (0.5, 0.2, 1.0), RefusalCode.MALFORMED),
        (1, (1.5, 0.2, 1.0, 1.0), RefusalCode.MALFORMED),
        (1, (0.5, 0.2, 0.4, 1.0), RefusalCode.MALFORMED),
        (1, (-0.5, 0.2, 1.0, 1.0), RefusalCode.MALFORMED),
        (7, GOOD, None),
        (7, (9.0, *GOOD[1:]), RefusalCode.MALFORMED),
        (7, (1.0, 4.0, *GOOD[2:]), RefusalCode.MALFORMED),
        (7, (1.0, 0.5, *GOOD[2:]), RefusalCode.MALFORMED),
        (7, (1.0,), RefusalCode.MALFORMED),
        (7, (1.0, 1.0, 3.0, *([0.5] * 3 * Q)), RefusalCode.WRONG_SIZE),
        (7, (1.0, 1.0, 1.5, *([0.5] * 2 * Q)), RefusalCode.WRONG_SIZE),
        (7, GOOD[:-1], RefusalCode.WRONG_SIZE),
        (7, (*GOOD[:-1], 1e39), RefusalCode.NON_FINITE),
    ],
)
def test_wrong_numbers_are_refused(step, numbers, code):
    graph = graph_of(4, "star", options={"clusters": "auto", "clusters_max": 2, "sketch_size": Q})
    algorithm = Cgpfl(graph.manifest, 0, graph)
    assert [algorithm.kind(0, s) for s in (0, 1, 6, 7)] == ["models", "costs", "costs", "align"]
    assert algorithm.count_max == 2
    rejection = algorithm.rejects_pass({}, Pass(1, 1, 0, step, Numbers.of(numbers)))
    assert (rejection and rejection.code) == code


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pace": "async"}, "run.pace"),
        ({"momentum": 0.9}, "momentum"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"options": {"strength": 15.0}}, "at most 1"),
        ({"options": LOCAL | {"sketch_size": 4096, "clusters": "auto", "clusters_max": 100}}, "sketch_size"),
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
    assert {peer.state.anchor[0] for peer in peers} == {0}
    assert max(peer.state.anchor[1] for peer in peers) == 4
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
            permuted[3].workspace.state = replace(state, label=1 - state.label)
            permuted[3]._peer.host.state.algorithm_state = permuted[3].workspace.state

    seen = []

    def watch(t):
        permute(t)
        seen.append([peer.state.label for peer in permuted])

    finish(permuted, watch)
    assert seen[1][3] != straight[3].state.label
    assert [peer.state.label for peer in permuted] == [peer.state.label for peer in straight]

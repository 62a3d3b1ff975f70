"""Label switching: the receiver's check, sketches, and the alignment of labels over a graph (invariant 16)."""

from itertools import permutations

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import Refusal
from peer.algorithms import labels, mixture
from peer.algorithms.labels import Anchor
from peer.core.messages import Announce
from peer.core.model_store import SnapshotKey
from peer.experiment.in_process import InProcess
from tests.unit.algorithms.engines import header

DRAW = np.random.default_rng(5)
D = 20_000  # more than two blocks, not a multiple of one


def vectors(count: int, common: float = 0.0) -> list[np.ndarray]:
    base = DRAW.normal(size=D) * common
    return [(base + DRAW.normal(size=D)).astype(np.float32) for _ in range(count)]


# ---- the receiver's check ------------------------------------------------------------------------------------------------


def test_cosines_are_those_of_float64():
    model, *centers = vectors(4)
    reference = vectors(1)[0]
    for origin in (None, reference):
        zero = np.zeros(D) if origin is None else origin.astype(np.float64)
        arrows = [v.astype(np.float64) - zero for v in (model, *centers)]
        expected = [arrows[0] @ a / np.linalg.norm(arrows[0]) / np.linalg.norm(a) for a in arrows[1:]]
        assert labels.cosines(model, centers, origin) == pytest.approx(expected, abs=1e-5)
    assert labels.cosines(model, [model, reference], model) == [0.0, 0.0]  # a zero vector has no direction


def test_only_a_clear_conflict_is_refused():
    reference = vectors(1)[0] * 10
    centers = [reference + v for v in vectors(2)]
    own = centers[1] + 0.1 * vectors(1)[0]
    rejection = labels.conflict(own, 0, centers, reference, 0.1)
    assert rejection.code is Refusal.LABEL_CONFLICT
    assert labels.conflict(own, 1, centers, reference, 0.1) is None
    uncentered = labels.conflict(own, 0, centers, None, 0.1)
    assert uncentered is None, "both look alike: that is why they are centered"
    between = reference + (centers[0] - reference) + (centers[1] - reference) * 1.02
    assert labels.conflict(between, 0, centers, reference, 0.1) is None
    assert labels.conflict(between, 0, centers, reference, 0.0).code is Refusal.LABEL_CONFLICT


# ---- sketches ------------------------------------------------------------------------------------------------------------


def test_sketches_keep_inner_products():
    models, reference, size = vectors(6, common=1.0), vectors(1)[0], 256
    found = labels.sketch(models, reference, size, seed=1)
    assert found.shape == (6, size) and found.dtype == np.float32
    arrows = np.stack(models).astype(np.float64) - reference
    norms = np.linalg.norm(arrows, axis=1)
    error = np.abs(found @ found.T - arrows @ arrows.T) / np.outer(norms, norms)
    assert error.max() < 5 / np.sqrt(size)


def test_sketches_are_linear_and_the_same_at_every_peer():
    models = vectors(3)
    one = labels.sketch(models, None, 16, seed=1)
    again = labels.sketch(models[1:2], None, 16, seed=1)
    np.testing.assert_allclose(again[0], one[1], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(labels.sketch([models[0] + models[1]], None, 16, 1)[0], one[0] + one[1], atol=1e-2)
    assert not np.allclose(labels.sketch(models, None, 16, seed=2), one, atol=1)


def test_a_sketch_survives_the_wire():
    found = labels.sketch(vectors(2), None, 8, seed=1)
    assert labels.unpack(labels.pack(found), 2).tobytes() == found.tobytes()
    assert len(labels.pack(found)) == 2 * 8 * 4


# ---- matching and anchors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_every_permutation_is_found(order):  # 16
    parent = vectors(4, common=3.0)
    own = [parent[s] + 0.2 * vectors(1)[0] for s in np.argsort(order)]  # own label order[s] is the parent's s
    found = labels.matching(*(labels.sketch(m, None, 256, 1) for m in (own, parent)))
    assert found == list(order)


def test_equal_centers_keep_their_labels():
    same = labels.sketch([vectors(1)[0]] * 3, None, 64, 1)
    assert labels.matching(same, same) == [0, 1, 2]
    assert labels.matching(same[:1], same[:1]) == [0]


def test_the_smallest_anchor_over_the_fewest_hops_is_followed():
    def said(n, anchor, hops, sketch=b"1234"):
        return Announce(n, 1, 1, 0, -1, 0, (float(anchor), float(hops)), sketch)

    own = Anchor(5, 0)
    assert labels.better_anchor(own, {}, 7) is None
    assert labels.better_anchor(own, {6: said(6, 6, 0), 7: said(7, 7, 0)}, 7) is None
    assert labels.better_anchor(own, {6: said(6, 2, 3), 7: said(7, 2, 1), 3: said(3, 3, 0)}, 7) == 7
    assert labels.better_anchor(own, {3: said(3, 3, 0, b"")}, 7) is None  # without a sketch there is nothing to match
    assert labels.better_anchor(Anchor(2, 2), {7: said(7, 2, 1)}, 7) == 7  # goes on following
    assert labels.better_anchor(Anchor(2, 0), {7: said(7, 2, 1)}, 7) is None  # the anchor itself never permutes
    assert labels.better_anchor(Anchor(0, 1), {7: said(7, 2, 0)}, 7) is None
    liar, honest = said(3, 0, 7), said(6, 1, 2)
    assert labels.better_anchor(own, {3: liar, 6: honest}, 7) == 6, "what nobody else would believe is not taken over"


# ---- over a graph ------------------------------------------------------------------------------------------------------------

SOFT = {"samples_per_peer": 30, "test_per_peer": 10}


def line(rounds: int, **options) -> Graph:
    made = make_graph("line", 4, seed=3)
    manifest = Manifest(
        task="digits",
        model="mlr",
        split="rotated_soft",
        split_options=SOFT,
        algorithm="fedspd",
        clusters=3,
        rounds=rounds,
        learning_rate=1e-6,
        options={"align_every": 1, "label_check": False, "min_cluster_samples": 2} | options,
    )
    return Graph(made.nodes, made.edges, manifest)


def test_permuted_labels_are_restored_over_the_whole_graph():  # 16
    run = InProcess(line(4, label_check=True))  # else the first exchanges average what does not belong together
    centers = [m.copy() for m in (run.peers[0].bench.models.model(s) for s in range(3))]
    shifts = {0: [0, 1, 2], 1: [1, 2, 0], 2: [2, 1, 0], 3: [1, 0, 2]}
    truth = {}
    for i, peer in run.peers.items():
        for slot in range(3):
            peer.bench.models.replace(slot, centers[shifts[i][slot]].copy())
        losses = np.stack([peer.bench.learner.sample_losses(c) for c in centers])
        truth[i] = mixture.nearest(losses, 2)
    seen = []
    run.run(lambda t, run: seen.append([list(p.bench.facts["anchor"]) for p in run.peers.values()]))
    # One edge a round, at first only of neighbors' own anchors; after diameter-many rounds all descend from peer 0.
    assert seen[-1] == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert sum(peer.totals["label_conflicts"] for peer in run.peers.values()) > 0
    for i, peer in run.peers.items():
        for slot in range(3):
            np.testing.assert_allclose(peer.bench.models.model(slot), centers[slot], atol=1e-3)
        np.testing.assert_array_equal(peer.bench.arrays["z"], truth[i])


def test_a_permutation_leaves_what_was_offered_alone():
    run = InProcess(line(1))
    peer = run.peers[1]
    bench, algorithm = peer.bench, peer.algorithm
    bench.round_index = 1
    bench.facts = algorithm.assign(bench)
    slot = bench.facts["selected"]
    key = SnapshotKey(1, 0, slot)
    bench.models.snapshot(key)
    offered = bench.models.offered(key).copy()
    parents = [bench.models.model(s) for s in (1, 2, 0)]
    sketch = labels.pack(labels.sketch(parents, bench.scratch["reference"], 256, bench.manifest.seed))
    bench.announced = {0: Announce(0, 1, 1, 0, -1, 0, (0.0, 0.0), sketch)}
    before = [bench.models.model(s).copy() for s in range(3)]
    z = bench.arrays["z"].copy()
    facts = algorithm._aligned(bench, bench.facts)
    assert facts["anchor"] == [0, 1]
    assert [bench.models.model(s).tobytes() for s in range(3)] == [before[s].tobytes() for s in (1, 2, 0)]
    np.testing.assert_array_equal(bench.arrays["z"], np.array([2, 0, 1])[z])  # own cluster 1 is now called 0, ...
    bench.models.begin_round(frozenset())
    for s in range(3):
        bench.models.fold(s, np.ones_like(offered))
    assert bench.models.offered(key).tobytes() == offered.tobytes()


def test_alignment_rounds_follow_the_period():
    made = {every: InProcess(line(1, align_every=every)).peers[0].algorithm for every in (0, 1, 3, 10)}
    when = {every: [t for t in range(25) if algorithm.aligning(t)] for every, algorithm in made.items()}
    assert when == {0: [], 1: list(range(1, 25)), 3: list(range(1, 25, 3)), 10: [1, 11, 21]}


def test_the_label_check_uses_the_centers_of_the_rounds_start():
    graph = line(1, label_check=True)
    peer = InProcess(graph).peers[0]
    bench, algorithm = peer.bench, peer.algorithm
    bench.round_index = 2
    bench.facts = algorithm.assign(bench)
    other = bench.models.model(1).copy()
    assert algorithm.screen_arrival(bench, header(slot=0), other).code is Refusal.LABEL_CONFLICT
    assert algorithm.screen_arrival(bench, header(slot=1), other) is None
    bench.models.replace(0, other.copy())  # whatever training does meanwhile, the answer stays
    assert algorithm.screen_arrival(bench, header(slot=0), other).code is Refusal.LABEL_CONFLICT

"""Label switching: the receiver's check, sketches, and the alignment of labels over a graph."""

from itertools import permutations

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import RefusalCode
from peer.algorithms import labels, mixture, sketches
from peer.algorithms.labels import Anchor
from peer.core.messages import Numbers, Select
from peer.core.model_store import SnapshotKey
from tests.tools.simulated import finish, peers_of
from tests.unit.algorithms.messages import header

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
    assert rejection.code is RefusalCode.LABEL_CONFLICT
    assert labels.conflict(own, 1, centers, reference, 0.1) is None
    uncentered = labels.conflict(own, 0, centers, None, 0.1)
    assert uncentered is None, "both look alike: that is why they are centered"
    between = reference + (centers[0] - reference) + (centers[1] - reference) * 1.02
    assert labels.conflict(between, 0, centers, reference, 0.1) is None
    assert labels.conflict(between, 0, centers, reference, 0.0).code is RefusalCode.LABEL_CONFLICT


# ---- sketches ------------------------------------------------------------------------------------------------------------


def test_sketches_keep_inner_products():
    models, reference, size = vectors(6, common=1.0), vectors(1)[0], 256
    found = sketches.sketch(models, reference, size, seed=1)
    assert found.shape == (6, size) and found.dtype == np.float32
    arrows = np.stack(models).astype(np.float64) - reference
    norms = np.linalg.norm(arrows, axis=1)
    error = np.abs(found @ found.T - arrows @ arrows.T) / np.outer(norms, norms)
    assert error.max() < 5 / np.sqrt(size)


def test_sketches_are_linear_and_the_same_at_every_peer():
    models = vectors(3)
    one = sketches.sketch(models, None, 16, seed=1)
    again = sketches.sketch(models[1:2], None, 16, seed=1)
    np.testing.assert_allclose(again[0], one[1], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(sketches.sketch([models[0] + models[1]], None, 16, 1)[0], one[0] + one[1], atol=1e-2)
    assert not np.allclose(sketches.sketch(models, None, 16, seed=2), one, atol=1)


def test_a_sent_sketch_is_read_bit_for_bit():
    found = sketches.sketch(vectors(2), None, 8, seed=1)
    numbers = Numbers.of(7, found)
    assert sketches.refuse_rows(numbers.array[1:], 2, 8) is None
    assert sketches.rows(numbers.array[1:], 2).tobytes() == found.tobytes()


# ---- matching and anchors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_every_permutation_is_found(order):
    parent = vectors(4, common=3.0)
    own = [parent[s] + 0.2 * vectors(1)[0] for s in np.argsort(order)]  # own label order[s] is the parent's s
    found = labels.matching(*(sketches.sketch(m, None, 256, 1) for m in (own, parent)))
    assert found == list(order)


def test_equal_centers_keep_their_labels():
    same = sketches.sketch([vectors(1)[0]] * 3, None, 64, 1)
    assert labels.matching(same, same) == [0, 1, 2]
    assert labels.matching(same[:1], same[:1]) == [0]


def parent_of(own, selections):
    return labels.choose_parent(own, labels.anchors_of(selections), 7)


def test_the_smallest_anchor_over_the_fewest_hops_is_followed():
    def said(n, anchor, hops):
        return Select(n, 1, 1, 0, Numbers.of(anchor, hops, [0.5]))

    own = Anchor(5, 0)
    assert parent_of(own, {}) is None
    assert parent_of(own, {6: said(6, 6, 0), 7: said(7, 7, 0)}) is None
    assert parent_of(own, {6: said(6, 2, 3), 7: said(7, 2, 1), 3: said(3, 3, 0)}) == 7
    assert parent_of(own, {3: Select(3, 1, 1, 0)}) is None  # without a sketch there is nothing to match
    assert parent_of(Anchor(2, 2), {7: said(7, 2, 1)}) == 7  # it keeps following its anchor
    assert parent_of(Anchor(2, 0), {7: said(7, 2, 1)}) is None  # the anchor itself never permutes
    assert parent_of(Anchor(0, 1), {7: said(7, 2, 0)}) is None
    liar, honest = said(3, 0, 7), said(6, 1, 2)
    assert parent_of(own, {3: liar, 6: honest}) == 6, "what nobody else would believe is not taken over"


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


def test_permuted_labels_are_restored_over_the_whole_graph():
    peers = peers_of(line(4, label_check=True))  # without it, the first exchanges average different clusters
    centers = [model.copy() for model in peers[0].models]
    shifts = {0: [0, 1, 2], 1: [1, 2, 0], 2: [2, 1, 0], 3: [1, 0, 2]}
    truth = {}
    for i, peer in enumerate(peers):
        for slot in range(3):
            peer.workspace.models.replace(slot, centers[shifts[i][slot]].copy())
        losses = np.stack([peer.learner.sample_losses(c) for c in centers])
        truth[i] = mixture.nearest(losses, 2)
    seen = []
    finish(peers, lambda t: seen.append([list(peer.state.anchor) for peer in peers]))
    # One edge a round, at first only of neighbors' own anchors; after diameter-many rounds all descend from peer 0.
    assert seen[-1] == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert sum(peer.refusals[RefusalCode.LABEL_CONFLICT] for peer in peers) > 0
    for i, peer in enumerate(peers):
        np.testing.assert_allclose(peer.models, centers, atol=1e-3)
        np.testing.assert_array_equal(peer.state.z, truth[i])


def test_a_permutation_does_not_change_snapshots():
    peer = peers_of(line(1))[1]
    workspace, algorithm = peer.workspace, peer.algorithm
    workspace.round_index = 1
    workspace.state = algorithm.assign(workspace)
    slot = workspace.state.selected
    key = SnapshotKey(1, 0, slot)
    workspace.models.take_snapshot(key)
    offered = workspace.models.get_snapshot(key).copy()
    parents = [workspace.models.model(s) for s in (1, 2, 0)]
    sketch = sketches.sketch(parents, workspace.scratch["reference"], 256, workspace.manifest.seed)
    workspace.selections = {0: Select(0, 1, 1, 0, Numbers.of(0, 0, sketch))}
    before = [workspace.models.model(s).copy() for s in range(3)]
    z = workspace.state.z.copy()
    state = algorithm._align(workspace, workspace.state)
    assert state.anchor == (0, 1)
    assert [workspace.models.model(s).tobytes() for s in range(3)] == [before[s].tobytes() for s in (1, 2, 0)]
    np.testing.assert_array_equal(state.z, np.array([2, 0, 1])[z])  # own cluster 1 is now called 0, ...
    workspace.models.begin_round(frozenset())
    for s in range(3):
        workspace.models.fold(s, np.ones_like(offered))
    assert workspace.models.get_snapshot(key).tobytes() == offered.tobytes()


def test_alignment_rounds_follow_the_period():
    made = {every: peers_of(line(1, align_every=every))[0].algorithm for every in (0, 1, 3, 10)}
    when = {every: [t for t in range(25) if algorithm.aligning(t)] for every, algorithm in made.items()}
    assert when == {0: [], 1: list(range(1, 25)), 3: list(range(1, 25, 3)), 10: [1, 11, 21]}


def test_the_label_check_uses_the_centers_of_the_rounds_start():
    graph = line(1, label_check=True)
    peer = peers_of(graph)[0]
    workspace, algorithm = peer.workspace, peer.algorithm
    workspace.round_index = 2
    workspace.state = algorithm.assign(workspace)
    other = workspace.models.model(1).copy()
    assert algorithm.screen_arrival(workspace, header(slot=0), other).code is RefusalCode.LABEL_CONFLICT
    assert algorithm.screen_arrival(workspace, header(slot=1), other) is None
    workspace.models.replace(0, other.copy())  # a change during training does not change the result
    assert algorithm.screen_arrival(workspace, header(slot=0), other).code is RefusalCode.LABEL_CONFLICT


def test_nearest_matching_finds_every_permutation_and_keeps_equal_centers():
    draw = np.random.default_rng(1)
    parent = draw.normal(size=(4, 32)).astype(np.float32)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]):
        own = np.empty_like(parent)
        own[order] = parent + 0.05 * draw.normal(size=parent.shape)
        assert labels.nearest_matching(own, parent) == order
    same = np.ones((3, 8), np.float32)
    assert labels.nearest_matching(same, same) == [0, 1, 2]

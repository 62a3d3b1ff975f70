"""The division of peers by their data: the same sketches give the same parts."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from peer.algorithms.division import directions, divide, groups, medoids

DRAW = np.random.default_rng(4)


def test_parts_are_found_and_numbered_by_their_smallest_peer():
    truth = [1, 0, 0, 2, 1, 2, 0, 1]
    centers = DRAW.normal(size=(3, 16)) * 5
    rows = np.stack([centers[part] + DRAW.normal(size=16) for part in truth]).astype(np.float32)
    parts = divide(np.arange(3, 11), rows, 3, seed=1)
    assert [parts[i] for i in range(3, 11)] == [0, 1, 1, 2, 0, 2, 1, 0]
    assert parts == divide(np.arange(3, 11), rows, 3, seed=1)


@pytest.mark.parametrize("seed", range(5))
def test_clear_groups_are_those_of_scikit_learn(seed):
    draw = np.random.default_rng(seed)
    truth = draw.permutation(np.arange(24) % 3)
    rows = (4 * draw.normal(size=(3, 32))[truth] + draw.normal(size=(24, 32))).astype(np.float32)
    expected = KMeans(3, n_init=10, random_state=seed).fit_predict(rows)
    parts = divide(np.arange(24), rows, 3, seed)
    assert len({(parts[i], int(label)) for i, label in enumerate(expected)}) == 3


def test_fewer_sketches_than_parts_give_no_division():
    assert divide(np.array([1]), np.ones((1, 3), np.float32), 2, seed=1) == {}


def sketches_of(count, each, seed, noise=0.6):
    """Sketches of ``count`` groups in 128 dimensions, ``each`` points in a group."""
    draw = np.random.default_rng(seed)
    centers = np.repeat(draw.standard_normal((count, 128)), each, axis=0) if count > 1 else np.zeros((each, 128))
    scales = np.geomspace(1.0, 0.05, 128)  # updates vary in few directions, which alone would look like groups
    return (centers + noise * scales * draw.standard_normal((len(centers), 128))).astype(np.float32)


@pytest.mark.parametrize(("count", "each"), [(2, 6), (3, 4), (4, 3), (4, 8)])
def test_the_test_finds_the_number_of_groups(count, each):
    for seed in range(3):
        labels = groups(sketches_of(count, each, seed), 6, np.random.default_rng(seed))
        truth = np.repeat(np.arange(count), each)
        assert len({*zip(labels.tolist(), truth.tolist(), strict=True)}) == count == len({*labels.tolist()})


def test_points_without_groups_seldom_look_like_some():
    """One set of 20 has groups by chance."""
    found = [len({*groups(sketches_of(1, 12, seed), 4, np.random.default_rng(seed)).tolist()}) for seed in range(24)]
    assert found.count(1) >= 21


def test_the_middle_of_a_group_is_its_point_nearest_to_the_center_and_large_groups_come_first():
    points = np.array([[9.0], [0.0], [1.0], [5.0], [10.0]])
    assert medoids(points, np.array([1, 0, 0, 0, 1])) == [2, 0]
    assert medoids(points[:0], np.zeros(0, np.int64)) == []


def test_directions_do_not_depend_on_length_and_a_common_update():
    draw = np.random.default_rng(1)
    apart = draw.standard_normal((6, 128))
    apart -= apart.mean(axis=0)
    found = directions((7.0 + apart).astype(np.float32))
    np.testing.assert_allclose(found, apart / np.linalg.norm(apart, axis=1, keepdims=True), atol=1e-5)
    assert not directions(np.ones((3, 128), np.float32)).any()

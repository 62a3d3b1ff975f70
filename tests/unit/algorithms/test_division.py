"""The division of peers by their data: the same sketches give the same parts."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from peer.algorithms.division import divide

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

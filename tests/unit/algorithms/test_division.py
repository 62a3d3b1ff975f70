"""The division of peers by their data: the same sketches give the same parts."""

import numpy as np

from peer.algorithms.division import divide

DRAW = np.random.default_rng(4)


def test_parts_are_found_and_numbered_by_their_smallest_peer():
    truth = [1, 0, 0, 2, 1, 2, 0, 1]
    centers = DRAW.normal(size=(3, 16)) * 5
    rows = np.stack([centers[part] + DRAW.normal(size=16) for part in truth]).astype(np.float32)
    parts = divide(np.arange(3, 11), rows, 3, seed=1)
    assert [parts[i] for i in range(3, 11)] == [0, 1, 1, 2, 0, 2, 1, 0]
    assert parts == divide(np.arange(3, 11), rows, 3, seed=1)


def test_fewer_sketches_than_parts_give_no_division():
    assert divide(np.array([1]), np.ones((1, 3), np.float32), 2, seed=1) == {}

"""A common division of peers: sketches are joined once each, and the same sketches give the same parts."""

import numpy as np

from peer.algorithms import sides

DRAW = np.random.default_rng(4)


def known(*ids: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(ids, np.int64), np.stack([np.full(3, i, np.float32) for i in ids])


def test_sketches_are_joined_in_order_and_what_is_known_stays():
    ids, rows = known(5, 7)
    other_ids, other_rows = known(2, 7, 9)
    other_rows[1] = 99
    joined, found = sides.join(ids, rows, other_ids, other_rows)
    assert joined.tolist() == [2, 5, 7, 9] and found[:, 0].tolist() == [2, 5, 7, 9]
    again = sides.join(joined, found, ids, rows)
    assert again[0].tolist() == [2, 5, 7, 9]
    assert sides.join(ids[:0], rows[:0], ids, rows)[0].tolist() == [5, 7]


def test_parts_are_found_and_named_by_their_smallest_peer():
    truth = [1, 0, 0, 2, 1, 2, 0, 1]
    centers = DRAW.normal(size=(3, 16)) * 5
    rows = np.stack([centers[part] + DRAW.normal(size=16) for part in truth]).astype(np.float32)
    parts = sides.divide(np.arange(3, 11), rows, 3, seed=1)
    assert [parts[i] for i in range(3, 11)] == [0, 1, 1, 2, 0, 2, 1, 0]
    assert parts == sides.divide(np.arange(3, 11), rows, 3, seed=1)


def test_too_few_sketches_divide_nobody():
    assert sides.divide(*known(1), 2, seed=1) == {}

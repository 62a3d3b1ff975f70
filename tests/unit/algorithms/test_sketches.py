"""Sets of sketches that peers relay: one sketch per peer, ascending by peer id."""

import numpy as np

from peer.algorithms.sketches import merge


def known(*ids: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(ids, np.int64), np.stack([np.full(3, i, np.float32) for i in ids])


def test_a_merge_keeps_the_first_sketch_of_each_peer_and_sorts_by_peer_id():
    ids, rows = known(5, 7)
    other_ids, other_rows = known(2, 7, 9)
    other_rows[1] = 99
    merged, found = merge(ids, rows, other_ids, other_rows)
    assert merged.tolist() == [2, 5, 7, 9] and found[:, 0].tolist() == [2, 5, 7, 9]
    assert merge(merged, found, ids, rows)[0].tolist() == [2, 5, 7, 9]
    assert merge(ids[:0], rows[:0], ids, rows)[0].tolist() == [5, 7]

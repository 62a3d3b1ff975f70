"""The model store: which arrays may be mutated, and with which weights arrivals merge."""

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core.model_store import ModelStore, SnapshotKey


def vector(*values):
    return np.array(values, np.float32)


def store_of(*models, **options):
    return ModelStore([vector(*model) for model in models], **options)


def test_a_slot_that_is_not_deferred_folds_in_place_with_its_own_model_as_first_sample():
    store = store_of((0, 0), (6, 6))
    store.begin_round(frozenset({0}))
    before = store.model(1)
    store.fold(1, vector(0, 3))
    store.fold(1, vector(3, 3))
    assert store.model(1) is before and store.model(1).tolist() == [3, 4]


@pytest.mark.parametrize("batch", [False, True])
def test_a_deferred_slot_merges_its_arrivals_by_their_weights(batch):
    store = store_of((0, 0), batch=batch)
    store.begin_round(frozenset({0}))
    store.fold(0, vector(3, 0))
    store.replace(0, vector(0, 9))  # training ends after the first arrival
    store.fold(0, vector(3, 0))
    assert store.deferred_weight(0) == 2 and store.model(0).tolist() == [0, 9]
    store.merge(0)
    assert store.model(0).tolist() == [2, 3] and store.deferred_weight(0) == 0


@pytest.mark.parametrize("batch", [False, True])
def test_an_own_weight_of_zero_leaves_the_arrivals_alone(batch):
    store = store_of((7, 7), batch=batch)
    store.begin_round(frozenset({0}))
    store.fold(0, vector(1, 2), 0.25)
    store.fold(0, vector(3, 4), 0.75)
    store.merge(0, 0.0)
    assert store.model(0).tolist() == [2.5, 3.5]


def test_a_merge_without_arrivals_changes_nothing():
    store = store_of((1, 2))
    model = store.model(0)
    store.begin_round(frozenset({0}))
    store.merge(0)
    assert store.model(0) is model


def test_a_fold_does_not_mutate_a_snapshot():
    store = store_of((0, 0))
    key = SnapshotKey(0, 0, 0)
    store.take_snapshot(key)
    store.begin_round(frozenset())
    store.fold(0, vector(2, 2))
    assert store.get_snapshot(key).tolist() == [0, 0] and store.model(0).tolist() == [1, 1]
    store.fold(0, vector(4, 4))
    assert store.model(0).tolist() == [2, 2], "the copy is folded into in place"


def test_merges_and_reused_buffers_do_not_change_a_shared_model():
    store = store_of((0, 0))
    shared = store.share(0)
    for _ in range(3):
        store.begin_round(frozenset({0}))
        store.fold(0, vector(2, 2))
        store.merge(0)
        store.acquire_buffer().fill(np.nan)
    assert shared.tolist() == [0, 0]


def test_a_dropped_snapshot_is_an_error():
    store = store_of((0, 0))
    for t in range(3):
        store.take_snapshot(SnapshotKey(t, 0, 0))
    store.drop_snapshots(2)
    assert store.get_snapshot(SnapshotKey(2, 0, 0)) is store.model(0)
    with pytest.raises(LocalProtocolError, match="no snapshot"):
        store.get_snapshot(SnapshotKey(1, 0, 0))


def test_a_new_round_resets_the_weights():
    store = store_of((0, 0))
    for _ in range(2):
        store.begin_round(frozenset())
        store.fold(0, vector(4, 4))
    assert store.model(0).tolist() == [3, 3], "(0 + 4) / 2, then (2 + 4) / 2"


def test_a_round_cannot_begin_with_unmerged_arrivals():
    store = store_of((0, 0))
    store.begin_round(frozenset({0}))
    store.fold(0, vector(1, 1))
    with pytest.raises(LocalProtocolError, match="unmerged"):
        store.begin_round(frozenset())
    store.discard_deferred()
    store.begin_round(frozenset())
    assert store.model(0).tolist() == [0, 0]


@pytest.mark.parametrize("model", [np.zeros(3, np.float32), np.zeros(2), np.zeros((2, 1), np.float32)])
def test_a_model_of_another_shape_or_dtype_is_an_error(model):
    with pytest.raises(LocalProtocolError, match="slot 0 holds"):
        store_of((0, 0)).replace(0, model)


def test_memory_does_not_grow_with_the_number_of_arrivals():
    store = store_of((0, 0), (0, 0))
    store.begin_round(frozenset({0}))
    for n in range(100):
        buffer = store.acquire_buffer()
        buffer.fill(n)
        store.fold(n % 2, buffer)
        store.release_buffer(buffer)
    assert len(store._deferred) == 1 and len(store._spare) <= 4

"""Slots, averages and snapshots: who may mutate what, and what merges with which weight."""

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core.model_store import ModelStore, SnapshotKey


def vector(*values):
    return np.array(values, np.float32)


def store_of(*models, **options):
    return ModelStore([vector(*model) for model in models], **options)


def test_a_slot_that_is_not_trained_folds_in_place_and_counts_its_own_model():
    store = store_of((0, 0), (6, 6))
    store.begin_round(frozenset({0}))
    before = store.model(1)
    store.fold(1, vector(0, 3))
    store.fold(1, vector(3, 3))
    assert store.model(1) is before and store.model(1).tolist() == [3, 4]


@pytest.mark.parametrize("batch", [False, True])
def test_a_trained_slot_collects_aside_and_merges_by_weights(batch):
    store = store_of((0, 0), batch=batch)
    store.begin_round(frozenset({0}))
    store.fold(0, vector(3, 0))
    store.replace(0, vector(0, 9))  # training ends after the first arrival
    store.fold(0, vector(3, 0))
    assert store.folded_weight(0) == 2 and store.model(0).tolist() == [0, 9]
    store.merge(0)
    assert store.model(0).tolist() == [2, 3] and store.folded_weight(0) == 0


@pytest.mark.parametrize("batch", [False, True])
def test_an_own_weight_of_zero_leaves_the_arrivals_alone(batch):
    store = store_of((7, 7), batch=batch)
    store.begin_round(frozenset({0}))
    store.fold(0, vector(1, 2), 0.25)
    store.fold(0, vector(3, 4), 0.75)
    store.merge(0, 0.0)
    assert store.model(0).tolist() == [2.5, 3.5]


def test_nothing_aside_merges_to_nothing():
    store = store_of((1, 2))
    model = store.model(0)
    store.begin_round(frozenset({0}))
    store.merge(0)
    assert store.model(0) is model


def test_a_snapshot_is_never_mutated():
    store = store_of((0, 0))
    key = SnapshotKey(0, 0, 0)
    store.snapshot(key)
    store.begin_round(frozenset())
    store.fold(0, vector(2, 2))
    assert store.offered(key).tolist() == [0, 0] and store.model(0).tolist() == [1, 1]
    store.fold(0, vector(4, 4))
    assert store.model(0).tolist() == [2, 2], "the copy is folded into in place"


def test_a_shared_model_survives_a_merge_and_the_reuse_of_buffers():
    store = store_of((0, 0))
    shared = store.share(0)
    for _ in range(3):
        store.begin_round(frozenset({0}))
        store.fold(0, vector(2, 2))
        store.merge(0)
        store.reserve().fill(np.nan)
    assert shared.tolist() == [0, 0]


def test_forgotten_snapshots_are_gone_and_said_so():
    store = store_of((0, 0))
    for t in range(3):
        store.snapshot(SnapshotKey(t, 0, 0))
    store.forget_snapshots(2)
    assert store.offered(SnapshotKey(2, 0, 0)) is store.model(0)
    with pytest.raises(LocalProtocolError, match="no snapshot"):
        store.offered(SnapshotKey(1, 0, 0))


def test_weights_begin_anew_in_each_round():
    store = store_of((0, 0))
    for _ in range(2):
        store.begin_round(frozenset())
        store.fold(0, vector(4, 4))
    assert store.model(0).tolist() == [3, 3], "(0 + 4) / 2, then (2 + 4) / 2"


def test_a_round_does_not_begin_over_unmerged_arrivals():
    store = store_of((0, 0))
    store.begin_round(frozenset({0}))
    store.fold(0, vector(1, 1))
    with pytest.raises(LocalProtocolError, match="unmerged"):
        store.begin_round(frozenset())
    store.drop_asides()
    store.begin_round(frozenset())
    assert store.model(0).tolist() == [0, 0]


@pytest.mark.parametrize("model", [np.zeros(3, np.float32), np.zeros(2), np.zeros((2, 1), np.float32)])
def test_a_model_of_another_shape_or_type_is_not_taken(model):
    with pytest.raises(LocalProtocolError, match="slot 0 holds"):
        store_of((0, 0)).replace(0, model)


def test_memory_does_not_grow_with_the_number_of_arrivals():
    store = store_of((0, 0), (0, 0))
    store.begin_round(frozenset({0}))
    for n in range(100):
        buffer = store.reserve()
        buffer.fill(n)
        store.fold(n % 2, buffer)
        store.give_back(buffer)
    assert len(store._asides) == 1 and len(store._spare) <= 4

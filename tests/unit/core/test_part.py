"""The part of a model that travels: which tensors it has, and that a model store never touches the others."""

import re

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import ConfigError
from peer.core.model_store import ModelStore, SnapshotKey
from peer.core.part import TravellingPart, travelling
from peer.core.schema import Schema, TensorSpec

WHOLE = Schema(
    (
        TensorSpec("conv.weight", (2,)),
        TensorSpec("norm1.weight", (1,)),
        TensorSpec("head.weight", (2,)),
        TensorSpec("norm1.running_mean", (1,), "buffer"),
    )
)
PART = TravellingPart.between(WHOLE, travelling(WHOLE, ["norm*"]))  # elements 0, 1, 3, 4


def vector(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ([], ["conv.weight", "norm1.weight", "head.weight", "norm1.running_mean"]),
        (["*.running_*"], ["conv.weight", "norm1.weight", "head.weight"]),
        (["norm?.weight", "head.*"], ["conv.weight", "norm1.running_mean"]),
        (["[ch]*"], ["norm1.weight", "norm1.running_mean"]),
    ],
)
def test_the_tensors_whose_names_match_no_pattern_travel(patterns, left):
    assert [spec.name for spec in travelling(WHOLE, patterns).tensors] == left


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["norm*", "Head.*"], "each match a tensor, got 'Head.*'"),
        (["*"], "leave a parameter to travel, got ['*'], which leaves none"),
        (["*.weight"], "leave a parameter to travel, got ['*.weight'], which leaves none"),
    ],
)
def test_a_pattern_of_nothing_and_patterns_of_every_parameter_are_refused_with_the_names(patterns, found):
    names = "The model's tensors are: conv.weight, norm1.weight, head.weight, norm1.running_mean."
    with pytest.raises(ConfigError, match=re.escape(found) + ".*" + re.escape(names)):
        travelling(WHOLE, patterns)


def test_a_part_is_taken_out_of_a_model_and_put_back():
    whole = vector(0, 1, 2, 3, 4, 5)
    assert PART.of(whole).tolist() == [0, 1, 3, 4] and PART.places == (slice(0, 2), slice(3, 5))
    assert PART.joined(whole, vector(6, 7, 8, 9)).tolist() == [6, 7, 2, 8, 9, 5]
    assert whole.tolist() == [0, 1, 2, 3, 4, 5] and not PART.is_whole


def test_where_nothing_is_private_no_array_is_copied():
    everything, whole = TravellingPart.between(WHOLE, WHOLE), vector(0, 1, 2, 3, 4, 5)
    assert everything.is_whole and everything == TravellingPart.all_of(6)
    assert everything.of(whole) is whole and everything.joined(vector(), whole) is whole


OPTIONS = [{}, {"batch": True}, {"trim": 0.4}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("deferred", [frozenset(), frozenset({0})])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("own_weight", [0.0, 0.5, 1.0])
def test_a_round_of_the_store_is_that_of_the_part_alone_and_keeps_private_values(options, deferred, shared, own_weight):
    """The same arrivals into a store of whole models and into one that has never seen the private values."""
    whole = vector(1, 2, 30, 4, 5, 60)
    store, alone = ModelStore([whole.copy()], part=PART, **options), ModelStore([PART.of(whole)], **options)
    draw = np.random.default_rng(0)
    for _ in range(3):
        before = store.share(0) if shared else store.model(0)
        kept = before.copy()
        arrivals = [draw.normal(size=4).astype(np.float32) for _ in range(5)]
        for each in (store, alone):
            each.begin_round(deferred)
            for arrival in arrivals:
                each.fold(0, arrival.copy(), 2.0)
            each.merge(0, own_weight)
        assert PART.of(store.model(0)).tobytes() == alone.model(0).tobytes()
        assert store.model(0)[[2, 5]].tolist() == [30, 60]
        assert not shared or before.tobytes() == kept.tobytes(), "a shared array is never mutated"
        assert store.acquire_buffer().size == 4


def test_a_snapshot_has_only_what_travels():
    store = ModelStore([vector(0, 1, 2, 3, 4, 5)], part=PART)
    store.take_snapshot(SnapshotKey(0, 0, 0))
    store.take_snapshot(SnapshotKey(0, 1, 0), vector(9, 9, 2, 9, 9, 5))
    assert store.get_snapshot(SnapshotKey(0, 0, 0)).tolist() == [0, 1, 3, 4]
    assert store.get_snapshot(SnapshotKey(0, 1, 0)).tolist() == [9, 9, 9, 9]


def test_a_slot_gets_a_new_part_or_the_private_values_of_another():
    store = ModelStore([vector(0, 1, 2, 3, 4, 5), vector(6, 7, 8, 9, 10, 11)], part=PART)
    store.replace_part(0, vector(20, 21, 22, 23))
    assert store.model(0).tolist() == [20, 21, 2, 22, 23, 5]
    store.copy_private(1, 0)
    assert store.model(0).tolist() == [20, 21, 8, 22, 23, 11]

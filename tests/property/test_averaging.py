"""Running averages: independent of the order up to rounding, within the range of their inputs, equal to the batch mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core import averaging
from peer.core.averaging import accumulate, fold, norm_squared
from peer.core.model_store import ModelStore

EPS = float(np.finfo(np.float32).eps)
ELEMENTS = st.floats(-1e4, 1e4, width=32)


@st.composite
def models_and_order(draw):
    """From 2 to 9 models of one length, and an order of all but the first, which is the local one."""
    count, size = draw(st.integers(2, 9)), draw(st.integers(1, 40))
    models = draw(arrays(np.float32, (count, size), elements=ELEMENTS))
    return models, draw(st.permutations(range(1, count)))


def folded(models, order, weights=None):
    average, total = models[0].copy(), 1.0
    for m in order:
        total = fold(average, total, models[m], 1.0 if weights is None else weights[m])
    return average


@given(models_and_order())
def test_a_sequence_of_folds_is_the_mean_in_any_order(drawn):
    models, order = drawn
    mean = models.astype(np.float64).mean(axis=0)
    scale = np.abs(models).max(initial=1.0)
    assert np.abs(folded(models, order) - mean).max() <= 4 * EPS * scale
    assert np.abs(folded(models, order) - folded(models, sorted(order))).max() <= 8 * EPS * scale


@given(arrays(np.float32, (6, 30), elements=st.floats(-1, 1, width=32)))
def test_the_error_is_below_one_millionth_for_elements_up_to_one(models):
    assert np.abs(folded(models, range(1, 6)) - models.astype(np.float64).mean(axis=0)).max() <= 1e-6


@given(models_and_order(), st.lists(st.floats(1e-3, 1e3), min_size=9, max_size=9))
def test_weighted_folds_are_the_weighted_mean(drawn, weights):
    models, order = drawn
    weights = np.array([1.0, *weights][: len(models)])
    mean = (models.astype(np.float64) * weights[:, None]).sum(axis=0) / weights.sum()
    assert np.abs(folded(models, order, weights) - mean).max() <= 6 * EPS * np.abs(models).max(initial=1.0)


@given(models_and_order())
def test_every_fold_stays_within_the_range_of_its_inputs(drawn):
    models, order = drawn
    average, total = models[0].copy(), 1.0
    low, high = models[0].copy(), models[0].copy()
    slack = 2 * EPS * np.abs(models).max(initial=1.0)
    for m in order:
        total = fold(average, total, models[m])
        low, high = np.minimum(low, models[m]), np.maximum(high, models[m])
        assert (average >= low - slack).all() and (average <= high + slack).all()


@given(arrays(np.float32, st.integers(1, 40), elements=ELEMENTS), st.integers(1, 20))
def test_equal_inputs_give_the_same_output(model, count):
    average, total = model.copy(), 1.0
    for _ in range(count):
        total = fold(average, total, model)
    assert np.array_equal(average, model)


@given(models_and_order())
def test_batch_and_sequential_stores_agree_up_to_rounding(drawn):
    models, order = drawn
    results = []
    for batch in (False, True):
        store = ModelStore([models[0].copy()], batch=batch)
        store.begin_round(frozenset({0}))
        for m in order:
            store.fold(0, models[m])
        store.merge(0)
        results.append(store.model(0))
    assert np.abs(results[0] - results[1]).max() <= 8 * EPS * np.abs(models).max(initial=1.0)


@given(models_and_order())
def test_deferred_folds_and_folds_in_place_give_the_same_mean(drawn):
    models, order = drawn
    results = []
    for deferred in (frozenset({0}), frozenset()):
        store = ModelStore([models[0].copy()])
        store.begin_round(deferred)
        for m in order:
            store.fold(0, models[m])
        store.merge(0)
        results.append(store.model(0))
    assert np.abs(results[0] - results[1]).max() <= 8 * EPS * np.abs(models).max(initial=1.0)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_the_block_size_changes_no_bit(block, monkeypatch):
    rng = np.random.default_rng(1)
    models = rng.normal(size=(5, 200)).astype(np.float32)
    whole = folded(models, range(1, 5))
    total = models[0].copy()
    accumulate(total, models[1], 0.3)
    monkeypatch.setattr(averaging, "BLOCK_ELEMENTS", block)
    assert np.array_equal(folded(models, range(1, 5)), whole)
    cut = models[0].copy()
    accumulate(cut, models[1], 0.3)
    assert np.array_equal(cut, total)


def test_alignment_and_views_change_no_bit():
    rng = np.random.default_rng(2)
    models = rng.normal(size=(3, 1001)).astype(np.float32)
    shifted = np.zeros((3, 1004), np.float32)[:, 3:]
    shifted[:] = models
    assert np.array_equal(folded(models, (1, 2)), folded(shifted, (1, 2)))


@pytest.mark.parametrize("shape", [(1,), (5,), (4, 1), ()])
def test_shapes_that_differ_are_refused_and_never_broadcast(shape):
    average = np.zeros(4, np.float32)
    for operation in (
        lambda: fold(average, 1.0, np.ones(shape, np.float32)),
        lambda: accumulate(average, np.ones(shape)),
    ):
        with pytest.raises(LocalProtocolError, match="cannot"):
            operation()
    assert not average.any()


@pytest.mark.parametrize("weights", [(0.0, 1.0), (1.0, 0.0), (-1.0, 2.0), (1.0, float("nan"))])
def test_weights_must_be_positive(weights):
    with pytest.raises(LocalProtocolError, match="expected above 0"):
        fold(np.zeros(2, np.float32), weights[0], np.ones(2, np.float32), weights[1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_norm_is_finite_only_if_every_element_is(value):
    model = np.ones(70_000, np.float32)
    assert norm_squared(model) == 70_000
    model[-1] = value
    assert not np.isfinite(norm_squared(model))
    assert not np.isfinite(norm_squared(np.full(3, 3e38, np.float32)))  # its square is more than float32 holds

"""Screening (invariant I4): the largest influence of one arrival, or of b Byzantine neighbors, on an average."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core import averaging
from peer.core.averaging import NORM_SQUARED_MAX, check_norm, clip, trimmed_mean
from peer.core.model_store import ModelStore

EPS = float(np.finfo(np.float32).eps)
SIZE = 6
VALUES = st.floats(-1e6, 1e6, width=32)
WILD = st.floats(-(2.0**60), 2.0**60, width=32)  # every value that the finiteness check accepts
MODELS = st.lists(VALUES, min_size=SIZE, max_size=SIZE).map(lambda v: np.array(v, np.float32))
ARRIVALS = st.lists(WILD, min_size=SIZE, max_size=SIZE).map(lambda v: np.array(v, np.float32))
RADII = st.floats(2.0**-9, 1e6, width=32)


def distance(a, b):
    return float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))


def slack(center, radius):
    """Rounding of a clipped model: of each coordinate of center + difference, and of the factor."""
    return 8 * EPS * (radius + float(np.linalg.norm(center.astype(np.float64))))


@given(ARRIVALS, MODELS, RADII)
def test_a_clipped_arrival_is_within_the_radius_and_on_the_line(arrival, center, radius):
    before = arrival.copy()
    factor = clip(arrival, center, radius)
    assert np.isfinite(arrival).all() and 0 <= factor <= 1
    assert distance(arrival, center) <= radius + slack(center, radius)
    if factor == 1:
        assert np.array_equal(arrival, before)
    wanted = center + factor * (before.astype(np.float64) - center)
    assert distance(arrival, wanted) <= slack(center, radius) + EPS * factor * distance(before, center)


@given(MODELS, st.lists(ARRIVALS, min_size=1, max_size=6), ARRIVALS, RADII)
def test_one_arrival_moves_a_clipped_average_by_at_most_two_radii_over_the_count(center, arrivals, other, radius):
    """I4: with n arrivals and the own model, replacing one arrival by any other moves the average by at most 2 tau / (n + 1)."""

    def average(models):
        store = ModelStore([center.copy()])
        store.begin_round(frozenset({0}))
        for model in models:
            clipped = model.copy()
            clip(clipped, center, radius)
            store.fold(0, clipped)
        store.merge(0)
        return store.model(0).copy()

    one, changed = average(arrivals), average([other, *arrivals[1:]])
    rounding = (len(arrivals) + 2) * slack(center, radius)
    assert distance(one, changed) <= 2 * radius / (len(arrivals) + 1) + rounding
    assert distance(one, center) <= radius + rounding


@given(MODELS, st.lists(ARRIVALS, min_size=1, max_size=5))
def test_every_coordinate_of_an_average_is_within_the_range_of_the_folded_models(own, arrivals):
    for batch, trim in ((False, None), (True, None), (False, 0.3)):
        store = ModelStore([own.copy()], batch=batch, trim=trim)
        store.begin_round(frozenset({0}))
        for arrival in arrivals:
            store.fold(0, arrival.copy())
        store.merge(0)
        everything = np.stack([own, *arrivals]).astype(np.float64)
        rounding = 4 * EPS * np.abs(everything).max()
        found = store.model(0)
        assert np.isfinite(found).all()
        assert (found >= everything.min(axis=0) - rounding).all() and (found <= everything.max(axis=0) + rounding).all()


@given(st.lists(MODELS, min_size=3, max_size=7), st.data())
def test_byzantine_values_cannot_move_a_trimmed_mean_out_of_the_range_of_honest_ones(honest, data):
    """With b values trimmed at each end and b Byzantine models, every coordinate stays between two honest ones."""
    share = 0.3
    liars = []
    while int(share * (len(honest) + len(liars) + 1)) > len(liars):
        liars.append(data.draw(ARRIVALS))
    out = np.empty(SIZE, np.float32)
    trimmed_mean([*honest, *liars], [1.0] * (len(honest) + len(liars)), share, out)
    block = np.stack(honest)
    assert (out >= block.min(axis=0)).all() and (out <= block.max(axis=0)).all()


@given(st.lists(MODELS, min_size=1, max_size=5), st.floats(0, 0.49))
@settings(max_examples=50)
def test_a_trimmed_mean_does_not_depend_on_the_order(models, share):
    results = set()
    for order in list(permutations(range(len(models))))[:24]:
        out = np.empty(SIZE, np.float32)
        trimmed_mean([models[i] for i in order], [1.0] * len(models), share, out)
        results.add((out + 0.0).tobytes())  # -0 equals 0
    reference = np.sort(np.stack(models).astype(np.float64), axis=0)
    cut = int(share * len(models))
    wanted = reference[cut : len(models) - cut].mean(axis=0)
    assert np.allclose(np.frombuffer(results.pop(), np.float32), wanted, rtol=1e-6, atol=1e-6 * np.abs(reference).max())
    assert not results


def test_a_trimmed_mean_uses_weights_and_works_over_several_blocks():
    size = averaging.BLOCK_ELEMENTS + 3
    models = [np.full(size, value, np.float32) for value in (0.0, 1.0, 2.0, 3.0, 1e6)]
    out = np.empty(size, np.float32)
    trimmed_mean(models, [9.0, 1.0, 1.0, 2.0, 9.0], 0.2, out)
    assert (out == np.float32((1 + 2 + 6) / 4)).all()
    trimmed_mean(models[:4], [1.0] * 4, 0.2, out)
    assert (out == 1.5).all()  # fewer than 1 / share: the plain mean


def test_a_store_with_a_trim_copies_arrivals_and_drops_them_after_the_merge():
    store, arrival = ModelStore([np.zeros(2, np.float32)] * 2, trim=0.4), np.ones(2, np.float32)
    store.begin_round(frozenset())
    for slot in (0, 1):
        store.fold(slot, arrival)
        store.fold(slot, arrival * 100)
    arrival[:] = 7  # the caller may reuse its buffer
    assert store.deferred_weight(1) == 2
    store.merge(0)
    assert store.model(0).tolist() == [1, 1]
    store.merge(1, 0.0)
    assert store.model(1).tolist() == [50.5, 50.5]  # two models: nothing to trim
    store.fold(0, arrival)
    store.discard_deferred()
    store.begin_round(frozenset())


@pytest.mark.parametrize(
    ("norm_squared", "own", "bound", "code"),
    [
        (4.0, 1.0, 2.0, None),
        (4.000001, 1.0, 2.0, RefusalCode.NORM_BOUND),
        (4.0, 1.0, None, None),
        (NORM_SQUARED_MAX, 0.0, None, None),
        (NORM_SQUARED_MAX * 1.0001, 0.0, None, RefusalCode.NON_FINITE),
        (float("inf"), 1.0, None, RefusalCode.NON_FINITE),
        (float("nan"), 1.0, None, RefusalCode.NON_FINITE),
    ],
)
def test_a_norm_at_its_limit_passes_and_one_above_is_refused(norm_squared, own, bound, code):
    found = check_norm(norm_squared, own, bound)
    assert (found.code if found else None) is code

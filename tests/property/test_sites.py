"""The numbers of sites: their combination is exact, of one result in every order, and equal to that of all rows in one place."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coordinator_free_bootstrap.errors import ShardError, TaskError
from peer.core.messages import NUMBERS_MAX, Numbers
from peer.tasks.preprocessing import SHARED, Preprocessing, Shared
from peer.tasks.shard import Shard
from peer.tasks.sites import VALUE_MAX, AllSites, SiteForm, SiteNumbers, form_of, numbers_of
from peer.tasks.task import Task

FORM = SiteForm((3,), 2, 2)
VALUES = st.floats(-1e6, 1e6, width=32)
ROWS = st.integers(2, 12).flatmap(lambda n: hnp.arrays(np.float64, (n, 3), elements=VALUES))
SITES = st.dictionaries(st.integers(0, 500), ROWS, min_size=1, max_size=5)


def shard_of(x: np.ndarray, y: np.ndarray | None = None, preprocessing: Preprocessing = SHARED) -> Shard:
    """Return a shard with raw rows; labels alternate unless they are given."""
    labels = np.arange(len(x)) % 2 if y is None else y
    return Shard(train_x=x, train_y=labels, test_x=x[:1], test_y=labels[:1], preprocessing=preprocessing)


def site(x: np.ndarray) -> SiteNumbers:
    """Return the numbers of rows."""
    return numbers_of(FORM, shard_of(x))


@given(SITES, st.integers(0, 1000))
def test_the_order_of_sites_changes_no_bit(rows, seed):
    sites = [(peer, site(x)) for peer, x in rows.items()]
    one = AllSites.of(dict(sites))
    random.Random(seed).shuffle(sites)
    other = AllSites.of(dict(sites))
    assert one.digest == other.digest
    assert one.mean.tobytes() == other.mean.tobytes()
    assert one.deviation.tobytes() == other.deviation.tobytes()


@given(SITES)
def test_sites_give_mean_and_deviation_of_all_rows(rows):
    together, every = AllSites.of({peer: site(x) for peer, x in rows.items()}), np.concatenate(list(rows.values()))
    size = np.abs(every).max(0) + 1e-300
    assert together.count == len(every)
    np.testing.assert_allclose(together.mean / size, every.mean(0) / size, atol=1e-13)
    np.testing.assert_allclose(together.deviation / size, every.std(0) / size, atol=1e-7)


@given(st.lists(st.integers(2, 50), min_size=1, max_size=5), hnp.arrays(np.float64, 3, elements=VALUES))
def test_a_constant_feature_has_deviation_0_and_becomes_0(counts, row):
    together = AllSites.of({peer: site(np.tile(row, (n, 1))) for peer, n in enumerate(counts)})
    assert together.mean.tolist() == row.tolist()
    assert not together.deviation.any()
    scaled = together.scaling(SHARED, (3,)).apply(row[None].astype(np.float32))
    assert np.abs(scaled).max() == 0


@given(ROWS)
def test_a_site_is_read_as_it_was_sent(x):
    sent = site(x)
    assert FORM.problem(sent.numbers) == ""
    assert FORM.read(sent.numbers).numbers == sent.numbers


def test_a_large_offset_does_not_hide_the_deviation():
    x = 1.7e9 + np.random.default_rng(0).normal(0, 10, (5000, 3))
    halves = AllSites.of({0: site(x[:2000]), 1: site(x[2000:])})
    np.testing.assert_allclose(halves.deviation, x.std(0), rtol=1e-9)


def test_a_class_that_one_site_lacks_is_counted_as_0():
    x = np.zeros((4, 3))
    numbers = [numbers_of(FORM, shard_of(x, np.full(4, label))) for label in (0, 1)]
    assert [list(each.classes) for each in numbers] == [[4, 0], [0, 4]]
    assert AllSites.of(dict(enumerate(numbers))).fields(SHARED)["classes"] == {"0": [4, 0], "1": [0, 4]}


def test_a_one_hot_column_that_one_site_has_not_is_scaled_by_all():
    with_it, without = np.tile([1.0, 0.0, 1.0], (10, 1)), np.tile([1.0, 0.0, 0.0], (30, 1))
    together = AllSites.of({0: site(with_it), 1: site(without)})
    assert together.mean.tolist() == [1.0, 0.0, 0.25]
    assert together.deviation.tolist() == [0.0, 0.0, np.sqrt(0.1875)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda n: n[:-1], "expected 9 numbers of a site, got 8"),
        (lambda n: [1, *n[1:-2], 1, 0], "expected at least 2 training samples of a site, got 1"),
        (lambda n: [2.5, *n[1:]], "whole numbers"),
        (lambda n: [-4, *n[1:]], "whole numbers"),
        (lambda n: [*n[:-1], 7], "expected a class of each of 4 samples"),
        (lambda n: [n[0], 1e39, *n[2:]], "means and deviations of at most"),
        (lambda n: [*n[:4], -1.0, *n[5:]], "means and deviations of at most"),
        (lambda n: [*n[:4], 1e300, *n[5:]], "means and deviations of at most"),
    ],
)
def test_a_claim_that_cannot_be_right_is_named(change, said):
    honest = list(site(np.arange(12.0).reshape(4, 3)).numbers)
    assert FORM.problem(Numbers.of(honest)) == ""
    assert said in FORM.problem(Numbers.of(change(honest)))


@given(st.binary(max_size=20 * 8).map(lambda data: data[: len(data) // 8 * 8]))
def test_any_finite_numbers_are_refused_or_combined(data):
    numbers = Numbers(data)
    if np.isfinite(numbers.array).all() and not FORM.problem(numbers):
        honest = site(np.arange(12.0).reshape(4, 3))
        assert np.isfinite(AllSites.of({0: honest, 1: FORM.read(numbers)}).scaling(SHARED, (3,)).mean).all()


def test_the_largest_claims_give_finite_numbers():
    numbers = [Numbers.of(2, [sign * VALUE_MAX] * 3, [2 * VALUE_MAX**2] * 3, [1, 1]) for sign in (-1, 1)]
    assert [FORM.problem(each) for each in numbers] == ["", ""]
    together = AllSites.of({peer: FORM.read(each) for peer, each in enumerate(numbers)}).scaling(SHARED, (3,))
    assert np.isfinite(together.std).all()


# ---- what a site refuses ----------------------------------------------------------------------------------------------------


class Rows(Task):
    """Rows with two classes."""

    classes = 2
    preprocessing = SHARED

    def make_model(self):
        raise NotImplementedError

    def load_shard(self, peer_id):
        raise NotImplementedError


def test_a_site_with_few_samples_refuses_to_take_part():
    form = SiteForm((3,), 2, 10)
    with pytest.raises(
        ShardError, match=r"expected at least 10 training samples of a site for shared scaling, got 9\. "
    ):
        numbers_of(form, shard_of(np.zeros((9, 3))))
    assert numbers_of(form, shard_of(np.zeros((10, 3)))).count == 10


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_a_column_without_a_number_is_named(value):
    x = np.zeros((4, 3))
    x[2, 1] = value
    pending = Preprocessing(columns=("age", "dose", "ward"), shared=Shared())
    with pytest.raises(
        TaskError, match=r"feature 1 \('dose'\): expected finite numbers, got NaN, Inf or a number beyond"
    ):
        numbers_of(FORM, shard_of(x, preprocessing=pending))


def test_only_a_pending_scaling_has_a_form():
    shard = shard_of(np.zeros((4, 3)))
    assert form_of(Rows(), shard) == SiteForm((3,), 2, 10)
    assert form_of(Rows(), shard_of(np.zeros((4, 3)), preprocessing=Preprocessing())) is None
    agreed = AllSites.of({0: site(np.eye(3)), 1: site(np.eye(3))}).scaling(SHARED, (3,))
    assert form_of(Rows(), shard_of(np.zeros((4, 3)), preprocessing=agreed)) is None


def test_inputs_by_name_and_very_wide_ones_are_refused():
    x = np.zeros((4, 3))
    named = Shard(train_x={"a": x}, train_y=np.zeros(4), test_x={"a": x}, test_y=np.zeros(4))
    with pytest.raises(TaskError, match="expected one array in memory for shared scaling, got several inputs by name"):
        form_of(Rows(), named)
    with pytest.raises(TaskError, match=f"expected at most {NUMBERS_MAX - 1} numbers of a site"):
        form_of(Rows(), shard_of(np.zeros((2, NUMBERS_MAX // 2), np.float32)))


# ---- the scaling ------------------------------------------------------------------------------------------------------------


def test_a_pending_scaling_leaves_rows_raw_and_an_agreed_one_travels_in_json():
    times = np.array([[1.7e9 + 1, 0.0, 1.0], [1.7e9 + 3, 0.0, 3.0]])
    assert SHARED.apply(times).tolist() == times.tolist()
    agreed = AllSites.of({0: site(times), 3: site(times)}).scaling(SHARED, (3,))
    assert agreed.shared == Shared(10, sites=2, samples=4)
    assert str(agreed) == "(raw - mean) / std, mean and deviation of 4 samples of 2 sites"
    assert str(SHARED) == "(raw - mean) / std, mean and deviation of all sites, agreed before round 0"
    again = Preprocessing.from_json(agreed.to_json())
    assert (again.scale(), again.shared) == (agreed.scale(), agreed.shared)
    np.testing.assert_allclose(again.apply(np.array([[0.0, 0.0, 2.0]]))[:, 1:], [[0, 0]])


@pytest.mark.parametrize("wrong", [{"samples_min": 1}, {"samples_min": True}, {"sites": -1}, {"samples": 1.5}])
def test_a_wrong_number_of_a_shared_scaling_is_refused(wrong):
    with pytest.raises(TaskError, match="expected an integer of"):
        Shared(**wrong)

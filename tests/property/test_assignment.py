"""The assignment problem: the same choice as scipy's, ties included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from peer.core.assignment import assignment

SHAPES = st.tuples(st.integers(0, 9), st.integers(0, 9))
TIED = arrays(np.int64, SHAPES, elements=st.integers(-2, 2))  # nearly every table has several best assignments
APART = arrays(np.float64, SHAPES, elements=st.floats(-1e6, 1e6))
COSINES = arrays(np.float64, SHAPES, elements=st.sampled_from([-1.0, -0.1, 0.1, 0.2, 0.3, 1 / 3, 0.7]))


@given(st.one_of(TIED, APART, COSINES))
@settings(max_examples=600)
def test_the_choice_is_that_of_scipy(costs):
    for found, expected in zip(assignment(costs), linear_sum_assignment(costs), strict=True):
        assert found.tolist() == expected.tolist()
    for found, expected in zip(assignment(-costs), linear_sum_assignment(costs, maximize=True), strict=True):
        assert found.tolist() == expected.tolist()


def test_equal_costs_keep_the_diagonal():
    assert assignment(np.ones((5, 5)))[1].tolist() == [0, 1, 2, 3, 4]


def test_a_cost_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="finite"):
        assignment(np.array([[0.0, np.nan], [1.0, np.inf]]))

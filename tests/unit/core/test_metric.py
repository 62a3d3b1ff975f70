"""The metric of a task: format, direction, and the keys of its values in files."""

import numpy as np
import pytest

from peer.core.metric import Metric

MSE = Metric("mse", higher_is_better=False, share=False)
F1 = Metric("f1", share=True)


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        (Metric(), 0.91234, "0.912"),
        (Metric(), 0.0, "0.000"),
        (Metric(), 0.00012, "0.00012"),
        (Metric(), None, "-"),
        (MSE, 28.5, "28.5"),
        (MSE, 1234567.0, "1.235e+06"),
    ],
)
def test_values_as_text(metric, value, text):
    assert metric.text(value) == text


def test_tables_of_experiments_show_percent_for_shares_only():
    """Before, a mean squared error of 28.5 was printed as 2854.8 %."""
    assert [m.scaled_text(m.factor * v) for m, v in ((MSE, 28.548), (Metric(), 0.285), (F1, 0.5))] == [
        "28.55",
        "28.5",
        "50.0",
    ]
    assert (MSE.column, Metric().column, F1.column) == ("mse", "%", "f1, %")


def test_lower_can_be_better():
    values = np.array([1.0, 3.0])
    assert (MSE.worst(values), MSE.best(values), Metric().worst(values)) == (3.0, 1.0, 1.0)
    assert MSE.reaches(values, 2.0).tolist() == [True, False]
    assert MSE.label == "mse (lower is better)"


def test_json_keeps_all():
    assert Metric.from_json(MSE.as_json() | {"value": 3.0}) == MSE

"""Example task: a CSV table with categories and missing values: does a patient of a clinic return?

Each peer is a clinic. A number that is missing becomes the mean of the clinic, and a column says that it was missing. A category
becomes one column for each of its values, which are written here: all clinics have the same columns in the same order. `encode`
makes the same columns of new rows, so that `peer predict` reads a clinic's table.

    python examples/make_files.py        # writes examples/files/patients/clinic-0.csv and so on; use your own instead
    peer task check examples/patient_task.py:task
    peer testbed --peers 4 --set run.task=examples/patient_task.py:task
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from peer.tasks import Preprocessing, Shard, Task

FOLDER = Path(__file__).parent / "files" / "patients"
NUMBERS = ("age", "blood_pressure")
CATEGORIES = {"smoker": ("no", "yes"), "ward": ("general", "heart", "surgery")}  # a missing one is in no column
OUTCOMES = ("recovered", "returned")
COLUMNS = (
    *NUMBERS,
    *(f"{name} is missing" for name in NUMBERS),
    *(f"{name} is {value}" for name, values in CATEGORIES.items() for value in values),
)


class PatientTask(Task):
    """Outcomes of one clinic's patients."""

    classes = len(OUTCOMES)
    class_names = OUTCOMES

    def make_model(self) -> nn.Module:
        """Return a network of one hidden layer."""
        return nn.Sequential(nn.Linear(len(COLUMNS), 24), nn.ReLU(), nn.Linear(24, self.classes))

    def load_shard(self, peer_id: int) -> Shard:
        """Return the rows of one clinic; the last quarter is the test set."""
        path = FOLDER / f"clinic-{peer_id}.csv"
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        cut = len(rows) * 3 // 4
        raw, y = encoded(rows, means(rows[:cut])), np.array([OUTCOMES.index(row["outcome"]) for row in rows])
        scaling = Preprocessing.standardizing(raw[:cut], COLUMNS)
        x = scaling.apply(raw)
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:], preprocessing=scaling)

    def encode(self, rows: list[dict[str, str]], preprocessing: Preprocessing) -> np.ndarray:
        """Return inputs of the model for rows of a table; a missing number is the mean of the clinic that trained it."""
        return preprocessing.apply(encoded(rows, preprocessing.mean[: len(NUMBERS)]))


def numbers(rows: list[dict[str, str]]) -> np.ndarray:
    """Return the columns `NUMBERS`, NaN where one is missing."""
    return np.array([[float(row[name] or "nan") for name in NUMBERS] for row in rows])


def means(rows: list[dict[str, str]]) -> np.ndarray:
    """Return the mean of each of `NUMBERS`."""
    return np.nanmean(numbers(rows), axis=0)


def encoded(rows: list[dict[str, str]], if_missing: Sequence[float]) -> np.ndarray:
    """Return the columns `COLUMNS`, float64 [rows, columns]; a missing number becomes the one of ``if_missing``."""
    found = numbers(rows)
    missing = np.isnan(found)
    columns = [*np.where(missing, if_missing, found).T, *missing.T.astype(float)]
    for name, values in CATEGORIES.items():
        if unknown := {row[name] for row in rows} - {"", *values}:
            raise ValueError(f"column {name}: expected {', '.join(values)}, or nothing, got {sorted(unknown)}")
        columns += [np.array([row[name] == value for row in rows], float) for value in values]
    return np.stack(columns, axis=1)


task = PatientTask()

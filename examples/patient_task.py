"""Example task: a CSV table with categories and missing values: does a patient of a clinic return?

Each peer is a clinic. A number is scaled by a usual value and deviation that are written here, and not by those of the patients:
so the example also runs with `run.privacy`. One that is missing becomes the usual value, and a column says that it was missing.
A category becomes one column for each of its values, which are written here too: all clinics have the same columns. `encode`
makes the same columns of new rows, so that `peer predict` reads a clinic's table.

    python examples/make_files.py        # writes examples/files/patients/clinic-0.csv and so on; use your own instead
    peer task check examples/patient_task.py:task
    peer testbed --peers 4 --set run.task=examples/patient_task.py:task
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from torch import nn

from peer.tasks import Preprocessing, Shard, Task

FOLDER = Path(__file__).parent / "files" / "patients"
NUMBERS = ("age", "blood_pressure")
USUAL, DEVIATION = (55.0, 130.0), (20.0, 20.0)
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
    preprocessing = Preprocessing(
        mean=[*USUAL, *[0.0] * (len(COLUMNS) - len(NUMBERS))],
        std=[*DEVIATION, *[1.0] * (len(COLUMNS) - len(NUMBERS))],
        columns=COLUMNS,
    )

    def make_model(self) -> nn.Module:
        """Return a network of one hidden layer."""
        return nn.Sequential(nn.Linear(len(COLUMNS), 24), nn.ReLU(), nn.Linear(24, self.classes))

    def load_shard(self, peer_id: int) -> Shard:
        """Return the rows of one clinic; the last quarter is the test set."""
        path = FOLDER / f"clinic-{peer_id}.csv"
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        cut = len(rows) * 3 // 4
        x, y = self.encode(rows, self.preprocessing), np.array([OUTCOMES.index(row["outcome"]) for row in rows])
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])

    def encode(self, rows: list[dict[str, str]], preprocessing: Preprocessing) -> np.ndarray:
        """Return inputs of the model for rows of a table."""
        return preprocessing.apply(encoded(rows))


def encoded(rows: list[dict[str, str]]) -> np.ndarray:
    """Return the columns `COLUMNS`, float64 [rows, columns]."""
    found = np.array([[float(row[name] or "nan") for name in NUMBERS] for row in rows])
    missing = np.isnan(found)
    columns = [*np.where(missing, USUAL, found).T, *missing.T.astype(float)]
    for name, values in CATEGORIES.items():
        if unknown := {row[name] for row in rows} - {"", *values}:
            raise ValueError(f"column {name}: expected {', '.join(values)}, or nothing, got {sorted(unknown)}")
        columns += [np.array([row[name] == value for row in rows], float) for value in values]
    return np.stack(columns, axis=1)


task = PatientTask()
